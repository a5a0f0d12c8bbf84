"""Receives fragments from an MQTT broker (docs/mqtt.md).

A broker has no log, but it sends the newest fragment to each new subscriber as a retained message.
The fragment's coverage shows whether there is a gap. If no retained message arrives, there may be
one, so the lists are read.
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

#: Seconds to wait for a retained message, or for the first message of a filtered topic.
RETAINED_WAIT = 2.0
#: The delays between requests for a filtered topic, if the hub keeps ending it soon.
_RETRY = Retry(first=0.5, most=60.0)
#: Seconds for which a broker keeps the session of a disconnected subscriber.
_SESSION_EXPIRY = 7 * 86_400


class MqttOptions(Struct, frozen=True, kw_only=True):
    """How to connect to MQTT brokers.

    Args:
        url: The broker to use instead of the Source's, or None to use the Source's.
        login: The user or certificate. Requires `url`, so that no Source can direct the password to
            its own broker.
        session: The name of a session that the broker keeps while the subscriber is disconnected.
            Only one subscriber can use it at a time. Empty for no such session.
        version: The version of MQTT, `5` or `3.1.1`.
    """

    url: str | None = None
    login: BrokerLogin = ANONYMOUS
    session: str = ""
    version: str = "5"

    def check(self) -> None:
        """Check the options without connecting.

        Raises:
            ConfigurationError: The URL names no broker, or the login cannot be used.
        """
        if self.url is not None:
            parse_broker(self.url)
        elif self.login.user is not None or self.login.certificate is not None:
            raise ConfigurationError("an MQTT user or certificate requires the URL of the broker")
        if self.version not in ("5", "3.1.1"):
            raise ConfigurationError(f"{self.version!r} is not a version of MQTT; use 5 or 3.1.1")
        self.login.check()

    def brokers(self, offered: Sequence[str]) -> list[str]:
        """Return the URLs of the brokers to use. Invalid offered URLs are ignored."""
        return [self.url] if self.url is not None else list(filter(_is_known, offered))


#: Options for any broker that the Source names, without a login.
DEFAULT_MQTT = MqttOptions()


@dataclass
class MqttTransport:
    """A subscription to one topic at a broker. Implements `Transport`.

    Given a selection, the transport requests a filtered topic from the hub behind the broker, and
    subscribes to it. If nothing arrives there soon, there is no such hub, or it creates no more
    filtered topics. The transport then also subscribes to the whole topic, until a message of the
    filtered topic arrives. It sends no more requests to a broker that disconnects after one.

    Args:
        allows_any_address: As in `Sessions`.
        select: The wanted part of the topic.
        without_selections: The URLs of brokers that receive no requests for filtered topics.
    """

    broker: Broker
    topic: str
    options: MqttOptions
    allows_any_address: Callable[[str | None], Awaitable[bool]]
    select: PushSelection = EVERYTHING
    without_selections: set[str] = field(default_factory=set)
    memory: AddressMemory = field(default_factory=AddressMemory)

    async def receive(self, since: Instant | None, listener: TransportListener) -> None:
        dialer = HubDialer(self.memory, self._allows_any_address)
        try:
            await self._receive(dialer, listener)
        except ConfigurationError as error:  # a certificate file may be incomplete for a moment
            raise Unavailable(self.broker.url, str(error)) from None
        except FetchError:
            dialer.failed()
            raise

    async def _receive(self, dialer: HubDialer, listener: TransportListener) -> None:
        messages = _TopicMessages(self.broker.topic(self.topic), self._filtered_topic(), listener)
        name = self.options.session
        session = BrokerSession(name, _SESSION_EXPIRY) if name else CLEAN_START
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

    def _filtered_topic(self) -> str | None:
        if not self.select or self.broker.url in self.without_selections:
            return None
        return self.broker.filtered_topic(self.topic, self.select)

    async def _subscribe(self, connection: BrokerConnection, messages: _TopicMessages) -> None:
        if messages.filtered is not None:
            try:
                await connection.subscribe(messages.filtered)
            except Unavailable as error:
                logger.info("receiving all of %s, unfiltered: %s", self.topic, error)
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
        """Renew the request before each lease ends. Receive the whole topic while it fails."""
        random = Random()
        ends = 0
        while True:
            await self._request(connection, messages)
            requested = asyncio.get_running_loop().time()
            messages.listener.up()
            if not await wait_for_event(messages.filtered_received, RETAINED_WAIT):
                await self._subscribe_to_whole(connection, messages)
            before, ends = ends, 0
            with suppress(TimeoutError):
                async with asyncio.timeout(LEASE * random.uniform(0.25, 0.5)):
                    await messages.filtered_received.wait()
                    connection.unsubscribe(messages.whole)
                    await messages.wait_for_end()
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

    async def _allows_any_address(self, host: str | None) -> bool:
        return self.options.url is not None or await self.allows_any_address(host)


@dataclass
class _TopicMessages:
    """Receives the messages of a topic and its filtered topic. Others are from an old session."""

    whole: str
    filtered: str | None
    listener: TransportListener
    received: asyncio.Event = field(default_factory=asyncio.Event)
    #: Set when a filtered message arrives, until the hub ends the filtered topic.
    filtered_received: asyncio.Event = field(default_factory=asyncio.Event)
    _filtered_ended: asyncio.Event = field(default_factory=asyncio.Event)
    _requested_at: float | None = None

    def requested(self) -> None:
        self._requested_at = asyncio.get_running_loop().time()

    def is_unanswered(self, seconds: float) -> bool:
        """Return whether a request within these last seconds was not answered by any message."""
        if self._requested_at is None or self.received.is_set():
            return False
        return asyncio.get_running_loop().time() - self._requested_at < seconds

    async def wait_for_end(self) -> None:
        """Wait until the hub ends the filtered topic."""
        await self._filtered_ended.wait()
        self._filtered_ended.clear()
        self.filtered_received.clear()

    def receive(self, message: MqttMessage) -> None:
        """Receive a message. A hub ends a filtered topic with an empty one."""
        if message.topic == self.filtered and not message.payload:
            self._filtered_ended.set()
        elif message.topic in (self.whole, self.filtered):
            self.received.set()
            if message.topic == self.filtered:
                self.filtered_received.set()
            self.listener.fragment(message.payload)


def _is_known(url: str) -> bool:
    try:
        parse_broker(url)
    except ConfigurationError:
        return False
    return True
