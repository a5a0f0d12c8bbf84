"""Finding the set of resources that a URI leads to (core §6.3), and the Source's offer."""
