"""Connections that stay open and receive a topic: the log first, then every fragment at once."""
