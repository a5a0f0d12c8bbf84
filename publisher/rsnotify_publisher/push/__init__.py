"""Pushes changes from the journal to the hubs."""
