"""`rsnotify demo`: a live Source, a hub and a Destination on this machine, and a page on them."""
