"""A small HTTP/1.1 client over kept connections: one request at a time on each, and no tasks."""
