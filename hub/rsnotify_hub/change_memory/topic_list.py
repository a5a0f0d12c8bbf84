"""The list of topics as JSON: the last changed first, in pages."""

from __future__ import annotations

from msgspec import Struct

from rsnotify.format.datetimes import Instant, format_datetime, parse_datetime
from rsnotify.runtime.mqtt.topics import Broker
from rsnotify.runtime.xmpp.addresses import PubSubService
from rsnotify_hub.refusals import Code, Refusal
from rsnotify_hub.store.interface import LogState


class Brokers(Struct, frozen=True):
    """Where the hub also publishes, as Destinations reach it."""

    mqtt: Broker | None = None
    xmpp: PubSubService | None = None


class TopicRow(Struct, frozen=True):
    """A topic; `changes`, `mqtt` and `xmpp` are the URLs of its changes and at brokers, if any."""

    topic: str
    begins: str
    through: str
    received: str
    kept: int
    size: int
    whole: bool
    changes: str | None
    mqtt: str | None
    xmpp: str | None


def read_cursor(after: str | None) -> tuple[Instant, str] | None:
    """Return the `received` and the topic that a page begins after (`cursor_after`)."""
    if after is None:
        return None
    received, _, topic = after.partition(" ")
    try:
        return parse_datetime(received), topic
    except ValueError:
        raise Refusal(Code.BAD_REQUEST, "after: it is not from the next of a page") from None


def cursor_after(state: LogState) -> str:
    return f"{format_datetime(state.received)} {state.topic}"


def row(state: LogState, changes: str, brokers: Brokers) -> TopicRow:
    return TopicRow(
        topic=state.topic,
        begins=format_datetime(state.begins),
        through=format_datetime(state.through),
        received=format_datetime(state.received),
        kept=state.kept,
        size=state.size,
        whole=state.whole,
        changes=None if state.whole else changes,
        mqtt=None if brokers.mqtt is None else brokers.mqtt.url_for(state.topic),
        xmpp=None if brokers.xmpp is None else brokers.xmpp.url_for(state.topic),
    )
