"""Following a Source: the I/O around `rsnotify.sync`."""
