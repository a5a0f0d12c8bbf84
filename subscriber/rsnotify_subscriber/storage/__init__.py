"""Where a state can stand: in a SQLite file of its own, or in the aggregator's PostgreSQL."""
