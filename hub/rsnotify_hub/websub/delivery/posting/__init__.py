"""POST requests to callbacks: their heads, and connections to addresses that may be dialled."""
