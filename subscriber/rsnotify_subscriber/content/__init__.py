"""Obtains the content of changes: inline, from packages, from patches, or from servers."""
