"""The store and the cluster of a hub on NATS JetStream (docs/scaling.md)."""
