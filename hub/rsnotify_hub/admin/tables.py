"""The answers of the administration API as tables of text."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from rsnotify.errors import counted
from rsnotify.format.datetimes import Instant, format_datetime
from rsnotify_hub.admin import schemas
from rsnotify_hub.admin.schemas import (
    StatusInfo,
    SubscriptionDetails,
)
from rsnotify_hub.store.nodes import CopyInfo, NodeInfo, NodeList, StreamInfo


def status(value: StatusInfo) -> Iterator[str]:
    counts = [
        (f"deliveries {way} {outcome}", str(count))
        for way, outcomes in sorted(value.deliveries.items())
        for outcome, count in sorted(outcomes.items())
        if count
    ]
    facts = [
        ("version", value.version),
        ("started", format_datetime(value.started)),
        ("now", format_datetime(value.now)),
        ("nodes", str(value.nodes)),
        ("topics", str(value.topics)),
        ("subscriptions", str(value.subscriptions)),
        ("websockets", str(value.websockets)),
        ("event streams", str(value.event_streams)),
        (
            "accepted",
            f"{counted(value.accepted, 'fragment')}, {counted(value.accepted_bytes, 'byte')}",
        ),
        ("log", counted(value.log_bytes, "byte")),
        ("silent sources", str(value.silent)),
        ("connections", str(value.connections)),
        ("queues", _queues(value)),
        *_brokers(value),
        *_disk(value),
        *counts,
    ]
    yield from aligned(facts)


def _queues(value: StatusInfo) -> str:
    deliveries = counted(value.delivery_queue, "delivery", "deliveries")
    writes = counted(value.commit_queue, "write")
    return f"{deliveries}, {writes}, {counted(value.live_queue, 'byte')} to live connections"


def _brokers(value: StatusInfo) -> Iterator[tuple[str, str]]:
    for way, broker in value.brokers.items():
        state = "connected" if broker.connected else "not connected"
        if broker.since is not None:
            state += f" since {format_datetime(broker.since)}"
        why = f": {broker.error}" if broker.error else ""
        yield f"{way} broker", f"{state}, {counted(broker.behind, 'topic')} behind{why}"


def _disk(value: StatusInfo) -> Iterator[tuple[str, str]]:
    if value.disk is not None:
        yield "disk", f"{value.disk.free:,} of {counted(value.disk.size, 'byte')} free"


def nodes(found: NodeList) -> Iterator[str]:
    rows = [
        (
            f"{row.name} (this)" if row.this else row.name,
            row.url,
            row.version,
            _instant(row.started),
            f"{row.shards:,}",
            "-" if row.behind is None else f"{row.behind:,}",
            row.server or "-",
            _state(row),
        )
        for row in found.rows
    ]
    heads = ("node", "url", "version", "started", "shards", "behind", "nats", "state")
    yield from _table(heads, rows, len(rows))
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
        yield f"trouble: {stream.trouble}"
    yield f"stream {stream.name}: {counted(stream.records, 'record')}"
    rows = [
        (
            copy.name,
            "leader" if copy.leader else "copy",
            _step(copy),
        )
        for copy in stream.copies
    ]
    if rows:
        yield from aligned(rows)
    for warning in stream.warnings:
        yield f"warning: {warning}"


def topics(page: schemas.TopicList) -> Iterator[str]:
    rows = [
        (
            each.id,
            format_datetime(each.through),
            str(each.kept),
            f"{each.rate:.1f}",
            str(each.websockets),
            str(each.event_streams),
            str(each.subscriptions),
            each.topic,
        )
        for each in page.topics
    ]
    heads = ("ID", "THROUGH", "KEPT", "RATE", "WEBSOCKETS", "STREAMS", "SUBSCRIPTIONS", "TOPIC")
    yield from _table(heads, rows, page.total)


def subscriptions(page: schemas.SubscriptionList) -> Iterator[str]:
    rows = [
        (
            each.id,
            each.state.value,
            f"{each.lag_seconds:.1f}",
            str(each.behind),
            str(each.failures),
            each.callback or each.host,
            each.topic,
            each.last_failure.reason if each.last_failure else "",
        )
        for each in page.subscriptions
    ]
    heads = ("ID", "STATE", "LAG", "BEHIND", "FAILURES", "CALLBACK", "TOPIC", "LAST FAILURE")
    yield from _table(heads, rows, page.total)


def details(found: SubscriptionDetails) -> Iterator[str]:
    yield from subscriptions(schemas.SubscriptionList((found.subscription,), 1, None))
    yield f"callback {found.callback}"
    if found.since is not None:
        yield f"attempts since {format_datetime(found.since)}"
    rows = [
        (
            format_datetime(each.at),
            f"{each.seconds:.3f}",
            f"{each.after}-{each.through}",
            f"{each.size:,}",
            each.reason,
            _excerpt(each),
        )
        for each in found.attempts
    ]
    yield from _table(("AT", "SECONDS", "LOG", "BYTES", "OUTCOME", "ANSWER"), rows, len(rows))


def failures(found: schemas.FailureList) -> Iterator[str]:
    rows = [
        (
            format_datetime(each.at),
            each.id,
            each.callback or each.host,
            each.topic,
            each.reason,
            _excerpt(each),
        )
        for each in found.failures
    ]
    heads = ("AT", "ID", "CALLBACK", "TOPIC", "REASON", "ANSWER")
    yield from _table(heads, rows, len(rows))


def dead_letters(page: schemas.DeadLetterList) -> Iterator[str]:
    rows = [
        (
            each.id,
            _instant(each.given_up_since),
            str(each.fragments),
            _instant(each.from_),
            _instant(each.until),
            each.host,
            each.topic,
        )
        for each in page.dead_letters
    ]
    heads = ("ID", "GIVEN UP", "FRAGMENTS", "FROM", "UNTIL", "HOST", "TOPIC")
    yield from _table(heads, rows, page.total)


def _instant(instant: Instant | None) -> str:
    return "-" if instant is None else format_datetime(instant)


def _excerpt(failure: schemas.SubscriptionFailure | schemas.FailureInfo) -> str:
    return " ".join(failure.excerpt.split())[:60]


def _table(heads: Sequence[str], rows: Sequence[Sequence[str]], total: int) -> Iterator[str]:
    if not rows:
        yield "none"
        return
    yield from aligned([heads, *rows])
    if total > len(rows):
        yield f"and {total - len(rows)} more (--limit)"


def aligned(rows: Sequence[Sequence[str]]) -> Iterator[str]:
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for row in rows:
        cells = (cell.ljust(width) for cell, width in zip(row, widths, strict=True))
        yield "  ".join(cells).rstrip()
