"""The brokers that a Source's hubs state, which the Capability List advertises.

A hub that is given by its base URL states its endpoints in a document. Its HTTP and WebSocket
endpoints are derived from the base URL, since that URL is known to work. Its brokers cannot be
derived from it, so they are read from the document and kept in a file: while a hub does not answer,
the Source keeps advertising the same brokers. Only a valid document of a hub changes them.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from random import Random

import aiohttp
import msgspec

from rsnotify.errors import ConfigurationError
from rsnotify.format.offer import HubDocument
from rsnotify.runtime.addresses import AddressResolver, Connector
from rsnotify.runtime.extensions import MissingExtension
from rsnotify.runtime.transport_extensions import place_of
from rsnotify.sync.retry import Retry
from rsnotify_publisher.files import write_atomically
from rsnotify_publisher.hubs import Hub, url_for_topic

logger = logging.getLogger("rsnotify.publisher")
#: Seconds between two reads of a document, plus up to half of that at random.
READ_INTERVAL = 300.0
RETRY = Retry(first=1.0, most=READ_INTERVAL)
_TIMEOUT = aiohttp.ClientTimeout(total=30.0)
#: Maximum size of a hub's document.
_MAX_BYTES = 65_536


#: The brokers, keyed by the URL of the document that states them.
_Stated = dict[str, tuple[str, ...]]


class StatedBrokers:
    """Reads the brokers for a channel from its hubs' documents, and keeps them in a file."""

    def __init__(self, hubs: Sequence[Hub], topic: str, file: Path) -> None:
        self._documents = tuple(document for hub in hubs for document in hub.documents)
        self._topic = topic
        self._file = file
        self._stated: _Stated = {}
        self._random = Random()

    @property
    def urls(self) -> tuple[str, ...]:
        """The URLs of the channel's topic at the brokers, without duplicates."""
        stated = (url for each in self._documents for url in self._stated.get(each, ()))
        return tuple(dict.fromkeys(url_for_topic(url, self._topic) for url in stated))

    def load(self) -> None:
        """Read the brokers from the file, if it exists and is valid."""
        try:
            found = msgspec.json.decode(self._file.read_bytes(), type=_Stated)
            self._stated = {document: _checked(*urls) for document, urls in found.items()}
        except FileNotFoundError:
            pass
        except (OSError, msgspec.MsgspecError, ConfigurationError) as error:
            logger.warning("%s is unusable and will be replaced: %s", self._file, error)

    async def follow(self, on_change: Callable[[], Awaitable[object]]) -> None:
        """Read the documents regularly until cancelled. Call `on_change` when `urls` changes."""
        if not self._documents:
            return
        # Connections are closed at once, since the documents are rarely read. The operating system
        # resolves names, even if aiodns is installed.
        connector = Connector(force_close=True, resolver=AddressResolver())
        async with (
            aiohttp.ClientSession(timeout=_TIMEOUT, connector=connector) as session,
            asyncio.TaskGroup() as tasks,
        ):
            for document in self._documents:
                tasks.create_task(self._follow_one(session, document, on_change))

    async def _follow_one(
        self,
        session: aiohttp.ClientSession,
        document: str,
        on_change: Callable[[], Awaitable[object]],
    ) -> None:
        failures = 0
        while True:
            try:
                brokers = await _read_brokers(session, document)
                before = self.urls
                if brokers != self._stated.get(document):
                    self._stated[document] = brokers
                    kept = {each: self._stated.get(each, ()) for each in self._documents}
                    write_atomically(self._file, [msgspec.json.encode(kept)])
                if self.urls != before:
                    await on_change()
            except (aiohttp.ClientError, TimeoutError, ValueError, OSError) as error:
                failures += 1
                logger.debug("%s cannot be read: %s", document, error)
                await asyncio.sleep(RETRY.delay(failures, self._random))
            else:
                failures = 0
                await asyncio.sleep(READ_INTERVAL * self._random.uniform(1, 1.5))


async def _read_brokers(session: aiohttp.ClientSession, document: str) -> tuple[str, ...]:
    """Return the brokers that a hub's document states. Raises ValueError if it is invalid."""
    async with session.get(document, allow_redirects=False) as response:
        if response.status != 200:
            raise ValueError(f"the hub answered {response.status}")
        body = b""
        async for part in response.content.iter_any():
            body += part
            if len(body) > _MAX_BYTES:
                raise ValueError(f"it has more than {_MAX_BYTES:,} bytes")
    try:
        found = msgspec.json.decode(body, type=HubDocument)
        brokers = _checked(found.mqtt, found.xmpp)
    except (msgspec.MsgspecError, RecursionError, ConfigurationError) as error:
        raise ValueError(str(error)) from None
    if found.websub is None and found.websocket is None:
        raise ValueError("it does not describe a hub")
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
                raise ConfigurationError(f"{url!r} is not the URL of a broker")
            found.append(url)
    return tuple(found)
