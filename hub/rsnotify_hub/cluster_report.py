"""What a node of a cluster knows of the nodes, the shards, and the NATS servers."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from rsnotify.errors import StorageError
from rsnotify.format.datetimes import Instant
from rsnotify_hub.admin.node_schemas import CopyInfo, NodeInfo, NodeList, StreamInfo
from rsnotify_hub.store.jetstream.server_check import read_facts, warnings_of

if TYPE_CHECKING:
    from rsnotify_hub.store.jetstream.store import JetStreamStore

log = logging.getLogger("rsnotify.hub.store")


class ClusterReport:
    """Describes a cluster.

    Args:
        store: The store of this node.
        clock: Returns the current instant.
        largest_fragment: The bytes of the largest fragment that the hub accepts.
    """

    def __init__(
        self, store: JetStreamStore, clock: Callable[[], Instant], *, largest_fragment: int
    ) -> None:
        self._store = store
        self._clock = clock
        self._largest_fragment = largest_fragment
        self._warnings: list[str] = []

    async def check_servers(self) -> None:
        """Check the NATS servers, and log what was not wrong with them before."""
        try:
            facts = await read_facts(self._store.connection, self._store, self._clock)
        except StorageError as error:
            log.warning("the NATS servers cannot be checked now: %s", error)
            return
        found = warnings_of(facts, largest_fragment=self._largest_fragment)
        for text in found:
            if text not in self._warnings:
                log.warning("%s", text)
        self._warnings = found

    def describe(self) -> NodeList:
        node = self._store.node
        living = set(node.living())
        can_know = node.id in living
        owners = node.owners()
        rows = [
            self._node(id, id in living if can_know or id == node.id else None, owners[id])
            for id in sorted(node.nodes, key=lambda id: (node.nodes[id].name, id))
        ]
        return NodeList(
            rows=tuple(rows),
            shards=owners.total(),
            free=owners[None] if can_know else None,
            stream=self._stream(),
        )

    def _node(self, id: str, is_alive: bool | None, shards: int) -> NodeInfo:
        node = self._store.node
        record = node.nodes[id]
        is_this = id == node.id
        server, behind = (record.server, record.behind) if is_alive else ("", None)
        if is_this:
            server = self._store.connection.server or ""
            behind = None if self._store.trouble() else self._store.behind
        return NodeInfo(
            name=record.name,
            url=record.url,
            version=record.hub,
            started=datetime.fromtimestamp(record.started, UTC),
            alive=is_alive,
            draining=record.draining,
            shards=shards,
            behind=behind,
            server=server or None,
            this=is_this,
        )

    def _stream(self) -> StreamInfo:
        info = self._store.info
        state = info.get("state", {})
        server = self._store.connection.server
        return StreamInfo(
            name=self._store.stream.name,
            connected=server is not None,
            trouble=self._store.trouble(),
            records=state.get("messages", 0),
            bytes=state.get("bytes", 0),
            copies=tuple(sorted(copies_of(info, server), key=lambda copy: copy.name)),
            warnings=tuple(self._warnings),
        )


def copies_of(info: dict[str, Any], server: str | None) -> Iterator[CopyInfo]:
    """Yield the servers that have a copy of a stream.

    Args:
        info: What JetStream says of the stream.
        server: The server that this node is connected to; a server alone does not name itself.
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
