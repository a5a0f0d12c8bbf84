"""What is wrong with settings, and where in their file it stands."""
