"""The durable state of the hub: its interface, SQLite, and stores that other packages provide."""
