"""Sends logs to new live subscribers."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine
from contextlib import nullcontext
from functools import partial
from typing import Any

from rsnotify.errors import StorageError
from rsnotify.format.datetimes import Instant
from rsnotify.selection import EVERYTHING
from rsnotify_hub.live.selection_groups import SelectionGroup
from rsnotify_hub.live.subscribers import LiveSubscriber, Opening
from rsnotify_hub.log.topic_log import TopicLogs
from rsnotify_hub.refusals import Code, Refusal

logger = logging.getLogger("rsnotify.hub.live")

_Work = Callable[[], Coroutine[Any, Any, None]]


class Replays:
    """Replays logs to new subscribers, and then makes them live."""

    def __init__(self, topics: TopicLogs) -> None:
        self._topics = topics
        self._tasks: set[asyncio.Task[None]] = set()
        self._replay_after = self._start_after  # one bound method shared by all subscribers

    def start(
        self, subscriber: LiveSubscriber, since: Instant | None, group: SelectionGroup | None = None
    ) -> None:
        """Send a subscriber its opening and the log since an instant, then make it live.

        With `group`, the subscriber receives that group's filtered topic.
        """
        subscriber.channel.enter(subscriber)
        subscriber.replay_after = self._replay_after
        self._run(subscriber, partial(self._open, subscriber, since, group))

    def _start_after(self, subscriber: LiveSubscriber, position: int) -> None:
        self._run(subscriber, partial(self._replay, subscriber, None, None, position))

    def _run(self, subscriber: LiveSubscriber, work: _Work) -> None:
        task = asyncio.create_task(_guarded(subscriber, work))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        subscriber.cancel_replay = task.cancel

    async def _open(
        self, subscriber: LiveSubscriber, since: Instant | None, group: SelectionGroup | None
    ) -> None:
        topic = subscriber.topic
        state = self._topics.state(topic)
        has_gap = state is not None and since is not None and since < state.begins
        subscriber.opened(
            Opening(
                topic,
                since,
                group.selection.select if group else EVERYTHING,
                through=state.through if state else None,
                audience=self._topics.audience(topic),
                begins=state.begins if state and has_gap else None,
            )
        )
        position = 0 if since is not None else self._topics.position(topic)
        await self._replay(subscriber, since, group, position)

    async def _replay(
        self,
        subscriber: LiveSubscriber,
        since: Instant | None,
        group: SelectionGroup | None,
        position: int,
    ) -> None:
        connection, encoding, topic = subscriber.connection, subscriber.encoding, subscriber.topic
        newest = self._topics.position(topic)
        subscriber.position = position
        await connection.drain()
        # Replay everything that is in the log now, even entries that the group has yet to send to
        # its live members, because only a replay omits the entries up to `since`.
        while position < (end := self._end(topic, group)) or (group and group.end < newest):
            if group is not None:
                await group.wait_beyond(position)
            async with connection.replay_lock or nullcontext():
                try:
                    if group is None:
                        entries = await self._topics.read(topic, after=position, since=since)
                    else:
                        entries = await group.read(after=position, since=since)
                except StorageError as error:
                    logger.error("cannot replay %s: %s", topic, error)
                    raise Refusal(Code.UNAVAILABLE, "the hub cannot read its log") from None
                data = await encoding.encode_page([entry.fragment for entry in entries])
                connection.send(data)
                subscriber.channel.count_delivered(encoding.transport, data, len(entries))
                subscriber.sent += len(entries)
                await connection.drain()
            position = entries[-1].position if entries else max(position, end)
            subscriber.position = position
        subscriber.cancel_replay = None
        if not connection.has_ended:
            subscriber.channel.join(subscriber)

    def _end(self, topic: str, group: SelectionGroup | None) -> int:
        """Return the position up to which live subscribers have received everything."""
        return self._topics.position(topic) if group is None else group.end


async def _guarded(subscriber: LiveSubscriber, work: _Work) -> None:
    try:
        await work()
    except Refusal as refusal:
        subscriber.refused(refusal)
    except Exception:
        # Close only this connection. Its client will reconnect.
        logger.exception("internal error: a connection failed")
        subscriber.failed()
