"""The state of a Destination, in an SQLite file or in the application's PostgreSQL."""
