"""The parts of the hub, and whether each is working.

The state of each part is decided here, from the figures of the status, which cover all nodes. The
dashboard, `rsnotify hub status` and the metrics show the result.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from datetime import timedelta

from msgspec.structs import replace
from rich.filesize import decimal

from rsnotify.errors import counted
from rsnotify.format.datetimes import Instant
from rsnotify_hub.admin.schemas import DiskInfo, PartInfo, PartState, StatusInfo
from rsnotify_hub.admin.views import (
    HubReadings,
    is_elsewhere,
    last_received,
    silent_sources,
    troubled,
)
from rsnotify_hub.statistics import BrokerInfo
from rsnotify_hub.store.nodes import NodeList
from rsnotify_hub.websub_subscription import DeliveryState

#: Larger queues are unusual. See the alerts in deploy/prometheus.
_MANY_WRITES, _MANY_DELIVERIES = 100, 1000
_LITTLE_DISK, _LESS_DISK = 0.05, 0.15
#: Maximum lag of a part that is in order, in seconds. A short lag only means that a delivery is in
#: progress.
_BEHIND_SECONDS = 60.0
#: Maximum number of silent Sources, or nodes that are gone, that are named.
_NAMED = 3

_UNITS = ((1.0, "s"), (60.0, "min"), (3600.0, "h"), (86_400.0, "days"))

_GOOD, _WATCH, _BAD = PartState.IN_ORDER, PartState.WATCH, PartState.TROUBLE
_WORST = (_BAD, _WATCH, _GOOD)


def with_parts(status: StatusInfo, readings: HubReadings) -> StatusInfo:
    """Return the status of the hub with `parts` and `troubled` filled in."""
    parts = sorted(_parts(status, readings), key=lambda each: _WORST.index(each.state))
    failing = troubled(status.states)
    counted_above = {"callbacks"} if failing else set()
    if status.slow:
        counted_above.add("connections")
    others = sum(each.state is not _GOOD and each.name not in counted_above for each in parts)
    return replace(status, parts=parts, troubled=failing + status.slow + others)


def _parts(status: StatusInfo, readings: HubReadings) -> Iterator[PartInfo]:
    yield _sources(status, readings)
    yield _callbacks(status)
    yield _connections(status)
    for way, broker in status.brokers.items():
        yield _broker(way, broker, status.now)
    yield _store(status, readings.nodes)
    if status.disk is not None:
        yield _disk(status.disk)
    if readings.nodes is not None and readings.nodes.stream is not None:
        yield _nodes(status, readings.nodes)


def _sources(status: StatusInfo, readings: HubReadings) -> PartInfo:
    known = last_received(readings.logs, status.now)
    silent = silent_sources(readings.logs, status.now, readings.silence)
    if not known:
        return PartInfo("sources", _GOOD, "none has published yet")
    if silent:
        text = f"{len(silent):,} of {len(known):,} silent, not even a heartbeat: "
        return PartInfo("sources", _WATCH, text + _silences(silent, status.now))
    last = lasting(status.now - max(known.values()))
    return PartInfo("sources", _GOOD, f"none is silent; the last fragment came {last} ago")


def _silences(silent: Mapping[str, Instant], now: Instant) -> str:
    first = sorted(silent.items(), key=lambda each: each[1])[:_NAMED]
    texts = [f"{source} for {lasting(now - received)}" for source, received in first]
    return _named(texts, len(silent))


def _named(texts: list[str], total: int) -> str:
    rest = total - len(texts)
    return ", ".join(texts) + (f" and {rest:,} more" if rest else "")


def _callbacks(status: StatusInfo) -> PartInfo:
    total = status.subscriptions
    given_up = status.states.get(DeliveryState.GIVEN_UP, 0)
    suspended = status.states.get(DeliveryState.SUSPENDED, 0)
    failing, wanted = troubled(status.states), total - suspended
    lags = status.lag_seconds > _BEHIND_SECONDS
    waits = status.delivery_queue
    texts = []
    if not total:
        texts.append("no Destination has subscribed by WebSub")
    elif failing:
        how = [f"{given_up:,} given up"] if given_up else []
        how += [f"{failing - given_up:,} retrying"] if failing > given_up else []
        texts.append(f"{failing:,} of {wanted:,} failing, {' and '.join(how)}")
    elif wanted:
        texts.append(f"{wanted:,} of {wanted:,} receive")
    if failing or lags:
        texts.append(f"the longest behind for {lasting(status.lag_seconds)}")
    if suspended:
        texts.append(f"{suspended:,} suspended")
    if waits:
        texts.append(f"{counted(waits, 'delivery', 'deliveries')} waiting")
    is_bad = given_up or (failing and failing == wanted)
    watch = failing or lags or waits > _MANY_DELIVERIES
    return PartInfo("callbacks", _BAD if is_bad else _WATCH if watch else _GOOD, "; ".join(texts))


def _connections(status: StatusInfo) -> PartInfo:
    readers = status.websocket_subscribers + status.event_streams
    text = f"{counted(readers, 'reader')}, {counted(status.publishers, 'Source')}"
    if not status.slow:
        return PartInfo("connections", _GOOD, text)
    slow = f"{status.slow:,} slow, for {lasting(status.slow_seconds)}"
    waits = f"{counted(status.live_queue, 'byte')} waiting"
    return PartInfo("connections", _WATCH, f"{text}; {slow}, {waits}")


def _broker(way: str, broker: BrokerInfo, now: Instant) -> PartInfo:
    name = "XMPP service" if way == "xmpp" else f"{way.upper()} broker"
    behind = f", {counted(broker.behind, 'topic')} behind" if broker.behind else ""
    since, state = broker.behind_since, _GOOD
    if broker.connected:
        if since is not None and (now - since).total_seconds() > _BEHIND_SECONDS:
            state = _WATCH
        return PartInfo(name, state, f"connected{behind}")
    away = "" if broker.since is None else f" for {lasting(now - broker.since)}"
    why = f": {broker.error}" if broker.error else ""
    return PartInfo(name, _BAD, f"not connected{away}{behind}{why}")


def _store(status: StatusInfo, nodes: NodeList | None) -> PartInfo:
    failure, writes = status.store_failure, status.commit_queue
    stream = None if nodes is None else nodes.stream
    if failure is not None:
        since = lasting(status.now - failure.since)
        return PartInfo("store", _BAD, f"refuses fragments for {since}: {failure.reason}")
    if stream is not None and not stream.connected:
        return PartInfo("store", _BAD, "this node is not connected to NATS")
    if stream is not None and stream.trouble is not None:
        return PartInfo("store", _BAD, stream.trouble)
    text = f"{counted(writes, 'write')} waiting" if writes else "no write waits"
    return PartInfo("store", _WATCH if writes > _MANY_WRITES else _GOOD, text)


def _disk(disk: DiskInfo) -> PartInfo:
    part = disk.free / disk.size if disk.size else 0.0
    state = _BAD if part < _LITTLE_DISK else _WATCH if part < _LESS_DISK else _GOOD
    return PartInfo("disk", state, f"{decimal(disk.free)} of {decimal(disk.size)} free")


def _nodes(status: StatusInfo, nodes: NodeList) -> PartInfo:
    if nodes.free is None:
        return PartInfo("nodes", _BAD, "this node is fenced, and cannot know")
    gone = [row.name for row in nodes.rows if row.alive is False]
    alive = len(nodes.rows) - len(gone)
    texts = []
    if gone:
        names = _named(gone[:_NAMED], len(gone))
        texts.append(f"{len(gone):,} of {counted(len(nodes.rows), 'node')} gone: {names}")
    else:
        texts.append(f"{counted(alive, 'node')} running")
    if status.nodes < alive:
        texts.append(f"{alive - status.nodes:,} not answering")
    if nodes.free:
        free = counted(nodes.free, "shard")
        texts.append(f"{free} without a node, whose subscriptions receive nothing")
    watch = gone or status.nodes < alive
    return PartInfo("nodes", _BAD if nodes.free else _WATCH if watch else _GOOD, "; ".join(texts))


def metric_parts(status: StatusInfo, readings: HubReadings) -> Iterator[PartInfo]:
    """Yield the parts as this node sees them, without brokers that another node publishes to."""
    own = {way: each for way, each in status.brokers.items() if not is_elsewhere(each)}
    yield from _parts(replace(status, brokers=own), readings)


def lasting(span: timedelta | float) -> str:
    """Format a duration in one unit."""
    seconds = span.total_seconds() if isinstance(span, timedelta) else span
    seconds = max(0.0, seconds)
    size, unit = max(each for each in _UNITS if each[0] == 1.0 or seconds >= 2 * each[0])
    return f"{seconds:.1f} {unit}" if seconds < 9.95 else f"{seconds / size:.0f} {unit}"
