"""Formats responses of the admin API as text tables.

A table maps the heading of each column to the name of a field, or to a function of the row.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import datetime
from typing import Any

from rsnotify.errors import counted
from rsnotify.format.datetimes import format_datetime
from rsnotify_hub.admin import schemas
from rsnotify_hub.admin.schemas import PartState, StatusInfo, SubscriptionDetails
from rsnotify_hub.store.nodes import CopyInfo, NodeInfo, NodeList, StreamInfo

_Columns = Mapping[str, str | Callable[[Any], str]]

_STATUS: _Columns = {
    "version": "version",
    "started": "started",
    "now": "now",
    "nodes": "nodes",
    "topics": "topics",
    "subscriptions": "subscriptions",
    "subscribers": lambda row: _subscribers(row),
    "sources": lambda row: f"{counted(row.publishers, 'WebSocket')}, {row.silent:,} silent",
    "accepted": lambda row: (
        f"{counted(row.accepted, 'fragment')}, {counted(row.accepted_bytes, 'byte')}"
    ),
    "log": lambda row: counted(row.log_bytes, "byte"),
    "connections": "connections",
    "queues": lambda row: _queues(row),
}
_PARTS = {
    PartState.IN_ORDER: "in order",
    PartState.WATCH: "needs attention",
    PartState.TROUBLE: "in trouble",
}
_NODES: _Columns = {
    "node": lambda row: f"{row.name} (this)" if row.this else row.name,
    "url": "url",
    "version": "version",
    "started": "started",
    "shards": lambda row: f"{row.shards:,}",
    "behind": lambda row: "-" if row.behind is None else f"{row.behind:,}",
    "nats": lambda row: row.server or "-",
    "state": lambda row: _state(row),
}
_TOPICS: _Columns = {
    "ID": "id",
    "THROUGH": "through",
    "KEPT": "kept",
    "RATE": "rate",
    "WEBSOCKETS": "websockets",
    "STREAMS": "event_streams",
    "SUBSCRIPTIONS": "subscriptions",
    "TOPIC": "topic",
}
_SUBSCRIPTIONS: _Columns = {
    "ID": "id",
    "STATE": "state",
    "LAG": "lag_seconds",
    "BEHIND": "behind",
    "FAILURES": "failures",
    "CALLBACK": lambda row: row.callback or row.host,
    "TOPIC": "topic",
    "LAST FAILURE": lambda row: row.last_failure.reason if row.last_failure else "",
}
_CONNECTIONS: _Columns = {
    "ID": "id",
    "ROLE": "role",
    "STATE": "state",
    "ADDRESS": "address",
    "SINCE": "since",
    "LAG": "lag_seconds",
    "BEHIND": "behind",
    "UNSENT": lambda row: f"{row.unsent:,}",
    "SENT": "sent",
    "RECEIVED": "received",
    "OVER": "transport",
    "CLIENT": lambda row: row.agent or "-",
    "TOPICS": lambda row: _topics(row),
}
_ATTEMPTS: _Columns = {
    "AT": "at",
    "SECONDS": lambda row: f"{row.seconds:.3f}",
    "LOG": lambda row: f"{row.after}-{row.through}",
    "BYTES": lambda row: f"{row.size:,}",
    "OUTCOME": "reason",
    "ANSWER": lambda row: _excerpt(row),
}
_FAILURES: _Columns = {
    "AT": "at",
    "ID": "id",
    "CALLBACK": lambda row: row.callback or row.host,
    "TOPIC": "topic",
    "REASON": "reason",
    "ANSWER": lambda row: _excerpt(row),
}
_DEAD_LETTERS: _Columns = {
    "ID": "id",
    "GIVEN UP": "given_up_since",
    "FRAGMENTS": "fragments",
    "FROM": "from_",
    "UNTIL": "until",
    "HOST": "host",
    "TOPIC": "topic",
}


def status(value: StatusInfo) -> Iterator[str]:
    if value.parts:
        yield from aligned([(_PARTS[each.state], each.name, each.text) for each in value.parts])
        yield ""
    facts = [(head, _cell(value, column)) for head, column in _STATUS.items()]
    counts = [
        (f"deliveries {transport} {outcome}", str(count))
        for transport, outcomes in sorted(value.deliveries.items())
        for outcome, count in sorted(outcomes.items())
        if count
    ]
    yield from aligned([*facts, *_brokers(value), *_disk(value), *counts])


def _subscribers(value: StatusInfo) -> str:
    counts = (
        counted(value.websocket_subscribers, "WebSocket"),
        counted(value.event_streams, "event stream"),
        counted(value.subscriptions, "callback"),
    )
    others = "; the readers of brokers are unknown" if value.brokers else ""
    return f"{value.subscribers:,}: {', '.join(counts)}{others}"


def _queues(value: StatusInfo) -> str:
    deliveries = counted(value.delivery_queue, "delivery", "deliveries")
    writes = counted(value.commit_queue, "write")
    return f"{deliveries}, {writes}, {counted(value.live_queue, 'byte')} to live connections"


def _brokers(value: StatusInfo) -> Iterator[tuple[str, str]]:
    for transport, broker in value.brokers.items():
        state = "connected" if broker.connected else "not connected"
        if broker.since is not None:
            state += f" since {format_datetime(broker.since)}"
        reason = f": {broker.error}" if broker.error else ""
        yield f"{transport} broker", f"{state}, {counted(broker.behind, 'topic')} behind{reason}"


def _disk(value: StatusInfo) -> Iterator[tuple[str, str]]:
    if value.disk is not None:
        yield "disk", f"{value.disk.free:,} of {counted(value.disk.size, 'byte')} free"


def nodes(found: NodeList) -> Iterator[str]:
    yield from _table(_NODES, found.rows)
    if found.stream is not None:
        yield from _stream(found, found.stream)


def _state(row: NodeInfo) -> str:
    if row.alive is None:
        return "unknown"
    if not row.alive:
        return "fenced" if row.this else "dead"
    return "draining" if row.draining else "running"


def _step(copy: CopyInfo) -> str:
    if not copy.online:
        return "offline"
    if copy.current:
        return "current"
    return f"{copy.behind:,} behind" if copy.behind else "not current"


def _stream(found: NodeList, stream: StreamInfo) -> Iterator[str]:
    yield ""
    free = "an unknown number" if found.free is None else f"{found.free:,}"
    yield f"{free} of {counted(found.shards, 'shard')} without a node"
    if stream.trouble is not None:
        yield f"in trouble: {stream.trouble}"
    yield f"stream {stream.name}: {counted(stream.records, 'record')}"
    rows = [(copy.name, "leader" if copy.leader else "copy", _step(copy)) for copy in stream.copies]
    if rows:
        yield from aligned(rows)
    for warning in stream.warnings:
        yield f"warning: {warning}"


def topics(page: schemas.TopicList) -> Iterator[str]:
    yield from _table(_TOPICS, page.topics, page.total)


def subscriptions(page: schemas.SubscriptionList) -> Iterator[str]:
    if not page.subscriptions:
        yield "none over WebSub; `rsnotify hub connections` lists the readers of other transports"
        return
    yield from _table(_SUBSCRIPTIONS, page.subscriptions, page.total)


def subscription(row: schemas.SubscriptionInfo) -> Iterator[str]:
    yield from _table(_SUBSCRIPTIONS, (row,))


def details(found: SubscriptionDetails) -> Iterator[str]:
    yield from subscription(found.subscription)
    yield f"callback {found.callback}"
    if found.since is not None:
        yield f"attempts since {format_datetime(found.since)}"
    yield from _table(_ATTEMPTS, found.attempts)


def connections(page: schemas.ConnectionList) -> Iterator[str]:
    yield from _table(_CONNECTIONS, page.connections, page.total)
    for transport in page.brokers:
        yield f"readers over {transport.upper()} connect to the broker, and are not listed"


def _topics(row: schemas.ConnectionInfo) -> str:
    more = row.topic_count - len(row.topics[:1])
    return f"{row.topics[0]} and {more:,} more" if row.topics and more else " ".join(row.topics)


def failures(found: schemas.FailureList) -> Iterator[str]:
    yield from _table(_FAILURES, found.failures)


def dead_letters(page: schemas.DeadLetterList) -> Iterator[str]:
    yield from _table(_DEAD_LETTERS, page.dead_letters, page.total)


def _excerpt(failure: schemas.SubscriptionFailure | schemas.FailureInfo) -> str:
    return " ".join(failure.excerpt.split())[:60]


def _table(columns: _Columns, rows: Sequence[object], total: int = 0) -> Iterator[str]:
    if not rows:
        yield "none"
        return
    cells = ([_cell(row, column) for column in columns.values()] for row in rows)
    yield from aligned([[*columns], *cells])
    if total > len(rows):
        yield f"and {total - len(rows)} more (--limit)"


def _cell(row: object, column: str | Callable[[Any], str]) -> str:
    if callable(column):
        return column(row)
    match getattr(row, column):
        case None:
            return "-"
        case datetime() as instant:
            return format_datetime(instant)
        case float() as number:
            return f"{number:.1f}"
        case value:
            return str(value)


def aligned(rows: Sequence[Sequence[str]]) -> Iterator[str]:
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for row in rows:
        cells = (cell.ljust(width) for cell, width in zip(row, widths, strict=True))
        yield "  ".join(cells).rstrip()
