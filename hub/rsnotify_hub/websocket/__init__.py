"""`GET /ws`: Sources publish fragments over a WebSocket, and Destinations receive them."""
