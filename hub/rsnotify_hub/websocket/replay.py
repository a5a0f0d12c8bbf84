"""What a subscriber is sent first: the log from its instant on, as fast as it reads."""

from __future__ import annotations

import logging
from typing import Protocol

from rsnotify.errors import ConfigurationError, StorageError
from rsnotify.format.datetimes import Instant, parse_datetime
from rsnotify.selection.push_selection import EVERYTHING, PushSelection
from rsnotify_hub.log.store import LogEntry
from rsnotify_hub.log.topic_logs import TopicLogs
from rsnotify_hub.refusals import Code, Refusal
from rsnotify_hub.websocket.connection import Connection
from rsnotify_hub.websocket.frames import (
    Gap,
    Subscribe,
    Subscribed,
    document_frames,
    encode,
    instant,
)
from rsnotify_hub.websocket.subscribers import Subscriber, WebSocketChannel

log = logging.getLogger("rsnotify.hub.websocket")


def since_of(frame: Subscribe) -> Instant | None:
    """Return the instant that a subscriber asks to go on from; None for live only.

    Raises:
        Refusal: It is none.
    """
    try:
        return None if frame.since is None else parse_datetime(frame.since)
    except ValueError as error:
        raise Refusal(Code.BAD_REQUEST, f"since: {error}") from None


def select_of(frame: Subscribe) -> PushSelection:
    """Return what a subscriber asks for, in its canonical form.

    Raises:
        Refusal: It cannot be asked for.
    """
    try:
        return (frame.select or EVERYTHING).canonical()
    except ConfigurationError as error:
        raise Refusal(Code.BAD_REQUEST, f"select: {error}") from None


class Feed(Protocol):
    """A log, or a part of it."""

    @property
    def end(self) -> int:
        """The position from which on one is live."""

    def lags(self, position: int) -> bool:
        """Tell whether those who are live are still to be sent what stands up to a position."""

    async def read(self, *, after: int, since: Instant | None) -> list[LogEntry]:
        """Read on, as far as `end` (`TopicLogs.read`); where that is not beyond, let it move first.

        Raises:
            StorageError: The store cannot be read.
        """


class Whole:
    """All of a log (a `Feed`).

    Args:
        topics: The logs.
        topic: Whose.
    """

    def __init__(self, topics: TopicLogs, topic: str) -> None:
        self._topics = topics
        self._topic = topic

    @property
    def end(self) -> int:
        """The position of its last entry."""
        return self._topics.position(self._topic)

    def lags(self, position: int) -> bool:
        """Say no: what is in the log was sent."""
        return False

    async def read(self, *, after: int, since: Instant | None) -> list[LogEntry]:
        """Read on (`TopicLogs.read`)."""
        return await self._topics.read(self._topic, after=after, since=since)


async def replay(
    subscriber: Subscriber,
    since: Instant | None,
    topics: TopicLogs,
    feed: Feed,
    select: PushSelection,
    channel: WebSocketChannel,
) -> None:
    """Greet a subscriber, send it the log, and make it live.

    Args:
        subscriber: Who has entered the channel.
        since: The instant to go on from; None for live only.
        topics: The logs.
        feed: What it gets of them.
        select: What it was granted to get no more than.
        channel: What makes it live.

    Raises:
        Refusal: The log cannot be read.
    """
    connection, topic = subscriber.connection, subscriber.topic
    _greet(topic, since, select, connection, topics)
    newest = topics.position(topic)
    position = 0 if since is not None else newest
    # All that the log has by now is sent here, also where others are still to be sent it: only
    # here is left out what is not beyond the instant.
    while position < (end := feed.end) or feed.lags(newest):
        try:
            entries = await feed.read(after=position, since=since)
        except StorageError as error:
            log.error("a replay of %s failed: %s", topic, error)
            raise Refusal(Code.UNAVAILABLE, "the hub cannot read its log") from None
        data = document_frames(entry.fragment for entry in entries)
        connection.send(data)
        channel.count(data, len(entries))
        await connection.drain()
        position = entries[-1].position if entries else max(position, end)
    subscriber.replaying = None
    if not connection.has_ended:
        channel.join(subscriber)


def _greet(
    topic: str,
    since: Instant | None,
    select: PushSelection,
    connection: Connection,
    topics: TopicLogs,
) -> None:
    """Send `subscribed`, and `gap` if there is one."""
    state = topics.state(topic)
    through = instant(state.through if state else None)
    audience = topics.audience(topic)
    frame = Subscribed(topic=topic, through=through, audience=audience, select=select)
    connection.send_text(encode(frame))
    if state is not None and since is not None and since < state.begins:
        begins = instant(state.begins)
        assert begins is not None
        connection.send_text(encode(Gap(topic=topic, from_=begins)))
