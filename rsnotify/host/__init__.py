"""What programs ask of the machine: files of settings, how many may be open, a few threads."""
