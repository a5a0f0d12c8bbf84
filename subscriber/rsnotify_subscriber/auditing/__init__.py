"""Comparing a copy with the resources that the Source lists."""
