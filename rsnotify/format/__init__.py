"""ResourceSync documents: bytes in, values out, and back. Nothing here does I/O."""
