"""XMPP: the hub publishes all topics to a PubSub service."""
