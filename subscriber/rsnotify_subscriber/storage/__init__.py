"""The state of a Destination, in a separate SQLite file or in the aggregator's PostgreSQL."""
