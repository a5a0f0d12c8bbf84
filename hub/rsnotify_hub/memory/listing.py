"""The list of topics, as JSON: newest first, a page at a time."""

from __future__ import annotations

from msgspec import Struct

from rsnotify.format.datetimes import Instant, format_datetime, parse_datetime
from rsnotify.runtime.mqtt.topics import Broker
from rsnotify_hub.log.store import LogState
from rsnotify_hub.refusals import Code, Refusal


class TopicRow(Struct, frozen=True):
    """A topic.

    Args:
        topic: Its URI.
        begins: How far its log goes back.
        through: Where it ends.
        received: When something came last.
        kept: How many fragments are kept.
        size: How many bytes they are.
        whole: Whether it is a topic's whole content, not changes.
        changes: Where its changes are; None where it has none.
        mqtt: Where it is at an MQTT broker; None where there is none.
    """

    topic: str
    begins: str
    through: str
    received: str
    kept: int
    size: int
    whole: bool
    changes: str | None
    mqtt: str | None


def read_place(after: str | None) -> tuple[Instant, str] | None:
    """Read where a page begins.

    Args:
        after: The place of the topic before, as `place_of` wrote it; None for the first page.

    Raises:
        Refusal: It is not what that wrote.
    """
    if after is None:
        return None
    received, _, topic = after.partition(" ")
    try:
        return parse_datetime(received), topic
    except ValueError:
        raise Refusal(Code.BAD_REQUEST, "after: it is not what a page had as its next") from None


def place_of(state: LogState) -> str:
    """Return what says where the next page begins, behind this topic."""
    return f"{format_datetime(state.received)} {state.topic}"


def row(state: LogState, changes: str, broker: Broker | None) -> TopicRow:
    """Return what is told of a topic.

    Args:
        state: Its log.
        changes: Where its changes are.
        broker: The MQTT broker that others reach, if there is one.
    """
    return TopicRow(
        topic=state.topic,
        begins=format_datetime(state.begins),
        through=format_datetime(state.through),
        received=format_datetime(state.received),
        kept=state.kept,
        size=state.size,
        whole=state.whole,
        changes=None if state.whole else changes,
        mqtt=None if broker is None else broker.url_for(state.topic),
    )
