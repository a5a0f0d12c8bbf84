"""What a Source offers, and `rsnotify inspect`."""
