"""XMPP PubSub for publishers and subscribers of fragments (docs/xmpp.md).

`addresses` and `stanzas` are rules without I/O; slixmpp is imported by `connection` alone.
"""
