"""Finding the set of resources to which a URI leads (core §6.3), and the Source's offer."""
