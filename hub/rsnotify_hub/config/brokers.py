"""The settings of the brokers at which a hub publishes."""

from __future__ import annotations

from typing import Annotated, Literal

from msgspec import Meta, Struct

from rsnotify.runtime.mqtt.login import BrokerLogin, login_of
from rsnotify.runtime.xmpp.login import XmppLogin, xmpp_login_of


class MqttConfig(Struct, frozen=True, kw_only=True, rename=lambda name: f"mqtt_{name}"):
    """The MQTT broker. The names of its settings begin with `mqtt_`.

    Args:
        url: The MQTT broker that everything is also published to; None for no broker.
        public_url: The broker's URL for Destinations, if it is not the hub's.
        ca: A file with the certificates that the broker's has to descend from; by default those
            of the system.
        channels: Topics, or prefixes of topics, that Sources may publish on through the broker,
            whose ACL decides which Source may publish on which.
        client_id: The hub's client identifier at the broker if there are such topics.
    """

    url: str | None = None
    public_url: str | None = None
    user: str | None = None
    password: str | None = None
    password_file: str | None = None
    ca: str | None = None
    certificate: str | None = None
    key: str | None = None
    version: Literal["5", "3.1.1"] = "5"
    channels: tuple[str, ...] = ()
    client_id: Annotated[
        str, Meta(pattern="^[A-Za-z0-9_-]+$", description="a text of letters, digits, _ and -")
    ] = "rsnotify-hub"

    @property
    def login(self) -> BrokerLogin:
        return login_of(self, prefix="")

    def __repr__(self) -> str:
        return f"MqttConfig(channels={self.channels})"


class XmppConfig(Struct, frozen=True, kw_only=True, rename=lambda name: f"xmpp_{name}"):
    """The XMPP PubSub service. The names of its settings begin with `xmpp_`.

    Args:
        url: The PubSub service that everything is also published to; None for none.
        jid: The hub's account, which has to be allowed to create nodes there.
        server: Where the server of the account is, as `host:port`, if DNS does not say so.
        ca: A file with the certificates that the server's has to descend from; by default those
            of the system.
    """

    url: str | None = None
    jid: str | None = None
    password: str | None = None
    password_file: str | None = None
    server: str | None = None
    ca: str | None = None

    @property
    def login(self) -> XmppLogin:
        return xmpp_login_of(self, prefix="")

    def __repr__(self) -> str:
        return f"XmppConfig(url={self.url!r})"
