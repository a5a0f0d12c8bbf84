"""The entry point `xmpp` of the group `rsnotify.transports`: publish and receive over PubSub.

slixmpp is imported only when a connection is opened.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from rsnotify.errors import ConfigurationError
from rsnotify.runtime.settings import WrongSetting
from rsnotify_xmpp.xmpp_service import SCHEME, XmppLogin, parse_service

if TYPE_CHECKING:
    from rsnotify.runtime.addresses import Dialer
    from rsnotify_hub.bridging import Bridge, BridgeDependencies
    from rsnotify_publisher.hubs import Hub
    from rsnotify_publisher.push.hub_feed import FragmentFeed
    from rsnotify_subscriber.push.transport import Transport


class XmppSettings(XmppLogin, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The settings of a hub: its account, and the PubSub service at which it publishes.

    The account must be allowed to create nodes at the service.

    Args:
        url: The URI of the PubSub service.
    """

    url: str | None = None

    def __repr__(self) -> str:
        """Return a representation without the password."""
        return f"XmppSettings(url={self.url!r})"

    def check(self) -> None:
        """Raise `WrongSetting` if a setting is missing or invalid."""
        if self.url is None:
            reason = f"this needs {SCHEME}_url, which names the PubSub service"
            raise WrongSetting(("jid",), reason)
        try:
            if not parse_service(self.url).has_prefix:
                raise ConfigurationError(
                    "a hub has many channels: end the node with /, or remove it"
                )
        except ConfigurationError as error:
            raise WrongSetting(("url",), str(error)) from None
        if self.jid is None:
            raise WrongSetting(("url",), f"this needs {SCHEME}_jid, the account of the hub")
        try:
            super().check()
        except ConfigurationError as error:
            raise WrongSetting(("jid",), str(error)) from None


class XmppTransport:
    """The transport for URLs that begin with `xmpp:`."""

    name = "XMPP"
    needs = "name an account, such as user@example.org"
    login = XmppLogin
    settings = XmppSettings
    place = staticmethod(parse_service)

    async def feed(self, hub: Hub, topic: str, feed: FragmentFeed, dialer: Dialer) -> None:
        """Publish a topic's fragments at a PubSub service until that fails.

        Raises:
            Unavailable: The server cannot be reached, or refuses the connection.
            ExceptionGroup: Publishing failed, or the connection was lost.
        """
        from rsnotify_publisher.push.mqtt import feed_broker
        from rsnotify_xmpp.xmpp_connection import connect

        assert isinstance(hub.login, XmppLogin)
        async with connect(hub.login) as connection:
            publish = partial(connection.publish, parse_service(hub.uri), topic)
            await feed_broker(connection.lost(), publish, feed)

    def bridge(self, settings: XmppSettings, dependencies: BridgeDependencies) -> Bridge:
        """Return a hub's bridge to its PubSub service."""
        from rsnotify_xmpp.xmpp_bridge import XmppBridge

        return XmppBridge(settings, dependencies)

    def receive_from(self, url: str, topic: str, login: XmppLogin) -> Transport:
        """Return a reader for the node of a topic."""
        from rsnotify_xmpp.xmpp_reader import XmppReader

        return XmppReader(parse_service(url), topic, login)


XMPP = XmppTransport()
