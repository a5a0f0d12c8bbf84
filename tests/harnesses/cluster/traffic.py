"""What is published to the hub, with each answer, and when each fragment had to be sent."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from hashlib import sha256
from itertools import count, cycle

import aiohttp
from msgspec import Struct

from rsnotify.errors import DocumentError
from rsnotify.format.reader import read_document
from rsnotify.runtime.tasks import wait_for_event
from tests.hub.helpers import START, fragment

#: Seconds after which a publisher gives up a request, as usual clients do.
_PATIENCE = 15.0
#: Seconds between two requests with the same fragment; a Source waits as Retry-After says.
_PAUSE = 0.25
_SIZES = (0, 200, 3_000, 40_000)


class Fragment(Struct):
    """A fragment, and the instants at which it was due and acknowledged."""

    body: bytes
    due: float
    acknowledged: float | None = None


class Attempt(Struct, frozen=True):
    """A request that published a fragment, and its answer; no status if there was none."""

    topic: str
    hub: str
    began: float
    seconds: float
    status: int | None
    retry_after: str | None
    trouble: str = ""


class Ledger:
    """Every fragment of every topic, in order."""

    def __init__(self, topics: Sequence[str]) -> None:
        self.topics: dict[str, list[Fragment]] = {topic: [] for topic in topics}
        self.attempts: list[Attempt] = []
        self._places: dict[bytes, tuple[str, range]] = {}

    def add(self, topic: str, due: float) -> Fragment:
        """Write the next fragment of a topic."""
        fragments = self.topics[topic]
        number = len(fragments)
        base = topic.removesuffix("channel.xml").encode()
        filling = b"." * _SIZES[number % 7 % len(_SIZES)]
        body = fragment(number, number + 1).replace(b"https://source.example/data/", base)
        # Event streams leave out the last line end.
        body = body.replace(b"</urlset>", b"<!--%s-->\n</urlset>" % filling).rstrip()
        self._places[sha256(body).digest()] = topic, range(number, number + 1)
        fragments.append(found := Fragment(body, due))
        return found

    def place(self, body: bytes) -> tuple[str, range] | None:
        """Return the topic and the number of a fragment; None if it was not published so.

        Consecutive ones that the hub has merged into one for a callback that lags have several
        numbers.
        """
        return self._places.get(sha256(body).digest()) or self._merged(body)

    def _merged(self, body: bytes) -> tuple[str, range] | None:
        try:
            document = read_document(body)
        except DocumentError:
            return None
        if document.from_ is None or document.until is None:
            return None
        first, end = (
            round((each - START).total_seconds()) for each in (document.from_, document.until)
        )
        for topic, fragments in self.topics.items():
            parts = [read_document(each.body) for each in fragments[first:end]]
            entries = tuple(entry for part in parts for entry in part.resources)
            if (
                len(parts) > 1
                and entries == document.resources
                and parts[0].links == document.links
            ):
                return topic, range(first, end)
        return None

    def due_before(self, instant: float) -> dict[str, int]:
        """Return how many fragments of each topic were due."""
        return {
            topic: sum(each.due <= instant for each in fragments)
            for topic, fragments in self.topics.items()
        }

    def acknowledged(self) -> int:
        every = self.topics.values()
        return sum(each.acknowledged is not None for found in every for each in found)


class Publishing:
    """Publishes to each topic in order, as a Source does: the next once the last is acknowledged.

    Args:
        ledger: Where everything is noted.
        hubs: The URLs of the nodes by their names; after a failure, the next one is used.
        rate: Fragments a second of each topic.
    """

    def __init__(self, ledger: Ledger, hubs: dict[str, str], rate: float) -> None:
        self._ledger = ledger
        self._hubs = hubs
        self._rate = rate
        names = sorted(hubs)
        self._next = dict(zip(names, [*names[1:], names[0]], strict=True))
        self._at = dict(zip(ledger.topics, cycle(names), strict=False))
        self.ends = asyncio.Event()

    async def run(self) -> None:
        """Publish until `ends` is set, and everything is acknowledged."""
        async with _session() as session, asyncio.TaskGroup() as group:
            for topic in self._ledger.topics:
                group.create_task(self._topic(session, topic))

    async def once(self) -> None:
        """Publish one more fragment to each topic."""
        async with _session() as session:
            for topic in self._ledger.topics:
                await self._send(session, topic, time.monotonic())

    async def _topic(self, session: aiohttp.ClientSession, topic: str) -> None:
        began = time.monotonic()
        for number in count():
            due = began + number / self._rate
            if await wait_for_event(self.ends, max(0.0, due - time.monotonic())):
                return
            await self._send(session, topic, due)

    async def _send(self, session: aiohttp.ClientSession, topic: str, due: float) -> None:
        sent = self._ledger.add(topic, due)
        while True:
            hub = self._at[topic]
            attempt = await self._attempt(session, topic, hub, sent.body)
            self._ledger.attempts.append(attempt)
            if attempt.status == 202:
                sent.acknowledged = attempt.began + attempt.seconds
                return
            self._at[topic] = self._next[hub]
            await asyncio.sleep(_PAUSE)

    async def _attempt(
        self, session: aiohttp.ClientSession, topic: str, hub: str, body: bytes
    ) -> Attempt:
        url = self._hubs[hub]
        headers = {
            "Content-Type": "application/xml",
            "Link": f'<{topic}>; rel="self", <{url}websub>; rel="hub"',
        }
        began = time.monotonic()
        status, retry_after, trouble = None, None, ""
        try:
            async with session.post(url + "websub", data=body, headers=headers) as response:
                status, retry_after = response.status, response.headers.get("Retry-After")
                if status != 202:
                    trouble = await response.text()
        except (aiohttp.ClientError, OSError, TimeoutError) as error:
            trouble = type(error).__name__
        return Attempt(topic, hub, began, time.monotonic() - began, status, retry_after, trouble)


def _session() -> aiohttp.ClientSession:
    return aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=_PATIENCE))
