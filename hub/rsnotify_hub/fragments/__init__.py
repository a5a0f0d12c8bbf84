"""Fragments as the hub reads, stores and merges them."""
