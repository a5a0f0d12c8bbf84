"""The entry point `xmpp` of the group `rsnotify.transports`: publish and receive over PubSub.

slixmpp is imported only when a connection is opened.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

from rsnotify.errors import ConfigurationError, Unavailable
from rsnotify.runtime.settings import WrongSetting
from rsnotify_xmpp.xmpp_connection import PubSubItem, connect
from rsnotify_xmpp.xmpp_service import SCHEME, PubSubService, XmppLogin, parse_service

if TYPE_CHECKING:
    from rsnotify.format.datetimes import Instant
    from rsnotify.runtime.addresses import Dialer
    from rsnotify_hub.bridging import Bridge, BridgeDependencies
    from rsnotify_publisher.hubs import Hub
    from rsnotify_publisher.push.hub_feed import FragmentFeed
    from rsnotify_subscriber.push.transport import Transport, TransportListener

logger = logging.getLogger("rsnotify.subscriber")


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


@dataclass
class XmppReader:
    """Receives the fragments of one node with an account; a `Transport`.

    It connects to the account's server, regardless of the service that the Source names. The
    subscription remains when the connection ends, because other connections of the account may
    need it.

    A service has no log to read from a given instant, but it keeps the newest fragment of a node. A
    fragment states when it begins, so the newest one reveals a gap. If the service keeps none, the
    reader reports a gap, and the Destination reads the lists.

    Attributes:
        ignored: The number of messages that were not fragments of the topic.
    """

    service: PubSubService
    topic: str
    login: XmppLogin
    ignored: int = 0

    async def receive(self, since: Instant | None, listener: TransportListener) -> None:
        place = self.service.jid, self.service.node(self.topic)

        def receive_item(item: PubSubItem) -> None:
            if (item.sender, item.node) == place:
                listener.fragment(item.payload)
            else:
                self._ignore()

        try:
            async with connect(self.login, receive_item, self._ignore) as connection:
                newest = await connection.subscribe(self.service, self.topic)
                listener.up()
                if newest is None:
                    listener.gap()
                else:
                    listener.fragment(newest)
                await connection.lost()
        except ConfigurationError as error:  # may be temporary while a certificate is replaced
            raise Unavailable(self.service.url, str(error)) from None

    def _ignore(self) -> None:
        self.ignored += 1
        logger.debug(
            "ignored an XMPP message that is not a fragment of %s (%s so far)",
            self.topic,
            self.ignored,
        )


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
            Unavailable: The server cannot be reached, refuses the connection or a fragment, or the
                connection was lost.
        """
        from rsnotify_publisher.push.mqtt import feed_broker

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
        return XmppReader(parse_service(url), topic, login)


XMPP = XmppTransport()
