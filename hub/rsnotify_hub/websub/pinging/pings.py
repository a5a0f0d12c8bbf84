"""Plain WebSub pings (`hub.mode=publish`): the hub fetches the topic itself.

Theory of operation. Each topic has at most one fetch at a time. Pings that arrive meanwhile share
the next one, which begins after all of them, so that it sees the change that each announces.
Between two fetches of a topic that anybody may ping there is a pause, for which pings wait.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from weakref import WeakValueDictionary

import aiohttp

from rsnotify.errors import DocumentError, Unavailable
from rsnotify.format.datetimes import Instant
from rsnotify.format.reader import DocumentLimits
from rsnotify.format.timestamp_precision import just_before
from rsnotify.runtime.tasks import cancel
from rsnotify_hub.access.topic_prefixes import is_granted
from rsnotify_hub.config.configuration import IntakeConfig, WebSubConfig
from rsnotify_hub.log.topic_logs import TopicLogs
from rsnotify_hub.refusals import Code, Refusal
from rsnotify_hub.store.interface import LogEntry
from rsnotify_hub.urls import host_of
from rsnotify_hub.websub.pinging.news import NewsReader
from rsnotify_hub.websub.pinging.topic_client import Fetched, TopicClient, Validators

#: How many topics are fetched at once, since each may be held in memory; in all and of one host.
_CONCURRENT, _CONCURRENT_PER_HOST = 16, 4
#: How many topics may be fetched or wait for it.
_MAX_TOPICS = 1000
#: For how many topics the fetched version is remembered.
_MAX_VERSIONS = 10_000

_UNKNOWN = Validators()


class PingHandler:
    def __init__(
        self,
        topics: TopicLogs,
        client: aiohttp.ClientSession,
        websub: WebSubConfig,
        intake: IntakeConfig,
        *,
        open_topics: Sequence[str],
        clock: Callable[[], Instant],
    ) -> None:
        self._topics = topics
        self._clock = clock
        self._open_topics = open_topics
        self._max_open_topics = websub.max_open_topics
        self._pause = websub.ping_seconds
        self._client = TopicClient(
            client,
            max_bytes=websub.max_channel_bytes,
            seconds=websub.callback_seconds,
        )
        limits = DocumentLimits(document_bytes=websub.max_channel_bytes, links=intake.max_links)
        self._reader = NewsReader(limits, intake.max_fragment_bytes)
        self._capacity = asyncio.Semaphore(_CONCURRENT)
        self._hosts: WeakValueDictionary[str, asyncio.Semaphore] = WeakValueDictionary()
        self._waiting: dict[str, asyncio.Future[None]] = {}
        self._working: dict[str, asyncio.Task[None]] = {}
        self._versions: dict[str, tuple[int, Validators]] = {}

    async def fetch(self, topic: str) -> None:
        """GET a topic, and append what is new; return once that is durable.

        Raises:
            Refusal: Too many topics are being fetched, or there are too many open topics.
            Unavailable: The topic did not answer with content that can be passed on.
        """
        if topic not in self._working:
            self._check_capacity(topic)
        if topic not in self._waiting:
            self._waiting[topic] = _retrieved(asyncio.get_running_loop().create_future())
        if topic not in self._working:
            self._working[topic] = asyncio.create_task(self._work(topic))
        await asyncio.shield(self._waiting[topic])

    def _check_capacity(self, topic: str) -> None:
        if len(self._working) >= _MAX_TOPICS:
            raise Refusal(Code.UNAVAILABLE, "too many topics are being fetched; try again later")
        new = self.is_open(topic) and self._topics.state(topic) is None
        if new and len(self._topics.states()) >= self._max_open_topics:
            raise Refusal(Code.UNAVAILABLE, "this hub has too many open topics")

    def is_open(self, topic: str) -> bool:
        return any(is_granted(prefix, topic) for prefix in self._open_topics)

    async def _work(self, topic: str) -> None:
        try:
            while (future := self._waiting.pop(topic, None)) is not None:
                await self._settle(topic, future)
                if self.is_open(topic):
                    await asyncio.sleep(self._pause)
        finally:
            del self._working[topic]

    async def _settle(self, topic: str, future: asyncio.Future[None]) -> None:
        host = self._hosts.setdefault(host_of(topic), asyncio.Semaphore(_CONCURRENT_PER_HOST))
        try:
            # The host comes first: a wait for a slow host must not use up the shared capacity.
            async with host, self._capacity:
                await self._fetch(topic)
        except asyncio.CancelledError:
            future.cancel()
            raise
        except Exception as error:
            future.set_exception(error)
        else:
            future.set_result(None)

    async def _fetch(self, topic: str) -> None:
        fetched = await self._client.fetch(topic, self._version(topic))
        if fetched is None:
            return
        received = self._clock()
        through, last = await self._end_of_log(topic)
        try:
            fragment = await asyncio.to_thread(
                self._reader.news, fetched, through=through, last=last, received=received
            )
            if fragment is not None:
                await self._topics.publish(topic, fragment)
        except DocumentError as error:
            raise Unavailable(topic, error.reason) from None
        self._remember(topic, fetched)

    def _version(self, topic: str) -> Validators:
        """Return the validators of the newest log entry, if it came from a fetch."""
        position, validators = self._versions.get(topic, (0, _UNKNOWN))
        return validators if position == self._topics.position(topic) else _UNKNOWN

    def _remember(self, topic: str, fetched: Fetched) -> None:
        self._versions.pop(topic, None)
        self._versions[topic] = self._topics.position(topic), fetched.validators
        if len(self._versions) > _MAX_VERSIONS:
            del self._versions[next(iter(self._versions))]

    async def _end_of_log(self, topic: str) -> tuple[Instant | None, list[LogEntry]]:
        """Return the instant up to which the log has changes, and the entries that reach it."""
        state = self._topics.state(topic)
        if state is None or state.whole:
            return None, []
        before = just_before(state.through)
        return state.through, await self._topics.read(topic, after=0, since=before)

    async def close(self) -> None:
        """Cancel all fetches; the pings get no answer."""
        for future in self._waiting.values():
            future.cancel()
        await cancel(self._working.values())


def _retrieved(future: asyncio.Future[None]) -> asyncio.Future[None]:
    """Mark any exception as retrieved, since the client that pinged may be gone."""
    future.add_done_callback(lambda done: done.cancelled() or done.exception())
    return future
