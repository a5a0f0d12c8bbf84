"""Bringing content, by one way after another."""
