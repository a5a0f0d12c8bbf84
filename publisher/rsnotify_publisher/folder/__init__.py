"""A folder of files as a Source, for the command `rsnotify source`."""
