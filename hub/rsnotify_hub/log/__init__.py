"""The logs: what was published, durable and in order, and handed on to every way out."""
