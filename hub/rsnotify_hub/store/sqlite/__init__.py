"""The store in one SQLite database, for one process."""
