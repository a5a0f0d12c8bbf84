"""`rsnotify demo`: a Source, a hub and a Destination on this machine, with a page to watch them."""
