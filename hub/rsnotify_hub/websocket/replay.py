"""The replay of the log to a new subscriber, from its instant on, as fast as it reads."""

from __future__ import annotations

import logging

from rsnotify.errors import ConfigurationError, StorageError
from rsnotify.format.datetimes import Instant
from rsnotify.selection.push_selection import EVERYTHING, PushSelection
from rsnotify_hub.log.store import LogEntry
from rsnotify_hub.log.topic_logs import TopicLogs
from rsnotify_hub.refusals import Code, Refusal
from rsnotify_hub.websocket.frames import (
    GapFrame,
    SubscribedFrame,
    SubscribeFrame,
    document_frames,
    encode,
    instant,
)
from rsnotify_hub.websocket.selections import SelectionGroup
from rsnotify_hub.websocket.subscribers import WebSocketSubscriber

log = logging.getLogger("rsnotify.hub.websocket")


def select_of(frame: SubscribeFrame) -> PushSelection:
    try:
        return (frame.select or EVERYTHING).canonical()
    except ConfigurationError as error:
        raise Refusal(Code.BAD_REQUEST, f"select: {error}") from None


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

    async def read(self, *, after: int, since: Instant | None) -> list[LogEntry]:
        return await self._topics.read(self._topic, after=after, since=since)


async def replay(
    subscriber: WebSocketSubscriber,
    since: Instant | None,
    topics: TopicLogs,
    source: FullReplay | SelectionGroup,
    select: PushSelection,
) -> None:
    """Send a subscriber `subscribed` and the log since an instant, and make it live.

    It has entered the channel; `source` is the part of the logs that it receives, which it was
    granted as `select`.
    """
    connection, topic = subscriber.connection, subscriber.topic
    _send_subscribed(subscriber, since, select, topics)
    newest = topics.position(topic)
    position = 0 if since is not None else newest
    # Everything that is in the log now is sent here, even if live subscribers still wait for it:
    # only here are entries up to `since` left out.
    while position < (end := source.end) or source.is_behind(newest):
        try:
            entries = await source.read(after=position, since=since)
        except StorageError as error:
            log.error("a replay of %s failed: %s", topic, error)
            raise Refusal(Code.UNAVAILABLE, "the hub cannot read its log") from None
        data = document_frames(entry.fragment for entry in entries)
        connection.send(data)
        subscriber.channel.count(data, len(entries))
        await connection.drain()
        position = entries[-1].position if entries else max(position, end)
    subscriber.cancel_replay = None
    if not connection.has_ended:
        subscriber.channel.join(subscriber)


def _send_subscribed(
    subscriber: WebSocketSubscriber, since: Instant | None, select: PushSelection, topics: TopicLogs
) -> None:
    """Send `subscribed`, and `gap` if the log does not reach back to `since`."""
    connection, topic = subscriber.connection, subscriber.topic
    state = topics.state(topic)
    through = instant(state.through if state else None)
    audience = topics.audience(topic)
    frame = SubscribedFrame(topic=topic, through=through, audience=audience, select=select)
    connection.send_text(encode(frame))
    if state is not None and since is not None and since < state.begins:
        begins = instant(state.begins)
        assert begins is not None
        connection.send_text(encode(GapFrame(topic=topic, from_=begins)))
