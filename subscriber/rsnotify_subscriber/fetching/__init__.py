"""Fetching documents and verified content over HTTP, from allowed addresses only."""
