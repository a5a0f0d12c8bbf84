"""A folder of files as a Source: the rooms of the command `rsnotify source`."""
