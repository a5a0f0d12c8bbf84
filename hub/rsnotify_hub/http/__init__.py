"""The hub over HTTP: where it listens, and what answers."""
