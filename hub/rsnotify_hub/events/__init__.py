"""`GET /events`: Server-Sent Events, for browsers and `curl`."""
