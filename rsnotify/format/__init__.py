"""Reads and writes ResourceSync documents, without I/O."""
