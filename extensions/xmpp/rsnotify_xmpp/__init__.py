"""XMPP PubSub for publishers and subscribers of fragments (docs/xmpp.md)."""

from rsnotify_xmpp.xmpp_service import XmppLogin

__all__ = ["XmppLogin"]
