"""The store and the cluster of a hub on NATS JetStream (docs/scaling.md).

- `jetstream_store`: the store, which connects, reads the cluster and describes it;
- `jetstream_log`, `log_index`, `log_records`: the logs, as one stream and an index of it in memory;
- `shared_subscriptions`, `owned_shard`, `fenced_records`: subscriptions in shards, each with an
  owner, and cursors that only the owner can write;
- `membership`, `node`, `node_messages`, `records`: which node owns which shard, this node, calls
  between nodes, and the records of nodes;
- `stream`, `stream_follower`, `bucket`, `connection`: JetStream, with each message once and in
  order, compare-and-set, and the connection;
- `provider`, `settings`, `server_check`: settings, and checks of the servers.
"""
