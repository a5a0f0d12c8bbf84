"""Checks whether the NATS servers keep acknowledged data, and have enough storage for it.

Problems found here are warnings, which are logged and shown by `rsnotify hub nodes`. Only servers
that are too old are refused (`nats_connection`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from datetime import timedelta
from typing import Any

from msgspec import Struct

from rsnotify.format.datetimes import Instant
from rsnotify_hub.store.nodes import CopyInfo
from rsnotify_jetstream.jetstream_log import JetStreamLog
from rsnotify_jetstream.nats_connection import NatsConnection

#: Maximum difference between the clocks without a warning.
_MAX_SKEW = timedelta(seconds=2)
#: Maximum size of a record's headers, in bytes.
_MAX_HEADER_BYTES = 16_384
#: Maximum used fraction of the storage without a warning.
_MAX_STORAGE_USE = 0.8


class ServerFacts(Struct, frozen=True):
    """Facts about the servers that a client can determine. Sizes are in bytes.

    Args:
        outdated: An error message if the server is too old. The hub may have connected to another
            server since its start.
        servers: The number of servers with a copy of the stream.
        offline: The names of those that do not answer.
        storage: The storage used by the account.
        skew: The minimum time by which the servers' clock is ahead of the local clock. It is
            negative if the clock is behind, and 0 if unknown.
    """

    outdated: str | None
    max_payload: int
    servers: int
    offline: tuple[str, ...]
    stream: dict[str, Any]
    storage: int
    storage_limit: int | None
    skew: timedelta


async def read_facts(
    connection: NatsConnection, log: JetStreamLog, clock: Callable[[], Instant]
) -> ServerFacts:
    """Return the facts about the servers.

    To compare the clocks, this writes a record to the log, which must have been started.

    Raises:
        StorageError: The servers do not answer.
    """
    before = clock()
    position = await log.write_check()
    after = clock()
    # This is None if another node has stored a later check. The time of that check says nothing
    # about the clocks, because it may have waited for a leader.
    stored = await log.stream.time_of(position)
    info = await log.stream.info()
    account = await connection.api("INFO", what="information on the account")
    replicas = (info.get("cluster") or {}).get("replicas") or []
    return ServerFacts(
        outdated=connection.outdated(),
        max_payload=connection.client.max_payload,
        servers=1 + len(replicas),
        offline=tuple(each["name"] for each in replicas if each.get("offline")),
        stream=info["config"],
        storage=int(account.get("storage", 0)),
        storage_limit=_storage_limit(account, info["config"]["num_replicas"]),
        skew=timedelta(0) if stored is None else _outside(stored, before, after),
    )


def _storage_limit(account: dict[str, Any], replicas: int) -> int | None:
    tiers = account.get("tiers") or {}
    limits = tiers.get(f"R{replicas}", account).get("limits") or {}
    limit = int(limits.get("max_storage", -1))
    return limit if limit >= 0 else None


def _outside(instant: Instant, begin: Instant, end: Instant) -> timedelta:
    """Return the distance of an instant from an interval, which is negative before it."""
    return min(instant - begin, timedelta(0)) + max(instant - end, timedelta(0))


def warnings_of(facts: ServerFacts, *, largest_fragment: int) -> list[str]:
    """Return warnings about problems that the administrator should know."""
    return [*_on_durability(facts), *_on_limits(facts, largest_fragment), *_on_servers(facts)]


def _on_durability(facts: ServerFacts) -> Iterator[str]:
    replicas = facts.stream["num_replicas"]
    if replicas == 1:
        yield (
            "NATS keeps one copy of the log: if its server or disk fails, the log is lost. Run "
            "three servers, and add ?replicas=3 to the URL"
        )
    loss = "the server loses" if replicas == 1 else f"all {replicas} servers lose"
    yield (
        "the hub cannot determine whether NATS flushes before it acknowledges. By default, NATS "
        f"flushes every two minutes: if {loss} power at once, the last two minutes may be lost. "
        "Set sync_interval: always in the jetstream block of each server"
    )


def _on_limits(facts: ServerFacts, largest_fragment: int) -> Iterator[str]:
    if facts.max_payload < largest_fragment + _MAX_HEADER_BYTES:
        yield (
            f"NATS accepts messages of up to {facts.max_payload} bytes, but the hub accepts "
            f"fragments of up to {largest_fragment}: some will be refused. Set max_payload: "
            f"{largest_fragment + _MAX_HEADER_BYTES} in the servers' configuration, or lower the "
            "hub's limit"
        )
    if facts.storage_limit is not None and facts.storage > facts.storage_limit * _MAX_STORAGE_USE:
        yield (
            f"JetStream uses {facts.storage} of the account's {facts.storage_limit} bytes: when "
            "they are full, publishing fails. Increase max_storage of the account, or reduce the "
            "retention of the logs"
        )
    for name in ("max_age", "max_bytes", "max_msgs", "max_msgs_per_subject"):
        if facts.stream.get(name, -1) > 0:
            yield (
                f"the stream {facts.stream['name']} has the limit {name}: NATS may delete needed "
                "records, or refuse publications. Remove the limit with `nats stream edit`; the "
                "hub trims the logs itself"
            )


def _on_servers(facts: ServerFacts) -> Iterator[str]:
    if facts.outdated is not None:
        yield facts.outdated
    if facts.offline:
        yield (
            f"{', '.join(facts.offline)} of the {facts.servers} NATS servers with a copy of the "
            "log do not answer: start them, because publishing fails without a majority"
        )
    if abs(facts.skew) > _MAX_SKEW:
        direction = "ahead of" if facts.skew > timedelta(0) else "behind"
        yield (
            f"the clock of NATS is {abs(facts.skew).total_seconds():.0f} seconds {direction} the "
            "clock of this hub: set the clocks, for example with chrony. Logs are trimmed, and "
            "leases of subscriptions end, by these clocks"
        )


def copies_of(info: dict[str, Any], server: str | None) -> Iterator[CopyInfo]:
    """Yield the servers that have a copy of a stream.

    `server` is the server that this node is connected to. A server without a cluster does not name
    itself.
    """
    cluster = info.get("cluster") or {"leader": server}
    if leader := cluster.get("leader"):
        yield CopyInfo(name=leader, leader=True, online=True, current=True, behind=0)
    for copy in cluster.get("replicas") or ():
        is_online = not copy.get("offline", False)
        yield CopyInfo(
            name=copy["name"],
            leader=False,
            online=is_online,
            current=is_online and bool(copy.get("current")),
            behind=int(copy.get("lag", 0)),
        )
