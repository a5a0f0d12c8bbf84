"""Configuration files: reading them, and describing what is wrong in them, with the line."""
