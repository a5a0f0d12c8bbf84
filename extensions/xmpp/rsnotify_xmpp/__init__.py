"""XMPP: publish and receive fragments through the nodes of PubSub services (docs/xmpp.md)."""

from rsnotify_xmpp.xmpp_service import XmppLogin

__all__ = ["XmppLogin"]
