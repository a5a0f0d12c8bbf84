"""Fetching documents and verified content over HTTP, only from allowed addresses."""
