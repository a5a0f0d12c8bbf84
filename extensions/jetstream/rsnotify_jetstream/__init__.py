"""The store and the cluster of a hub on NATS JetStream (docs/scaling.md).

- `jetstream_store`: the store, which connects, reads the cluster and describes it;
- `jetstream_log`, `log_index`, `log_records`: the logs, stored in one stream with an in-memory
  index;
- `shared_subscriptions`, `owned_shard`, `owned_bridge`, `fenced_map`: the subscriptions, divided
  into shards with one owner each, and cursors that only the owner can write;
- `shard_ownership`, `cluster_node`, `node_messages`, `cluster_records`: the assignment of shards to
  nodes, this node, the calls between nodes, and the records in NATS;
- `stream`, `stream_follower`, `bucket`, `nats_connection`: JetStream streams, a follower that reads
  each message once and in order, compare-and-set, and the connection;
- `provider`, `nats_settings`, `server_check`: the settings, and checks of the servers.
"""
