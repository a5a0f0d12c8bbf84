"""The durable state of the hub: its interface, the SQLite store, and stores in other packages."""
