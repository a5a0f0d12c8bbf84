"""Fragments from an MQTT broker (docs/mqtt.md).

A broker has no log that could be read from an instant on. It has the newest fragment, retained,
and sends it when one subscribes: as a fragment says where it begins, that shows whether anything
is missing. Where nothing comes, nothing is shown, and the lists are read.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable, Sequence

from msgspec import Struct

from rsnotify.datetimes import Instant
from rsnotify.errors import ConfigurationError, RefusedAddress
from rsnotify.mqtt.connecting import CLEAN, Session, connect
from rsnotify.mqtt.login import ANONYMOUS, Login
from rsnotify.mqtt.messages import Message
from rsnotify.mqtt.names import Broker, parse_broker
from rsnotify_subscriber.fetching.connections import NotPublic
from rsnotify_subscriber.push.dialling import dial
from rsnotify_subscriber.push.transport import Listener

#: How long the broker may take to send what it retained, in seconds.
PROOF = 2.0
#: How long a broker keeps the session of one that is away, in seconds.
_EXPIRY = 7 * 86_400


class Brokered(Struct, frozen=True, kw_only=True):
    """How one hears of changes through MQTT brokers.

    Args:
        url: The broker to use, whatever the Source names; None uses the one that it names.
        login: Who one is there. A password or certificate needs a `url`, since the Source could
            name any broker, and would get it shown.
        session: The name of a session that the broker keeps while one is away, for one
            subscriber at a time; empty for none.
        version: The version of MQTT, `5` or `3.1.1`.
    """

    url: str | None = None
    login: Login = ANONYMOUS
    session: str = ""
    version: str = "5"

    def check(self) -> None:
        """Check what can be checked before there is a connection.

        Raises:
            ConfigurationError: The broker is none, or the login cannot be used.
        """
        if self.url is not None:
            parse_broker(self.url)
        elif self.login.user is not None or self.login.certificate is not None:
            raise ConfigurationError("name the MQTT broker that the user or certificate is for")
        if self.version not in ("5", "3.1.1"):
            raise ConfigurationError(f"{self.version!r} is no version of MQTT; use 5 or 3.1.1")
        self.login.check()

    def brokers(self, offered: Sequence[str]) -> list[str]:
        """Return the URLs of the brokers that can be used.

        Args:
            offered: The URLs of those that the Source names, some of which we may not know.
        """
        return [self.url] if self.url is not None else list(filter(_is_known, offered))


#: Whatever broker the Source names, as nobody in particular.
BROKERED = Brokered()


class MqttTransport:
    """A subscription at a broker for one topic; a `Transport`.

    Args:
        broker: The broker.
        topic: The URI of the channel.
        options: Who one is there, and what it keeps.
        trusts: Tells whether a host may be at any address.
    """

    def __init__(
        self,
        broker: Broker,
        topic: str,
        options: Brokered,
        *,
        trusts: Callable[[str | None], bool],
    ) -> None:
        self._broker = broker
        self._topic = topic
        self._options = options
        self._trusts = trusts

    async def receive(self, since: Instant | None, listener: Listener) -> None:
        """Subscribe, and tell the listener what arrives until the connection is lost."""
        heard = asyncio.Event()

        def take(message: Message) -> None:
            heard.set()
            listener.fragment(message.payload)

        def ask_the_lists() -> None:
            if not heard.is_set():
                listener.gap()

        session = Session(self._options.session, _EXPIRY) if self._options.session else CLEAN
        async with connect(
            self._broker,
            self._options.login,
            session=session,
            version=self._options.version,
            dial=self._dial,
            take=take,
        ) as connection:
            await connection.subscribe(self._broker.topic(self._topic))
            listener.up()
            proof = asyncio.get_running_loop().call_later(PROOF, ask_the_lists)
            try:
                await connection.lost()
            finally:
                proof.cancel()

    async def _dial(self, host: str, port: int) -> socket.socket:
        trusted = self._options.url is not None or self._trusts(host)
        try:
            return await dial(host, port, trusted=trusted)
        except NotPublic as error:
            raise RefusedAddress(self._broker.url, str(error.strerror)) from None


def _is_known(url: str) -> bool:
    try:
        parse_broker(url)
    except ConfigurationError:
        return False
    return True
