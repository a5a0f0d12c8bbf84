"""Selective push: filters fragments of a log for Destinations that requested a part of a topic."""
