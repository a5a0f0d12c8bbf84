"""Publishes fragments at brokers, and reads from hubs which brokers they have.

The Source can publish at a broker with or without a hub behind it (docs/mqtt.md, docs/xmpp.md). A
broker does not report its cursor, so the Source keeps one. It moves forward as the broker
acknowledges fragments, in the order in which they were sent.

The Capability List also advertises the brokers that the Source's hubs state. A hub that is given by
its base URL states its endpoints in a document. Its HTTP and WebSocket endpoints are advertised as
derived from the base URL, since that URL is known to work. Its brokers cannot be derived from it,
so they are read from the document. They are kept in a file, so that a Source whose hub does not
answer keeps advertising the same brokers. Only a valid document changes them. An error, a document
of another kind, or a hub that is down does not.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from contextlib import aclosing
from functools import partial
from pathlib import Path
from random import Random
from typing import Any

import aiohttp
import msgspec

from rsnotify.errors import ConfigurationError, ConnectionRefused
from rsnotify.format.offer import HubDocument
from rsnotify.runtime.addresses import AddressResolver, Connector, Dialer
from rsnotify.runtime.extensions import MissingExtension
from rsnotify.runtime.mqtt_broker import BrokerLogin, parse_broker
from rsnotify.runtime.mqtt_connection import connect
from rsnotify.runtime.transport_extensions import place_of
from rsnotify.sync.retry import Retry
from rsnotify_publisher.files import write_atomically
from rsnotify_publisher.hubs import Hub, url_for_topic
from rsnotify_publisher.push.hub_feed import HubFeed, OutgoingFragment

_log = logging.getLogger("rsnotify.publisher")

_XML = "application/xml"
_Sent = asyncio.Queue[tuple[OutgoingFragment, asyncio.Future[None]]]
#: Sends a fragment, and returns a future that is done when the broker has acknowledged it.
Publish = Callable[[bytes], Awaitable[asyncio.Future[None]]]


async def feed_by_mqtt(hub: Hub, topic: str, feed: HubFeed, dialer: Dialer) -> None:
    """Feed an MQTT broker until an error occurs. Always raises Unavailable in the end."""
    broker = parse_broker(hub.uri)
    assert isinstance(hub.login, BrokerLogin)
    dial = dialer.dial if broker.path is None else None  # a WebSocket may need a proxy
    async with connect(broker, hub.login, version=hub.version, dial=dial) as connection:
        name = broker.topic(topic)
        publish = partial(connection.publish, name, content_type=_XML, channel=topic)
        await feed_broker(connection.lost(), publish, feed)


async def feed_broker(lost: Coroutine[Any, Any, None], publish: Publish, feed: HubFeed) -> None:
    """Send fragments, and confirm to the feed those that the broker has acknowledged.

    `lost` raises Unavailable when the connection ends.
    """
    sent: _Sent = asyncio.Queue()
    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(lost)
        tasks.create_task(_confirm(sent, feed))
        tasks.create_task(_send(publish, feed, sent))


async def _send(publish: Publish, feed: HubFeed, sent: _Sent) -> None:
    async with aclosing(feed.fragments()) as fragments:
        async for fragment in fragments:
            try:
                taken = await publish(fragment.body)
            except ConnectionRefused as error:
                taken = asyncio.get_running_loop().create_future()
                taken.set_exception(error)
            sent.put_nowait((fragment, taken))


async def _confirm(sent: _Sent, feed: HubFeed) -> None:
    while True:
        fragment, taken = await sent.get()
        try:
            await taken
        except ConnectionRefused as error:
            if not error.is_final:
                raise
            # A retry cannot succeed. Destinations detect the gap and read the Change List.
            _log.warning("a fragment was left out: %s", error)
        feed.accepted(fragment.until)


#: Seconds between two reads of a document, plus up to half of that at random.
EVERY = 300.0
RETRY = Retry(first=1.0, most=EVERY)
_TIMEOUT = aiohttp.ClientTimeout(total=30.0)
_MAX_BYTES = 65_536

#: The brokers, keyed by the URL of the document that states them.
_Stated = dict[str, tuple[str, ...]]


class StatedBrokers:
    """Reads the brokers of a channel from its hubs' documents, and keeps them in a file."""

    def __init__(self, hubs: Sequence[Hub], topic: str, file: Path) -> None:
        self._documents = tuple(document for hub in hubs for document in hub.documents)
        self._topic = topic
        self._file = file
        self._stated: _Stated = {}
        self._random = Random()

    @property
    def urls(self) -> tuple[str, ...]:
        """The URLs of the brokers with the channel's topic, without duplicates."""
        stated = (url for each in self._documents for url in self._stated.get(each, ()))
        return tuple(dict.fromkeys(url_for_topic(url, self._topic) for url in stated))

    def load(self) -> None:
        """Read the brokers from the file, if there is a usable one."""
        try:
            found = msgspec.json.decode(self._file.read_bytes(), type=_Stated)
            self._stated = {document: _checked(*urls) for document, urls in found.items()}
        except FileNotFoundError:
            pass
        except (OSError, msgspec.MsgspecError, ConfigurationError) as error:
            _log.warning("%s cannot be used, and is written again: %s", self._file, error)

    async def follow(self, changed: Callable[[], Awaitable[object]]) -> None:
        """Read the documents regularly until cancelled. Call `changed` when `urls` has changed."""
        if not self._documents:
            return
        # Connections are not kept open, since the documents are rarely read. The operating system
        # resolves names, even if aiodns is installed.
        connector = Connector(force_close=True, resolver=AddressResolver())
        async with (
            aiohttp.ClientSession(timeout=_TIMEOUT, connector=connector) as session,
            asyncio.TaskGroup() as tasks,
        ):
            for document in self._documents:
                tasks.create_task(self._follow(session, document, changed))

    async def _follow(
        self,
        session: aiohttp.ClientSession,
        document: str,
        changed: Callable[[], Awaitable[object]],
    ) -> None:
        failures = 0
        while True:
            try:
                brokers = await _read(session, document)
                before = self.urls
                if brokers != self._stated.get(document):
                    self._stated[document] = brokers
                    kept = {each: self._stated.get(each, ()) for each in self._documents}
                    write_atomically(self._file, [msgspec.json.encode(kept)])
                if self.urls != before:
                    await changed()
            except (aiohttp.ClientError, TimeoutError, ValueError, OSError) as error:
                failures += 1
                _log.debug("%s cannot be read: %s", document, error)
                await asyncio.sleep(RETRY.delay(failures, self._random))
            else:
                failures = 0
                await asyncio.sleep(EVERY * self._random.uniform(1, 1.5))


async def _read(session: aiohttp.ClientSession, document: str) -> tuple[str, ...]:
    """Return the brokers that a hub's document states, or raise ValueError if it is unusable."""
    async with session.get(document, allow_redirects=False) as response:
        if response.status != 200:
            raise ValueError(f"it answered {response.status}")
        body = b""
        async for part in response.content.iter_any():
            body += part
            if len(body) > _MAX_BYTES:
                raise ValueError("it is too long")
    try:
        found = msgspec.json.decode(body, type=HubDocument)
        brokers = _checked(found.mqtt, found.xmpp)
    except (msgspec.MsgspecError, RecursionError, ConfigurationError) as error:
        raise ValueError(str(error)) from None
    if found.websub is None and found.websocket is None:
        raise ValueError("it is not a document of a hub")
    return brokers


def _checked(*urls: str | None) -> tuple[str, ...]:
    """Return the URLs that are not None and whose transports are installed.

    Raises:
        ConfigurationError: A URL does not name a broker.
    """
    found = []
    for url in urls:
        if url is not None:
            try:
                place = place_of(url)
            except MissingExtension:  # without it, the channel's name at the broker is unknown
                continue
            if place is None:
                raise ConfigurationError(f"{url!r} names no broker")
            found.append(url)
    return tuple(found)
