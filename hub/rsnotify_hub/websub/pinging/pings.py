"""Plain WebSub pings (`hub.mode=publish`): the hub fetches the topic itself.

Theory of operation. Each topic has at most one fetch under way. Pings that come meanwhile
share the next one, which begins after all of them, so that it sees what each was sent for. A
topic that anybody may ping rests a while between two fetches; pings wait for its turn.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from weakref import WeakValueDictionary

import aiohttp

from rsnotify.errors import DocumentError, Unavailable
from rsnotify.format.datetimes import MICROSECOND, Instant
from rsnotify.format.reader import DocumentLimits
from rsnotify_hub.access.topic_prefixes import is_granted
from rsnotify_hub.config.configuration import IntakeConfig, WebSubConfig
from rsnotify_hub.log.store import LogEntry
from rsnotify_hub.log.topic_logs import TopicLogs
from rsnotify_hub.refusals import Code, Refusal
from rsnotify_hub.urls import host_of
from rsnotify_hub.websub.pinging.fetching import Fetched, TopicClient, Validators
from rsnotify_hub.websub.pinging.news import Reader

#: How many topics are fetched at once, as each may be held in memory; and of one host.
_AT_ONCE, _AT_HOST = 16, 4
#: How many topics may be fetched, or wait for it.
_MOST = 1000
#: Of how many topics it is remembered which version was fetched.
_REMEMBERED = 10_000

_UNKNOWN = Validators()


class Pings:
    """Fetches topics, and appends what is news.

    Args:
        topics: The logs.
        client: The guarded HTTP client.
        websub: How often a topic may be fetched, and how large it may be.
        intake: The limits of what is published.
        open_topics: Topics, or prefixes of topics, that anybody may ping.
        clock: Returns the current instant.
    """

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
        self._rest = websub.ping_seconds
        self._client = TopicClient(
            client,
            max_bytes=websub.max_channel_bytes,
            seconds=websub.callback_seconds,
        )
        limits = DocumentLimits(document_bytes=websub.max_channel_bytes, links=intake.max_links)
        self._reader = Reader(limits, intake.max_fragment_bytes)
        self._room = asyncio.Semaphore(_AT_ONCE)
        self._hosts: WeakValueDictionary[str, asyncio.Semaphore] = WeakValueDictionary()
        self._waiting: dict[str, asyncio.Future[None]] = {}
        self._working: dict[str, asyncio.Task[None]] = {}
        self._versions: dict[str, tuple[int, Validators]] = {}

    async def fetch(self, topic: str) -> None:
        """GET a topic, and append what the log does not have; returns once it is durable.

        Raises:
            Refusal: Too much is being fetched, or one more open topic would be too many.
            FetchError: The topic did not answer with what can be passed on.
            StorageError: The news could not be kept.
        """
        if topic not in self._working:
            self._check_room(topic)
        if topic not in self._waiting:
            self._waiting[topic] = _heeded(asyncio.get_running_loop().create_future())
        if topic not in self._working:
            self._working[topic] = asyncio.create_task(self._work(topic))
        await asyncio.shield(self._waiting[topic])

    def _check_room(self, topic: str) -> None:
        if len(self._working) >= _MOST:
            raise Refusal(Code.UNAVAILABLE, "too many topics are being fetched; try again later")
        new = self.is_open(topic) and self._topics.state(topic) is None
        if new and len(self._topics.states()) >= self._max_open_topics:
            raise Refusal(Code.UNAVAILABLE, "this hub has no room for one more open topic")

    def is_open(self, topic: str) -> bool:
        """Tell whether anybody may have a topic fetched."""
        return any(is_granted(prefix, topic) for prefix in self._open_topics)

    async def _work(self, topic: str) -> None:
        try:
            while (future := self._waiting.pop(topic, None)) is not None:
                await self._serve(topic, future)
                if self.is_open(topic):
                    await asyncio.sleep(self._rest)
        finally:
            del self._working[topic]

    async def _serve(self, topic: str, future: asyncio.Future[None]) -> None:
        host = self._hosts.setdefault(host_of(topic), asyncio.Semaphore(_AT_HOST))
        try:
            # Who waits for a host that hangs must hold no place that another could have.
            async with host, self._room:
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
        """Return what tells the version that the log has, unless something else came since."""
        position, validators = self._versions.get(topic, (0, _UNKNOWN))
        return validators if position == self._topics.position(topic) else _UNKNOWN

    def _remember(self, topic: str, fetched: Fetched) -> None:
        self._versions.pop(topic, None)
        self._versions[topic] = self._topics.position(topic), fetched.validators
        if len(self._versions) > _REMEMBERED:
            del self._versions[next(iter(self._versions))]

    async def _end_of_log(self, topic: str) -> tuple[Instant | None, list[LogEntry]]:
        """Return the instant where the log of changes ends, and the entries that reach it."""
        state = self._topics.state(topic)
        if state is None or state.whole:
            return None, []
        before = state.through - MICROSECOND
        return state.through, await self._topics.read(topic, after=0, since=before)

    async def close(self) -> None:
        """Give up what is being fetched; whoever pinged gets no answer."""
        tasks = list(self._working.values())
        for each in (*tasks, *self._waiting.values()):
            each.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


def _heeded(future: asyncio.Future[None]) -> asyncio.Future[None]:
    """Let nobody complain of an error where whoever pinged has gone."""
    future.add_done_callback(lambda done: done.cancelled() or done.exception())
    return future
