"""What a subscriber is sent first: the log from its instant on, as fast as it reads."""

from __future__ import annotations

import logging

from rsnotify.datetimes import Instant, parse_datetime
from rsnotify.errors import StorageError
from rsnotify_hub.log.topics import Topics
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


async def replay(
    subscriber: Subscriber, since: Instant | None, topics: Topics, channel: WebSocketChannel
) -> None:
    """Greet a subscriber, send it the log, and make it live.

    Args:
        subscriber: Who has entered the channel.
        since: The instant to go on from; None for live only.
        topics: The logs.
        channel: What makes it live.

    Raises:
        Refusal: The log cannot be read.
    """
    connection, topic = subscriber.connection, subscriber.topic
    position = _greet(topic, since, connection, topics)
    while position < (end := topics.position(topic)):
        try:
            entries = await topics.read(topic, after=position, since=since)
        except StorageError as error:
            log.error("a replay of %s failed: %s", topic, error)
            raise Refusal(Code.UNAVAILABLE, "the hub cannot read its log") from None
        data = document_frames(entry.fragment for entry in entries)
        connection.send(data)
        channel.count(data, len(entries))
        await connection.drain()
        position = entries[-1].position if entries else end
    subscriber.replaying = None
    if not connection.has_ended:
        channel.join(subscriber)


def _greet(topic: str, since: Instant | None, connection: Connection, topics: Topics) -> int:
    """Send `subscribed`, and `gap` if there is one. Return the position to go on from."""
    state = topics.state(topic)
    through = state.through if state else None
    connection.send_text(encode(Subscribed(topic=topic, through=instant(through))))
    if state is not None and since is not None and since < state.begins:
        begins = instant(state.begins)
        assert begins is not None
        connection.send_text(encode(Gap(topic=topic, from_=begins)))
    return 0 if since is not None or state is None else state.position
