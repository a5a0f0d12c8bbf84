"""Documents and verified content over HTTP, and which hosts are dialled for them."""
