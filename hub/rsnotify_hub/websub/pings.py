"""Plain WebSub pings (`hub.mode=publish`): the hub fetches the channel itself."""

from __future__ import annotations

import asyncio

import aiohttp

from rsnotify.datetimes import MICROSECOND, Instant
from rsnotify.errors import DocumentError, FetchError, Unavailable
from rsnotify.reading import Limits, read_document
from rsnotify.writing import write_document
from rsnotify_hub.client import exactly, reason_of
from rsnotify_hub.configuration import Configuration
from rsnotify_hub.log.fragments import MERGED_CONTENT_TYPE, Fragment, describe, read_fragment
from rsnotify_hub.log.store import Entry
from rsnotify_hub.log.topics import Topics
from rsnotify_hub.websub.channel_lists import ChangeKey, announce, keys_at, part_after


class Pings:
    """Fetches channels, and appends what is news.

    Args:
        topics: The logs.
        client: The guarded HTTP client.
        configuration: How large documents may be.
    """

    def __init__(
        self, topics: Topics, client: aiohttp.ClientSession, configuration: Configuration
    ) -> None:
        self._topics = topics
        self._client = client
        self._configuration = configuration
        self._limits = Limits(
            document_bytes=configuration.max_channel_bytes, links=configuration.max_links
        )

    async def fetch(self, topic: str) -> None:
        """GET a channel, and append what the log does not have; returns once it is durable.

        Two fetches at once may append overlapping fragments, which changes no Destination.

        Raises:
            FetchError: The channel did not answer with a Change List.
            StorageError: The news could not be kept.
        """
        body, content_type = await self._get(topic)
        through, last = await self._end_of_log(topic)
        try:
            fragment = await asyncio.to_thread(self._news, body, content_type, through, last)
        except DocumentError as error:
            raise FetchError(topic, error.reason) from None
        if fragment is not None:
            await self._topics.publish(topic, fragment)

    async def _end_of_log(self, topic: str) -> tuple[Instant | None, list[Entry]]:
        """Return the instant where the log ends, and the entries that reach it."""
        state = self._topics.state(topic)
        if state is None:
            return None, []
        before = state.through - MICROSECOND
        return state.through, await self._topics.read(topic, after=0, since=before)

    def _news(
        self, body: bytes, content_type: str, through: Instant | None, last: list[Entry]
    ) -> Fragment | None:
        known: set[ChangeKey] = set()
        if through is not None:
            for entry in last:
                known |= keys_at(read_document(entry.fragment.body).resources, through)
        document = read_document(body, limits=self._limits)
        news = part_after(document, through=through, known=known)
        if news is None:
            return None
        if news is not document:
            body, content_type = write_document(news), MERGED_CONTENT_TYPE
        if len(body) > self._configuration.max_fragment_bytes:
            describe(news, body, content_type)
            body, content_type = write_document(announce(news)), MERGED_CONTENT_TYPE
        return read_fragment(body, content_type=content_type, limits=self._limits)

    async def _get(self, topic: str) -> tuple[bytes, str]:
        try:
            async with self._client.get(exactly(topic), allow_redirects=False) as response:
                if response.status != 200:
                    raise Unavailable(topic, f"the channel answers {response.status}")
                if response.headers.get("Content-Encoding", "identity") != "identity":
                    raise Unavailable(topic, "the channel answers with a Content-Encoding")
                chunks, size = [], 0
                async for chunk in response.content.iter_any():
                    chunks.append(chunk)
                    size += len(chunk)
                    if size > self._configuration.max_channel_bytes:
                        raise Unavailable(topic, "the channel's document is too large")
                content_type = response.headers.get("Content-Type", MERGED_CONTENT_TYPE)
                return b"".join(chunks), content_type
        except (aiohttp.ClientError, TimeoutError, OSError, ValueError) as error:
            raise Unavailable(topic, reason_of(error)) from None
