"""A client of the admin API, made from the same table of operations as the server.

The answers of the admin API as lines for a terminal.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import Any

import aiohttp
import msgspec
from msgspec import Struct, to_builtins
from msgspec.structs import replace

from rsnotify.errors import (
    ConfigurationError,
    FetchError,
    NotFound,
    RsnotifyError,
    Unavailable,
    counted,
)
from rsnotify.format.datetimes import Instant, format_datetime
from rsnotify_hub.admin import schemas
from rsnotify_hub.admin.operations import ID, OPERATIONS, PREFIX, Operation
from rsnotify_hub.admin.schemas import (
    MAX_ROWS,
    Problem,
    StatusInfo,
    SubscriptionDetails,
)
from rsnotify_hub.http.topic_requests import reason_of
from rsnotify_hub.store.nodes import CopyInfo, NodeInfo, NodeList, StreamInfo
from rsnotify_hub.urls import check_url

_TIMEOUT = aiohttp.ClientTimeout(total=30)
_OPERATIONS = {operation.name: operation for operation in OPERATIONS}
_WITHOUT_TOKEN = "; set RSNOTIFY_ADMIN_TOKEN, or --token"
_WITH_TOKEN = (
    "; the token in RSNOTIFY_ADMIN_TOKEN or --token is not an admin's there; send no token to a "
    "hub on a loopback address that has no admins"
)


class AdminClient:
    """A client of one hub; the token is an admin's, or None for a hub that needs none."""

    def __init__(self, url: str, token: str | None) -> None:
        self._url = check_url(url, "--url").rstrip("/") + PREFIX
        self._headers = {"Authorization": f"Bearer {token}"} if token else {}
        self._hint = _WITH_TOKEN if token else _WITHOUT_TOKEN

    async def call(self, name: str, id: str = "", body: Struct | None = None, **query: Any) -> Any:
        """Execute one operation by its name, and return an instance of its `answer`.

        A parameter of the query that is None is left out.

        Raises:
            ConfigurationError: The id is invalid.
            FetchError: The hub refuses, or cannot be reached.
        """
        operation = _OPERATIONS[name]
        if "{id}" in operation.path and not re.fullmatch(ID, id):
            raise ConfigurationError(f"{id!r} is no id: those are 32 hexadecimal digits")
        url = self._url + operation.path.replace("{id}", id)
        params = {key: str(value) for key, value in query.items() if value is not None}
        try:
            async with (
                aiohttp.ClientSession(headers=self._headers, timeout=_TIMEOUT) as session,
                session.request(
                    operation.method,
                    url,
                    params=params,
                    json=None if body is None else to_builtins(body),
                    allow_redirects=False,
                ) as response,
            ):
                return self._decoded(operation, url, response.status, await response.read())
        except aiohttp.ClientConnectorCertificateError as error:
            hint = "SSL_CERT_FILE names the file of an authority of your own"
            raise Unavailable(url, f"{reason_of(error)}; {hint}") from None
        except (aiohttp.ClientError, TimeoutError, OSError, ValueError) as error:
            raise Unavailable(url, f"{reason_of(error)}; --url names the hub") from None

    async def call_paged(self, name: str, *, limit: int, **query: Any) -> Any:
        """Execute an operation that answers with pages, and join the pages up to `limit` rows."""
        page = await self.call(name, limit=min(limit, MAX_ROWS), **query)
        field = page.__struct_fields__[0]
        rows = getattr(page, field)
        while page.next is not None and len(rows) < limit:
            rest = min(limit - len(rows), MAX_ROWS)
            page = await self.call(name, limit=rest, after=page.next, **query)
            rows += getattr(page, field)
        return replace(page, **{field: rows})

    def _decoded(self, operation: Operation, url: str, status: int, body: bytes) -> Any:
        try:
            if 200 <= status < 300:
                schema = operation.answer
                return None if schema is None else msgspec.json.decode(body, type=schema)
            raise self._refused(url, status, msgspec.json.decode(body, type=Problem).error)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            raise FetchError(url, f"answers {status}, but not as the hub's admin API") from None

    def _refused(self, url: str, status: int, reason: str) -> RsnotifyError:
        if status == 404:
            return NotFound(url, reason)
        return FetchError(url, reason + (self._hint if status in (401, 403) else ""))


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
        return "in step"
    return f"{copy.behind:,} behind" if copy.behind else "not in step"


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
