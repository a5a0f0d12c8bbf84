"""Equal hub nodes that share one store: which node owns which shard, and messages between nodes."""
