"""The side of incremental and baseline synchronization that does I/O, around `rsnotify.sync`."""
