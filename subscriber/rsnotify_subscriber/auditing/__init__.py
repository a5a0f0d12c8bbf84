"""Comparing a copy with what the Source lists, and `rsnotify audit`."""
