"""The states of the hub's parts: whether each works, needs attention, or is in trouble.

The states are derived from the status, which covers all nodes. The dashboard, `rsnotify hub status`
and the metrics show them.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from datetime import timedelta

from msgspec.structs import replace
from rich.filesize import decimal

from rsnotify.errors import counted
from rsnotify.format.datetimes import Instant
from rsnotify_hub.admin.hub_readings import HubReadings, count_troubled, last_received
from rsnotify_hub.admin.schema_conversion import is_run_elsewhere
from rsnotify_hub.admin.schemas import DiskInfo, PartInfo, PartState, StatusInfo
from rsnotify_hub.statistics import BrokerInfo
from rsnotify_hub.store.nodes import NodeList
from rsnotify_hub.websub_subscription import DeliveryState

#: Maximum length of queues that need no attention. See the alerts in deploy/prometheus.
_MAX_WRITES, _MAX_DELIVERIES = 100, 1000
#: Fractions of free disk space below which the disk is in trouble, or needs attention.
_CRITICAL_DISK, _LOW_DISK = 0.05, 0.15
#: Maximum lag that needs no attention, in seconds. A short lag only means that a delivery is in
#: progress.
_MAX_LAG_SECONDS = 60.0
#: Maximum number of silent Sources or missing nodes to list by name.
_MAX_NAMES = 3

_UNITS = ((1.0, "s"), (60.0, "min"), (3600.0, "h"), (86_400.0, "days"))

_GOOD, _WATCH, _BAD = PartState.IN_ORDER, PartState.WATCH, PartState.TROUBLE
_WORST_FIRST = (_BAD, _WATCH, _GOOD)


def with_parts(status: StatusInfo, readings: HubReadings) -> StatusInfo:
    """Return the status of the hub with `parts` and `troubled` filled in."""
    parts = sorted(_parts(status, readings), key=lambda each: _WORST_FIRST.index(each.state))
    failing = count_troubled(status.states)
    already_counted = {"callbacks"} if failing else set()
    if status.slow:
        already_counted.add("connections")
    others = sum(each.state is not _GOOD and each.name not in already_counted for each in parts)
    return replace(status, parts=parts, troubled=failing + status.slow + others)


def _parts(status: StatusInfo, readings: HubReadings) -> Iterator[PartInfo]:
    yield _sources(status, readings)
    yield _callbacks(status)
    yield _connections(status)
    for transport, broker in status.brokers.items():
        yield _broker(transport, broker, status.now)
    yield _store(status, readings.nodes)
    if status.disk is not None:
        yield _disk(status.disk)
    if readings.nodes is not None and readings.nodes.stream is not None:
        yield _nodes(status, readings.nodes)


def _sources(status: StatusInfo, readings: HubReadings) -> PartInfo:
    known = last_received(readings.logs, status.now)
    silent = readings.silent_sources()
    if not known:
        return PartInfo("sources", _GOOD, "none has published yet")
    if silent:
        text = f"{len(silent):,} of {len(known):,} silent, not even a heartbeat: "
        return PartInfo("sources", _WATCH, text + _silences(silent, status.now))
    last = format_duration(status.now - max(known.values()))
    return PartInfo("sources", _GOOD, f"none is silent; the last fragment arrived {last} ago")


def _silences(silent: Mapping[str, Instant], now: Instant) -> str:
    first = sorted(silent.items(), key=lambda each: each[1])[:_MAX_NAMES]
    texts = [f"{source} for {format_duration(now - received)}" for source, received in first]
    return _with_rest(texts, len(silent))


def _with_rest(texts: list[str], total: int) -> str:
    rest = total - len(texts)
    return ", ".join(texts) + (f" and {rest:,} more" if rest else "")


def _callbacks(status: StatusInfo) -> PartInfo:
    total = status.subscriptions
    given_up = status.states.get(DeliveryState.GIVEN_UP, 0)
    suspended = status.states.get(DeliveryState.SUSPENDED, 0)
    failing, wanted = count_troubled(status.states), total - suspended
    lags = status.lag_seconds > _MAX_LAG_SECONDS
    waiting = status.delivery_queue
    texts = []
    if not total:
        texts.append("no Destination has subscribed over WebSub")
    elif failing:
        kinds = [f"{given_up:,} given up"] if given_up else []
        kinds += [f"{failing - given_up:,} retrying"] if failing > given_up else []
        texts.append(f"{failing:,} of {wanted:,} failing, {' and '.join(kinds)}")
    elif wanted:
        texts.append(f"{wanted:,} of {wanted:,} receiving")
    if failing or lags:
        texts.append(f"longest lag {format_duration(status.lag_seconds)}")
    if suspended:
        texts.append(f"{suspended:,} suspended")
    if waiting:
        texts.append(f"{counted(waiting, 'delivery', 'deliveries')} waiting")
    is_bad = given_up or (failing and failing == wanted)
    watch = failing or lags or waiting > _MAX_DELIVERIES
    return PartInfo("callbacks", _BAD if is_bad else _WATCH if watch else _GOOD, "; ".join(texts))


def _connections(status: StatusInfo) -> PartInfo:
    readers = status.websocket_subscribers + status.event_streams
    text = f"{counted(readers, 'reader')}, {counted(status.publishers, 'Source')}"
    if not status.slow:
        return PartInfo("connections", _GOOD, text)
    slow = f"{status.slow:,} slow, for {format_duration(status.slow_seconds)}"
    waits = f"{counted(status.live_queue, 'byte')} waiting"
    return PartInfo("connections", _WATCH, f"{text}; {slow}, {waits}")


def _broker(transport: str, broker: BrokerInfo, now: Instant) -> PartInfo:
    name = "XMPP service" if transport == "xmpp" else f"{transport.upper()} broker"
    behind = f", {counted(broker.behind, 'topic')} behind" if broker.behind else ""
    since, state = broker.behind_since, _GOOD
    if broker.connected:
        if since is not None and (now - since).total_seconds() > _MAX_LAG_SECONDS:
            state = _WATCH
        return PartInfo(name, state, f"connected{behind}")
    duration = "" if broker.since is None else f" for {format_duration(now - broker.since)}"
    reason = f": {broker.error}" if broker.error else ""
    return PartInfo(name, _BAD, f"not connected{duration}{behind}{reason}")


def _store(status: StatusInfo, nodes: NodeList | None) -> PartInfo:
    failure, writes = status.store_failure, status.commit_queue
    stream = None if nodes is None else nodes.stream
    if failure is not None:
        since = format_duration(status.now - failure.since)
        return PartInfo("store", _BAD, f"has refused fragments for {since}: {failure.reason}")
    if stream is not None and not stream.connected:
        return PartInfo("store", _BAD, "this node is not connected to NATS")
    if stream is not None and stream.trouble is not None:
        return PartInfo("store", _BAD, stream.trouble)
    text = f"{counted(writes, 'write')} waiting" if writes else "no writes waiting"
    return PartInfo("store", _WATCH if writes > _MAX_WRITES else _GOOD, text)


def _disk(disk: DiskInfo) -> PartInfo:
    fraction = disk.free / disk.size if disk.size else 0.0
    state = _BAD if fraction < _CRITICAL_DISK else _WATCH if fraction < _LOW_DISK else _GOOD
    return PartInfo("disk", state, f"{decimal(disk.free)} of {decimal(disk.size)} free")


def _nodes(status: StatusInfo, nodes: NodeList) -> PartInfo:
    if nodes.free is None:
        return PartInfo("nodes", _BAD, "unknown, because this node is fenced")
    gone = [row.name for row in nodes.rows if row.alive is False]
    alive = len(nodes.rows) - len(gone)
    texts = []
    if gone:
        names = _with_rest(gone[:_MAX_NAMES], len(gone))
        texts.append(f"{len(gone):,} of {counted(len(nodes.rows), 'node')} gone: {names}")
    else:
        texts.append(f"{counted(alive, 'node')} running")
    if status.nodes < alive:
        texts.append(f"{alive - status.nodes:,} not answering")
    if nodes.free:
        free = counted(nodes.free, "shard")
        texts.append(f"{free} without a node: their subscriptions receive nothing")
    watch = gone or status.nodes < alive
    return PartInfo("nodes", _BAD if nodes.free else _WATCH if watch else _GOOD, "; ".join(texts))


def parts_of_node(status: StatusInfo, readings: HubReadings) -> Iterator[PartInfo]:
    """Yield the parts as seen by this node, without brokers that another node publishes to."""
    own = {name: each for name, each in status.brokers.items() if not is_run_elsewhere(each)}
    yield from _parts(replace(status, brokers=own), readings)


def format_duration(span: timedelta | float) -> str:
    """Format a duration in one unit."""
    seconds = span.total_seconds() if isinstance(span, timedelta) else span
    seconds = max(0.0, seconds)
    size, unit = max(each for each in _UNITS if each[0] == 1.0 or seconds >= 2 * each[0])
    return f"{seconds:.1f} {unit}" if seconds < 9.95 else f"{seconds / size:.0f} {unit}"
