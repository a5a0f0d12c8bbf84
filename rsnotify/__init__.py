"""rsnotify: push-extended ResourceSync. This package has what all others share.

`format`, `sync`, `selection` and `validation` are pure: they take bytes and instants, return
values and actions, and open no socket or file, start no thread and read no clock.
`rsnotify_publisher`, `rsnotify_hub` and `rsnotify_subscriber` do the I/O around them; `runtime`
has the I/O that they share.
"""

__version__ = "0.2.0"
