"""XMPP PubSub for publishers and subscribers of fragments (docs/xmpp.md)."""
