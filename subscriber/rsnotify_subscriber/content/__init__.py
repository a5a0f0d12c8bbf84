"""Obtaining the content of changes: inline, or from packages, patches or servers."""
