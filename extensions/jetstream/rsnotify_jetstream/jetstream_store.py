"""The store of a multi-node hub: its log, its subscriptions and its cluster in NATS.

`open_jetstream` connects to NATS and reads the records of the cluster. `assign` lets this node
acquire shards, and `leave` releases them while deliveries still continue.
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
from rsnotify_jetstream.cluster_node import ClusterNode
from rsnotify_jetstream.cluster_records import NodeRecord
from rsnotify_jetstream.jetstream_log import APPEND_SECONDS, JetStreamLog
from rsnotify_jetstream.nats_connection import NatsConnection
from rsnotify_jetstream.nats_settings import NatsSettings
from rsnotify_jetstream.node_messages import NodeMessages
from rsnotify_jetstream.server_check import copies_of, read_facts, warnings_of
from rsnotify_jetstream.shard_ownership import DEFAULT_SHARDS, ClusterPace
from rsnotify_jetstream.shared_subscriptions import JetStreamSubscriptions

logger = logging.getLogger("rsnotify.hub.store")


class JetStreamStore(JetStreamLog, JetStreamSubscriptions):
    """A `Store` for any number of nodes, which is also its own `OpenStore`.

    The connection must be open, and the store closes it. The node must have read the records of the
    cluster.
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
            # Topics are assigned to shards as well, so that exactly one node cleans up each topic.
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
        return replace(record, behind=self.lag, server=self.connection.server or "")

    async def assign(self, owner: SubscriptionOwner) -> None:
        await self.nodes.start()
        await super().assign(owner)

    async def stop(self) -> None:
        """Stop like after a crash, without releasing shards."""
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
        """Check the NATS servers, and log new problems."""
        try:
            facts = await read_facts(self.connection, self, self._clock)
        except StorageError as error:
            logger.warning("cannot check the NATS servers: %s", error)
            return
        found = warnings_of(facts, largest_fragment=self._largest_fragment)
        found += self._other_hubs()
        for text in found:
            if text not in self._warnings:
                logger.warning("%s", text)
        self._warnings = found

    def _other_hubs(self) -> Iterator[str]:
        """Yield a warning for each public URL of another node that differs from this node's URL.

        URLs with loopback addresses may differ.
        """
        nodes = self.node.nodes
        urls = {id: nodes[id].url for id in self.node.living() if id in nodes}
        public = {id: url for id, url in urls.items() if not is_loopback(host_of(url))}
        own = public.get(self.node.id)
        for url in sorted({*public.values()} - {own} if own else ()):
            yield (
                f"a node with the public URL {url} uses the same data in NATS as this node, whose "
                f"public URL is {own}: configure the same public_url on all nodes of a hub, and "
                "add ?prefix=NAME to the store of any other hub"
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
            behind = None if self.trouble() else self.lag
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
    """Connect to NATS, and return the store. This node joins the cluster when `assign` is called.

    `shards` is the number of shards of subscriptions if this node creates the cluster.

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
