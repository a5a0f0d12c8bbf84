"""The durable state of the hub: its interface, and one folder for each implementation."""
