"""Selective push: what is left of a topic's log for who asked for a part of it."""
