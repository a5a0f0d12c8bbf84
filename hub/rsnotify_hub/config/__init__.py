"""The hub's settings: sections, the places they are read from, and the checks on them."""
