"""The replay of the log to a new subscriber, from its instant on, as fast as it reads."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine
from contextlib import nullcontext
from functools import partial
from typing import Any

from rsnotify.errors import StorageError
from rsnotify.format.datetimes import Instant
from rsnotify.selection.push_selection import EVERYTHING, PushSelection
from rsnotify_hub.live.selections import SelectionGroup
from rsnotify_hub.live.subscribers import LiveSubscriber, Opening
from rsnotify_hub.log.topic_logs import TopicLogs
from rsnotify_hub.refusals import Code, Refusal
from rsnotify_hub.store.interface import LogEntry

log = logging.getLogger("rsnotify.hub.live")


_Work = Callable[[], Coroutine[Any, Any, None]]


class FullReplay:
    """A whole log, replayed as a `SelectionGroup` is."""

    def __init__(self, topics: TopicLogs, topic: str) -> None:
        self._topics = topics
        self._topic = topic

    @property
    def end(self) -> int:
        return self._topics.position(self._topic)

    def is_behind(self, position: int) -> bool:
        return False  # every entry of the log was sent when it was appended

    async def wait_beyond(self, position: int) -> None:
        """Return at once: a replay that is not at `end` has something to read."""

    async def read(self, *, after: int, since: Instant | None) -> list[LogEntry]:
        return await self._topics.read(self._topic, after=after, since=since)


class Replays:
    """Sends logs to new subscribers, and makes them live."""

    def __init__(self, topics: TopicLogs) -> None:
        self._topics = topics
        self._tasks: set[asyncio.Task[None]] = set()
        self._again = self._start_after  # one object for all subscribers

    def start(
        self,
        subscriber: LiveSubscriber,
        since: Instant | None,
        group: SelectionGroup | None = None,
        select: PushSelection = EVERYTHING,
    ) -> None:
        """Send a subscriber the state of its topic and the log since an instant; make it live.

        `group` is the part of the log that it receives, which it was granted as `select`; None for
        all of it.
        """
        subscriber.channel.enter(subscriber)
        subscriber.replay_after = self._again
        self._run(subscriber, partial(self._open, subscriber, since, group, select))

    def _start_after(self, subscriber: LiveSubscriber, position: int) -> None:
        source = FullReplay(self._topics, subscriber.topic)
        self._run(subscriber, partial(self._replay, subscriber, None, source, position))

    def _run(self, subscriber: LiveSubscriber, work: _Work) -> None:
        task = asyncio.create_task(_guarded(subscriber, work))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        subscriber.cancel_replay = task.cancel

    async def _open(
        self,
        subscriber: LiveSubscriber,
        since: Instant | None,
        group: SelectionGroup | None,
        select: PushSelection,
    ) -> None:
        topic = subscriber.topic
        state = self._topics.state(topic)
        has_gap = state is not None and since is not None and since < state.begins
        subscriber.opened(
            Opening(
                topic,
                since,
                select if group else EVERYTHING,
                through=state.through if state else None,
                audience=self._topics.audience(topic),
                begins=state.begins if state and has_gap else None,
            )
        )
        source = group or FullReplay(self._topics, topic)
        position = 0 if since is not None else self._topics.position(topic)
        await self._replay(subscriber, since, source, position)

    async def _replay(
        self,
        subscriber: LiveSubscriber,
        since: Instant | None,
        source: FullReplay | SelectionGroup,
        position: int,
    ) -> None:
        connection, encoding, topic = subscriber.connection, subscriber.encoding, subscriber.topic
        newest = self._topics.position(topic)
        await connection.drain()
        # Everything that is in the log now is sent here, even if live subscribers still wait for
        # it: only here are entries up to `since` left out.
        while position < (end := source.end) or source.is_behind(newest):
            await source.wait_beyond(position)
            async with connection.turns or nullcontext():
                try:
                    entries = await source.read(after=position, since=since)
                except StorageError as error:
                    log.error("a replay of %s failed: %s", topic, error)
                    raise Refusal(Code.UNAVAILABLE, "the hub cannot read its log") from None
                data = await encoding.encode_page([entry.fragment for entry in entries])
                connection.send(data)
                subscriber.channel.count(encoding.transport, data, len(entries))
                await connection.drain()
            position = entries[-1].position if entries else max(position, end)
        subscriber.cancel_replay = None
        if not connection.has_ended:
            subscriber.channel.join(subscriber)


async def _guarded(subscriber: LiveSubscriber, work: _Work) -> None:
    try:
        await work()
    except Refusal as refusal:
        subscriber.refused(refusal)
    except Exception:
        # After a fault of the hub, the client reconnects, and the others are not affected.
        log.exception("a connection failed")
        subscriber.failed()
