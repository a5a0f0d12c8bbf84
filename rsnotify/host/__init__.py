"""What programs ask of the machine they run on: files of settings, and how many may be open."""
