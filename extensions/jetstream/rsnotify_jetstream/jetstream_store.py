"""The store of a multi-node hub: its log, its subscriptions and its cluster, all in NATS.

`open_jetstream` connects to NATS and reads the cluster. This node starts acquiring shards when
`assign` is called. It releases them in `leave`, while the channel that owns the subscriptions is
still delivering.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from contextlib import AsyncExitStack
from datetime import UTC, datetime

from msgspec.structs import replace

from rsnotify.errors import StorageError
from rsnotify.format.datetimes import Instant
from rsnotify_hub.access.client_addresses import is_loopback
from rsnotify_hub.store.interface import LogRetention, SubscriptionOwner
from rsnotify_hub.store.nodes import NodeInfo, NodeList, StreamInfo
from rsnotify_hub.store.providers import NodeFacts
from rsnotify_hub.urls import host_of
from rsnotify_jetstream.bucket import Bucket
from rsnotify_jetstream.connection import NatsConnection
from rsnotify_jetstream.jetstream_log import APPEND_SECONDS, JetStreamLog
from rsnotify_jetstream.membership import DEFAULT_SHARDS, ClusterPace
from rsnotify_jetstream.node import ClusterNode
from rsnotify_jetstream.node_messages import NodeMessages
from rsnotify_jetstream.records import NodeRecord
from rsnotify_jetstream.server_check import copies_of, read_facts, warnings_of
from rsnotify_jetstream.settings import NatsSettings
from rsnotify_jetstream.shared_subscriptions import JetStreamSubscriptions

log = logging.getLogger("rsnotify.hub.store")


class JetStreamStore(JetStreamLog, JetStreamSubscriptions):
    """A `Store` for any number of nodes, which is also its own `OpenStore`.

    The connection is open, and the store closes it. The node has already read the cluster.
    """

    folder = None
    answer_seconds: float | None = APPEND_SECONDS + 0.1

    def __init__(
        self,
        connection: NatsConnection,
        retention: LogRetention,
        clock: Callable[[], Instant],
        node: ClusterNode,
        largest_fragment: int,
    ) -> None:
        JetStreamLog.__init__(
            self,
            connection,
            retention,
            clock,
            # Topics are also assigned to shards, so that exactly one node cleans up each topic.
            cleans=lambda topic: node.owns(node.sharding.shard_of(topic)),
        )
        JetStreamSubscriptions.__init__(self, connection, node)
        self.nodes = NodeMessages(connection.client, connection.settings.prefix, node)
        self.moved = node.moved
        self._largest_fragment = largest_fragment
        self._warnings: list[str] = []
        node.report = self._report

    @property
    def store(self) -> JetStreamStore:
        return self

    def _report(self, record: NodeRecord) -> NodeRecord:
        return replace(record, behind=self.behind, server=self.connection.server or "")

    async def assign(self, owner: SubscriptionOwner) -> None:
        await self.nodes.start()
        await super().assign(owner)

    async def stop(self) -> None:
        """Stop as in a crash, without informing the other nodes."""
        await super().stop()
        await self._close()

    async def close(self) -> None:
        await self.leave()
        await self._close()

    async def _close(self) -> None:
        await self.nodes.close()
        await super().close()
        await self.connection.close()

    async def check_servers(self) -> None:
        """Check the NATS servers, and log problems that the previous check did not find."""
        try:
            facts = await read_facts(self.connection, self, self._clock)
        except StorageError as error:
            log.warning("the NATS servers cannot be checked now: %s", error)
            return
        found = warnings_of(facts, largest_fragment=self._largest_fragment)
        found += self._other_hubs()
        for text in found:
            if text not in self._warnings:
                log.warning("%s", text)
        self._warnings = found

    def _other_hubs(self) -> Iterator[str]:
        """Yield a warning for each public URL of other nodes that differs from this node's URL.

        URLs on loopback addresses are ignored, because they may differ.
        """
        nodes = self.node.nodes
        urls = {id: nodes[id].url for id in self.node.living() if id in nodes}
        public = {id: url for id, url in urls.items() if not is_loopback(host_of(url))}
        own = public.get(self.node.id)
        for url in sorted({*public.values()} - {own} if own else ()):
            yield (
                f"a node that uses the same NATS has the public URL {url}, and this node {own}: "
                "give all nodes of a hub the same public_url, and add ?prefix=NAME to store if it "
                "is another hub"
            )

    def describe(self) -> NodeList:
        node = self.node
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
        record = self.node.nodes[id]
        is_this = id == self.node.id
        server, behind = (record.server, record.behind) if is_alive else ("", None)
        if is_this:
            server = self.connection.server or ""
            behind = None if self.trouble() else self.behind
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
        info = self.info
        state = info.get("state", {})
        server = self.connection.server
        return StreamInfo(
            name=self.stream.name,
            connected=server is not None,
            trouble=self.trouble(),
            records=state.get("messages", 0),
            bytes=state.get("bytes", 0),
            copies=tuple(sorted(copies_of(info, server), key=lambda copy: copy.name)),
            warnings=tuple(self._warnings),
        )


async def open_jetstream(
    settings: NatsSettings,
    retention: LogRetention,
    clock: Callable[[], Instant],
    facts: NodeFacts,
    *,
    shards: int = DEFAULT_SHARDS,
    pace: ClusterPace = ClusterPace(),  # noqa: B008 - it is immutable
) -> JetStreamStore:
    """Connect to NATS, and return its store. This node joins the cluster when `assign` is called.

    `shards` is the number of shards of subscriptions, in case this node creates the cluster.

    Raises:
        ConfigurationError: NATS cannot be reached, or cannot provide the streams.
        StorageError: NATS does not answer, or a newer hub has written the data there.
    """
    connection = NatsConnection(settings)
    async with AsyncExitStack() as stack:
        await connection.open(f"rsnotify hub {facts.name}".strip())
        stack.push_async_callback(connection.close)
        records = Bucket(connection, "cluster")
        stack.push_async_callback(records.close)
        record = NodeRecord(
            name=facts.name, url=facts.url, hub=facts.version, bridges=facts.bridges
        )
        node = ClusterNode(records, record, shards=shards, pace=pace)
        await node.open()
        store = JetStreamStore(connection, retention, clock, node, facts.largest_fragment)
        await store.prepare()
        stack.pop_all()
    return store
