"""rsnotify: push-extended ResourceSync, the format and the rules.

This package takes bytes and instants and returns values and actions: it opens no socket or
file, starts no thread, and reads no clock. `rsnotify_publisher`, `rsnotify_hub` and
`rsnotify_subscriber` stand around it and do the I/O.
"""
