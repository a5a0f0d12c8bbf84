"""The state of a Destination, in a SQLite file of its own or in the aggregator's PostgreSQL."""
