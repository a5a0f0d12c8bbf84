"""The entry point `xmpp` of the group `rsnotify.transports`: publishing and receiving over PubSub.

slixmpp is imported only where a connection is made.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from msgspec import Struct
from msgspec.structs import asdict

from rsnotify.errors import ConfigurationError
from rsnotify.runtime.settings import WrongSetting
from rsnotify_xmpp.xmpp_service import SCHEME, PubSubService, XmppLogin, parse_service

if TYPE_CHECKING:
    from rsnotify.runtime.addresses import Dialer
    from rsnotify_hub.bridging import Bridge, BridgeParts
    from rsnotify_publisher.hubs import Hub
    from rsnotify_publisher.push.hub_feed import HubFeed
    from rsnotify_subscriber.push.transport import Transport


class XmppSettings(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The settings of a hub: its account, and the service at which it publishes.

    Args:
        url: The PubSub service.
        jid: The hub's account, which has to be allowed to create nodes there.
        password: Its password, a secret.
        server: Where the server of the account is, as `host:port`, if DNS does not say so.
        ca: A file with the certificates that the server's has to descend from.
    """

    url: str | None = None
    jid: str | None = None
    password: str | None = None
    server: str | None = None
    ca: str | None = None

    def __repr__(self) -> str:
        """Leave out the password, for logs."""
        return f"XmppSettings(url={self.url!r})"

    @property
    def login(self) -> XmppLogin:
        """The login of the hub."""
        given = asdict(self)
        del given["url"]
        return XmppLogin(**given)

    def check(self) -> None:
        """Raise WrongSetting if the settings do not belong together."""
        if self.url is None:
            reason = f"this needs {SCHEME}_url, which names the PubSub service"
            raise WrongSetting(("jid",), reason)
        try:
            if not parse_service(self.url).has_prefix:
                raise ConfigurationError(
                    "a hub has many channels: end the node with /, or leave it out"
                )
        except ConfigurationError as error:
            raise WrongSetting(("url",), str(error)) from None
        if self.jid is None:
            raise WrongSetting(("url",), f"this needs {SCHEME}_jid, the account of the hub")
        try:
            self.login.check()
        except ConfigurationError as error:
            raise WrongSetting(("jid",), str(error)) from None


class XmppPubSub:
    """The transport of URLs that begin with `xmpp:`."""

    name = "XMPP"
    needs = "name an account, as user@example.org"
    login = XmppLogin
    settings = XmppSettings

    def place(self, url: str) -> PubSubService:
        """Read the URI of a PubSub service, or raise ConfigurationError."""
        return parse_service(url)

    async def feed(self, hub: Hub, topic: str, feed: HubFeed, dialer: Dialer) -> None:
        """Feed a PubSub service until that fails, always with Unavailable."""
        from rsnotify_publisher.push.mqtt import feed_broker
        from rsnotify_xmpp.xmpp_connection import connect

        assert isinstance(hub.login, XmppLogin)
        async with connect(hub.login) as connection:
            publish = partial(connection.publish, parse_service(hub.uri), topic)
            await feed_broker(connection.lost(), publish, feed)

    def bridge(self, settings: XmppSettings, parts: BridgeParts) -> Bridge:
        """Return the bridge of a hub to its PubSub service."""
        from rsnotify_xmpp.hub_bridge import XmppBridge

        return XmppBridge(settings, parts)

    def receive_from(self, url: str, topic: str, login: XmppLogin) -> Transport:
        """Return a subscription of an account to the node of a topic."""
        from rsnotify_xmpp.destination import XmppTransport

        return XmppTransport(parse_service(url), topic, login)


XMPP = XmppPubSub()
