"""Opens the store that the settings name: a folder, or NATS for many nodes."""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from importlib.metadata import version
from pathlib import Path
from socket import gethostname
from typing import TYPE_CHECKING

from msgspec import Struct

from rsnotify.errors import ConfigurationError
from rsnotify.format.datetimes import Instant
from rsnotify_hub.admin.schemas import NodeInfo
from rsnotify_hub.cluster.calls import HubNodes, SingleNode
from rsnotify_hub.config.configuration import HubConfiguration
from rsnotify_hub.store.interface import LogRetention, Store
from rsnotify_hub.store.sqlite.store import SqliteStore

if TYPE_CHECKING:
    from rsnotify_hub.cluster.node import ClusterNode

log = logging.getLogger("rsnotify.hub.store")


class OpenStore(Struct):
    """A store, and the nodes that share it.

    Args:
        store: The store.
        nodes: All nodes of this hub.
        leave: Gives what this node owns to the others, while it can still deliver.
        describe: Describes the nodes that are alive.
        warn: Logs what is wrong with the servers, once the store was started.
    """

    store: Store
    nodes: HubNodes
    leave: Callable[[], Awaitable[None]]
    describe: Callable[[], list[NodeInfo]]
    warn: Callable[[], Awaitable[None]]


async def _nothing() -> None: ...


@asynccontextmanager
async def open_store(
    configuration: HubConfiguration, clock: Callable[[], Instant], public_url: str
) -> AsyncIterator[OpenStore]:
    """Return a context with the store, which is closed at its end.

    Raises:
        ConfigurationError: The folder, or NATS, cannot be used.
        StorageError: Its content cannot be read.
    """
    retention = LogRetention(
        size=configuration.log.log_bytes, age=timedelta(seconds=configuration.log.log_seconds)
    )
    if configuration.store.url is not None:
        async with _open_nats(configuration, retention, clock, public_url) as opened:
            yield opened
        return
    this = NodeInfo(
        name=gethostname(),
        url=public_url,
        version=version("rsnotify"),
        started=clock(),
        draining=False,
        shards=0,
        this=True,
    )
    store = SqliteStore(Path(configuration.log.data), retention, clock)
    try:
        yield OpenStore(store, SingleNode(), _nothing, lambda: [this], _nothing)
    finally:
        await store.close()


@asynccontextmanager
async def _open_nats(
    configuration: HubConfiguration,
    retention: LogRetention,
    clock: Callable[[], Instant],
    public_url: str,
) -> AsyncIterator[OpenStore]:
    try:
        import nats  # noqa: F401
    except ImportError:
        raise ConfigurationError(
            "a store in NATS needs another package: pip install 'rsnotify[nats]'"
        ) from None
    from rsnotify_hub.cluster.records import NodeRecord
    from rsnotify_hub.store.jetstream.server_check import read_facts, warnings_of
    from rsnotify_hub.store.jetstream.store import open_jetstream

    settings = configuration.store.nats()
    node = NodeRecord(
        name=gethostname(),
        url=public_url,
        hub=version("rsnotify"),
        bridges=configuration.mqtt.url is not None,
    )
    store = await open_jetstream(settings, retention, clock, node)

    async def warn() -> None:
        facts = await read_facts(store.connection, store, clock)
        for text in warnings_of(facts, largest_fragment=configuration.intake.max_fragment_bytes):
            log.warning("%s", text)

    def describe() -> list[NodeInfo]:
        return [_node_info(id, store.node) for id in sorted(store.node.living())]

    try:
        yield OpenStore(store, store.nodes, store.leave, describe, warn)
    finally:
        await store.close()


def _node_info(id: str, node: ClusterNode) -> NodeInfo:
    record = node.nodes[id]
    return NodeInfo(
        name=record.name,
        url=record.url,
        version=record.hub,
        started=datetime.fromtimestamp(record.started, UTC),
        draining=record.draining,
        shards=record.shards,
        this=id == node.id,
    )
