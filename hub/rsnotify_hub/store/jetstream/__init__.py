"""The store of a hub of many nodes: NATS JetStream."""
