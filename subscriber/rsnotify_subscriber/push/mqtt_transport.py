"""Fragments from an MQTT broker (docs/mqtt.md).

A broker has no log that can be read from a given instant. It retains the newest fragment, and sends
it to each new subscriber. Because a fragment states where it begins, this shows whether anything is
missing. If no fragment arrives, this remains unknown, and the lists are read.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from random import Random

from msgspec import Struct

from rsnotify.errors import ConfigurationError, FetchError, Unavailable
from rsnotify.format.datetimes import Instant
from rsnotify.runtime.mqtt_broker import (
    ANONYMOUS,
    CONTENT_TYPE,
    LEASE,
    Broker,
    BrokerLogin,
    MqttMessage,
    SelectionRequest,
    channel_topic,
    parse_broker,
    request_prefix,
)
from rsnotify.runtime.mqtt_connection import CLEAN_START, BrokerConnection, BrokerSession, connect
from rsnotify.runtime.tasks import first_completed, wait_for_event
from rsnotify.selection import EVERYTHING, PushSelection
from rsnotify.sync.retry import Retry
from rsnotify_subscriber.push.hub_dialer import AddressMemory, HubDialer
from rsnotify_subscriber.push.transport import TransportListener

logger = logging.getLogger("rsnotify.subscriber")

#: Seconds for a broker to send a retained message, and for a hub to send what was requested.
RETAINED_WAIT = 2.0
#: The delays between requests for a part, if the hub ends it each time soon.
_RETRY = Retry(first=0.5, most=60.0)
#: Seconds for which a broker keeps the session of an absent subscriber.
_EXPIRY = 7 * 86_400


class MqttOptions(Struct, frozen=True, kw_only=True):
    """How to connect to MQTT brokers.

    Args:
        url: The broker to use instead of the Source's, or None to use the Source's.
        login: The user or certificate. It requires a `url`, because a Source could name any broker,
            which would then receive the password.
        session: The name of a session that the broker keeps while the subscriber is away, for one
            subscriber at a time. Empty for no such session.
        version: The version of MQTT, `5` or `3.1.1`.
    """

    url: str | None = None
    login: BrokerLogin = ANONYMOUS
    session: str = ""
    version: str = "5"

    def check(self) -> None:
        """Check everything that can be checked before there is a connection.

        Raises:
            ConfigurationError: The URL names no broker, or the login cannot be used.
        """
        if self.url is not None:
            parse_broker(self.url)
        elif self.login.user is not None or self.login.certificate is not None:
            raise ConfigurationError("name the MQTT broker that the user or certificate is for")
        if self.version not in ("5", "3.1.1"):
            raise ConfigurationError(f"{self.version!r} is not a version of MQTT; use 5 or 3.1.1")
        self.login.check()

    def brokers(self, offered: Sequence[str]) -> list[str]:
        """Return the URLs of the brokers to use. Offered URLs of an unknown form are ignored."""
        return [self.url] if self.url is not None else list(filter(_is_known, offered))


#: Any broker that the Source names, without a login.
DEFAULT_MQTT = MqttOptions()


@dataclass
class MqttTransport:
    """A subscription to one topic at a broker. Implements `Transport`.

    Theory of operation. If only a part of the topic is of interest, the transport requests that
    part from the hub behind the broker, and subscribes to the part's name. If nothing arrives under
    that name after a short time, there is no such hub, or the hub offers no more parts. The
    transport then also subscribes to the whole topic, until a message of the part arrives. A broker
    that closes the connection after a request gets no more requests.

    Args:
        trusts: Returns whether a host may be at any address.
        select: The part of the topic that is of interest.
        without_selections: The URLs of brokers that get no requests for a part of a topic.
    """

    broker: Broker
    topic: str
    options: MqttOptions
    trusts: Callable[[str | None], Awaitable[bool]]
    select: PushSelection = EVERYTHING
    without_selections: set[str] = field(default_factory=set)
    memory: AddressMemory = field(default_factory=AddressMemory)

    async def receive(self, since: Instant | None, listener: TransportListener) -> None:
        dialer = HubDialer(self.memory, self._trusts)
        try:
            await self._receive(dialer, listener)
        except ConfigurationError as error:  # a certificate may be about to be replaced
            raise Unavailable(self.broker.url, str(error)) from None
        except FetchError:
            dialer.failed()
            raise

    async def _receive(self, dialer: HubDialer, listener: TransportListener) -> None:
        messages = _TopicMessages(self.broker.topic(self.topic), self._part(), listener)
        session = (
            BrokerSession(self.options.session, _EXPIRY) if self.options.session else CLEAN_START
        )
        async with connect(
            self.broker,
            self.options.login,
            session=session,
            version=self.options.version,
            dial=partial(dialer.dial, self.broker.url),
            on_message=messages.receive,
        ) as connection:
            subscribe = self._subscribe(connection, messages)
            try:
                async with first_completed(subscribe, connection.lost()) as (subscribing, lost):
                    if subscribing.done():
                        subscribing.result()
                    await lost
            except Unavailable:
                if messages.is_unanswered(RETAINED_WAIT):
                    self.without_selections.add(self.broker.url)
                raise

    def _part(self) -> str | None:
        if not self.select or self.broker.url in self.without_selections:
            return None
        return self.broker.filtered_topic(self.topic, self.select)

    async def _subscribe(self, connection: BrokerConnection, messages: _TopicMessages) -> None:
        if messages.part is not None:
            try:
                await connection.subscribe(messages.part)
            except Unavailable as error:
                logger.info("all of %s is received, not a part: %s", self.topic, error)
            else:
                await self._request_forever(connection, messages)
        await self._subscribe_to_whole(connection, messages)

    async def _subscribe_to_whole(
        self, connection: BrokerConnection, messages: _TopicMessages
    ) -> None:
        await connection.subscribe(messages.whole)
        messages.listener.up()
        if not await wait_for_event(messages.received, RETAINED_WAIT):
            messages.listener.gap()

    async def _request_forever(
        self, connection: BrokerConnection, messages: _TopicMessages
    ) -> None:
        """Request the part before each lease ends. Receive the whole while there is no part."""
        random = Random()
        ends = 0
        while True:
            await self._request(connection, messages)
            requested = asyncio.get_running_loop().time()
            messages.listener.up()
            if not await wait_for_event(messages.part_received, RETAINED_WAIT):
                await self._subscribe_to_whole(connection, messages)
            before, ends = ends, 0
            with suppress(TimeoutError):
                async with asyncio.timeout(LEASE * random.uniform(0.25, 0.5)):
                    await messages.part_received.wait()
                    connection.unsubscribe(messages.whole)
                    await messages.part_ended()
                    is_short = asyncio.get_running_loop().time() - requested < _RETRY.most
                    ends = before + 1 if is_short else 0
            if ends > 1:
                await self._subscribe_to_whole(connection, messages)
                await asyncio.sleep(_RETRY.delay(ends - 1, random))

    async def _request(self, connection: BrokerConnection, messages: _TopicMessages) -> None:
        request = SelectionRequest(self.topic, self.select)
        name = channel_topic(self.topic, request_prefix(self.broker.topic_or_prefix))
        messages.requested()
        await connection.publish(
            name, request.encode(), content_type=CONTENT_TYPE, channel=self.topic, retain=False
        )

    async def _trusts(self, host: str | None) -> bool:
        return self.options.url is not None or await self.trusts(host)


@dataclass
class _TopicMessages:
    """Receives messages under either of two names. Any other belongs to an old session."""

    whole: str
    part: str | None
    listener: TransportListener
    received: asyncio.Event = field(default_factory=asyncio.Event)
    #: Whether a message of the part has arrived since the hub last ended the part.
    part_received: asyncio.Event = field(default_factory=asyncio.Event)
    _part_ended: asyncio.Event = field(default_factory=asyncio.Event)
    _requested_at: float | None = None

    def requested(self) -> None:
        self._requested_at = asyncio.get_running_loop().time()

    def is_unanswered(self, seconds: float) -> bool:
        """Return whether a request was made within this many seconds, and nothing has arrived."""
        if self._requested_at is None or self.received.is_set():
            return False
        return asyncio.get_running_loop().time() - self._requested_at < seconds

    async def part_ended(self) -> None:
        """Wait until the hub ends the part."""
        await self._part_ended.wait()
        self._part_ended.clear()
        self.part_received.clear()

    def receive(self, message: MqttMessage) -> None:
        """Receive a message. An empty one means that the hub has ended the part."""
        if message.topic == self.part and not message.payload:
            self._part_ended.set()
        elif message.topic in (self.whole, self.part):
            self.received.set()
            if message.topic == self.part:
                self.part_received.set()
            self.listener.fragment(message.payload)


def _is_known(url: str) -> bool:
    try:
        parse_broker(url)
    except ConfigurationError:
        return False
    return True
