"""The admin API: the state of the hub as JSON, and operations on topics and subscriptions."""
