"""The list of topics, as JSON: newest first, a page at a time."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable

from msgspec import Struct

from rsnotify.datetimes import format_datetime, parse_datetime, to_microseconds
from rsnotify.mqtt.names import Broker
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


def _order(state: LogState) -> tuple[int, str]:
    """Return what the list is sorted by."""
    return -to_microseconds(state.received), state.topic


def page_of(
    states: Iterable[LogState], *, after: str | None, limit: int
) -> tuple[list[LogState], str | None]:
    """Take a page of the list.

    Args:
        states: All topics.
        after: Where the page before it ended, as it was returned with that.
        limit: How many topics at most.

    Returns:
        The page, and where it ended if there is more.

    Raises:
        Refusal: `after` is not what was returned.
    """
    ordered = sorted(states, key=_order)
    start = 0 if after is None else bisect_right(ordered, _place(after), key=_order)
    page = ordered[start : start + limit]
    more = start + limit < len(ordered)
    return page, _written(page[-1]) if more else None


def _written(state: LogState) -> str:
    return f"{format_datetime(state.received)} {state.topic}"


def _place(after: str) -> tuple[int, str]:
    received, _, topic = after.partition(" ")
    try:
        return -to_microseconds(parse_datetime(received)), topic
    except ValueError:
        raise Refusal(Code.BAD_REQUEST, "after: it is not what a page had as its next") from None


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
        mqtt=None if broker is None else broker.at(state.topic),
    )
