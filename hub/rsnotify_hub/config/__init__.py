"""The hub's settings: their sections, their sources, and the checks on them."""
