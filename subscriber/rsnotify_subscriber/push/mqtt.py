"""Fragments from an MQTT broker (docs/mqtt.md).

A broker has no log that could be read from an instant on. It has the newest fragment, retained,
and sends it when one subscribes: as a fragment says where it begins, that shows whether anything
is missing. Where nothing comes, nothing is shown, and the lists are read.
"""

from __future__ import annotations

import asyncio
import logging
import socket
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from random import Random

from msgspec import Struct

from rsnotify.errors import ConfigurationError, RefusedAddress, Unavailable
from rsnotify.format.datetimes import Instant
from rsnotify.runtime.mqtt.connect import CLEAN, BrokerSession, connect
from rsnotify.runtime.mqtt.connection import BrokerConnection
from rsnotify.runtime.mqtt.login import ANONYMOUS, BrokerLogin
from rsnotify.runtime.mqtt.messages import MqttMessage
from rsnotify.runtime.mqtt.names import Broker, asking, channel_name, parse_broker
from rsnotify.runtime.mqtt.selection_requests import CONTENT_TYPE, LEASE, SelectionRequest
from rsnotify.selection.push_selection import EVERYTHING, PushSelection
from rsnotify_subscriber.fetching.connections import NotPublic
from rsnotify_subscriber.push.connecting import dial
from rsnotify_subscriber.push.transport import TransportListener

logger = logging.getLogger("rsnotify.subscriber")

#: How long the broker may take to send what it retained, and a hub what was asked for.
RETAINED_WAIT = 2.0
#: How long a broker keeps the session of one that is away, in seconds.
_EXPIRY = 7 * 86_400


class MqttOptions(Struct, frozen=True, kw_only=True):
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
    login: BrokerLogin = ANONYMOUS
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
DEFAULT_MQTT = MqttOptions()


class MqttTransport:
    """A subscription at a broker for one topic; a `Transport`.

    Theory of operation. Where only a part of the topic is of interest, a hub behind the broker is
    asked for it, and the name of that part is subscribed to. If nothing comes under it in a
    moment, there is no such hub, or it makes no more parts: then the name of the whole is
    subscribed to as well, until something comes under that of the part. A broker that ends the
    connection of who asks is not asked again.

    Args:
        broker: The broker.
        topic: The URI of the channel.
        options: Who one is there, and what it keeps.
        trusts: Returns whether a host may be at any address.
        select: What is of interest.
        unasked: The brokers that are not to be asked for a part of a topic.
    """

    def __init__(
        self,
        broker: Broker,
        topic: str,
        options: MqttOptions,
        *,
        trusts: Callable[[str | None], Awaitable[bool]],
        select: PushSelection = EVERYTHING,
        unasked: set[str] | None = None,
    ) -> None:
        self._broker = broker
        self._topic = topic
        self._options = options
        self._trusts = trusts
        self._select = select
        self._unasked = unasked if unasked is not None else set()

    async def receive(self, since: Instant | None, listener: TransportListener) -> None:
        """Subscribe, and tell the listener what arrives until the connection is lost."""
        try:
            await self._receive(listener)
        except ConfigurationError as error:  # a certificate may just be replaced by another
            raise Unavailable(self._broker.url, str(error)) from None

    async def _receive(self, listener: TransportListener) -> None:
        arriving = _Arriving(self._broker.topic(self._topic), self._part(), listener)
        session = BrokerSession(self._options.session, _EXPIRY) if self._options.session else CLEAN
        async with connect(
            self._broker,
            self._options.login,
            session=session,
            version=self._options.version,
            dial=self._dial,
            take=arriving.take,
        ) as connection:
            subscribing = asyncio.create_task(self._subscribe(connection, arriving, listener))
            lost = asyncio.create_task(connection.lost())
            try:
                await asyncio.wait({subscribing, lost}, return_when=asyncio.FIRST_COMPLETED)
                if subscribing.done():
                    subscribing.result()
                await lost
            except Unavailable:
                if arriving.unheard_since(RETAINED_WAIT):
                    self._unasked.add(self._broker.url)
                raise
            finally:
                for task in (subscribing, lost):
                    task.cancel()
                await asyncio.gather(subscribing, lost, return_exceptions=True)

    def _part(self) -> str | None:
        if not self._select or self._broker.url in self._unasked:
            return None
        return self._broker.part(self._topic, self._select)

    async def _subscribe(
        self, connection: BrokerConnection, arriving: _Arriving, listener: TransportListener
    ) -> None:
        if arriving.part is not None:
            try:
                await connection.subscribe(arriving.part)
            except Unavailable as error:
                logger.info("everything of %s is heard of, and no part: %s", self._topic, error)
            else:
                await self._keep_asking(connection, arriving, listener)
        await self._whole(connection, arriving, listener)

    async def _whole(
        self, connection: BrokerConnection, arriving: _Arriving, listener: TransportListener
    ) -> None:
        await connection.subscribe(arriving.whole)
        listener.up()
        if not await _within(RETAINED_WAIT, arriving.heard):
            listener.gap()

    async def _keep_asking(
        self, connection: BrokerConnection, arriving: _Arriving, listener: TransportListener
    ) -> None:
        """Ask now and before each lease ends; and hear of everything while there is no part."""
        random = Random()
        while True:
            await self._ask(connection, arriving)
            listener.up()
            if not await _within(RETAINED_WAIT, arriving.part_heard):
                await self._whole(connection, arriving, listener)
            with suppress(TimeoutError):
                async with asyncio.timeout(LEASE * random.uniform(0.25, 0.5)):
                    await arriving.part_heard.wait()
                    connection.unsubscribe(arriving.whole)
                    await arriving.ended()

    async def _ask(self, connection: BrokerConnection, arriving: _Arriving) -> None:
        ask = SelectionRequest(self._topic, self._select)
        name = channel_name(self._topic, asking(self._broker.name))
        arriving.asked()
        await connection.publish(
            name, ask.encode(), content_type=CONTENT_TYPE, channel=self._topic, retain=False
        )

    async def _dial(self, host: str, port: int) -> socket.socket:
        trusted = self._options.url is not None or await self._trusts(host)
        try:
            return await dial(host, port, trusted=trusted)
        except NotPublic as error:
            raise RefusedAddress(self._broker.url, str(error.strerror)) from None


class _Arriving:
    """Takes what arrives under one of two names; anything else is of an old session.

    Args:
        whole: The name of the whole topic.
        part: The name of the part that is of interest, if there is one.
        listener: Who is told.

    Attributes:
        heard: Whether anything has come.
        part_heard: Whether something of the part has, and it was not ended since.
    """

    def __init__(self, whole: str, part: str | None, listener: TransportListener) -> None:
        self.whole = whole
        self.part = part
        self.heard = asyncio.Event()
        self.part_heard = asyncio.Event()
        self._ended = asyncio.Event()
        self._asked_at: float | None = None
        self._listener = listener

    def asked(self) -> None:
        """Take note that the part was asked for."""
        self._asked_at = asyncio.get_running_loop().time()

    def unheard_since(self, seconds: float) -> bool:
        """Tell whether it was asked for within so many seconds, and nothing has come at all."""
        if self._asked_at is None or self.heard.is_set():
            return False
        return asyncio.get_running_loop().time() - self._asked_at < seconds

    async def ended(self) -> None:
        """Wait until the part is made no longer."""
        await self._ended.wait()
        self._ended.clear()
        self.part_heard.clear()

    def take(self, message: MqttMessage) -> None:
        """Take a message; an empty one says that the part has ended."""
        if message.topic == self.part and not message.payload:
            self._ended.set()
        elif message.topic in (self.whole, self.part):
            self.heard.set()
            if message.topic == self.part:
                self.part_heard.set()
            self._listener.fragment(message.payload)


async def _within(seconds: float, event: asyncio.Event) -> bool:
    """Wait for an event; tell whether it came."""
    with suppress(TimeoutError):
        async with asyncio.timeout(seconds):
            await event.wait()
    return event.is_set()


def _is_known(url: str) -> bool:
    try:
        parse_broker(url)
    except ConfigurationError:
        return False
    return True
