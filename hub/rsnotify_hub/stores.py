"""Opens the store that the settings name: a folder, or NATS for many nodes."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from datetime import timedelta
from pathlib import Path
from socket import gethostname

from msgspec import Struct

from rsnotify import __version__
from rsnotify.errors import ConfigurationError
from rsnotify.format.datetimes import Instant
from rsnotify_hub.admin.node_schemas import NodeInfo, NodeList
from rsnotify_hub.cluster.calls import HubNodes, SingleNode
from rsnotify_hub.config.configuration import HubConfiguration
from rsnotify_hub.store.interface import LogRetention, Store
from rsnotify_hub.store.sqlite.store import SqliteStore


async def _nothing() -> None: ...


class OpenStore(Struct):
    """A store, and the nodes that share it.

    Args:
        store: The store.
        nodes: All nodes of this hub.
        leave: Gives what this node owns to the others, while it can still deliver.
        describe: Describes the nodes, and what they share.
        check_servers: Checks the servers of the store, once it was started, and logs what is wrong.
        trouble: Returns why this node cannot use the store at the moment; None if it can.
        moved: How many shards this node has taken, released and lost.
        folder: The data folder, if the store is in one.
    """

    store: Store
    nodes: HubNodes
    leave: Callable[[], Awaitable[None]]
    describe: Callable[[], NodeList]
    check_servers: Callable[[], Awaitable[None]] = _nothing
    trouble: Callable[[], str | None] = lambda: None
    moved: Mapping[str, int] = {}
    folder: Path | None = None


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
        version=__version__,
        started=clock(),
        draining=False,
        shards=0,
        this=True,
    )
    folder = Path(configuration.log.data)
    store = SqliteStore(folder, retention, clock)
    try:
        yield OpenStore(
            store, SingleNode(), _nothing, lambda: NodeList(rows=(this,)), folder=folder
        )
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
    from rsnotify_hub.cluster_report import ClusterReport
    from rsnotify_hub.store.jetstream.store import open_jetstream

    settings = configuration.store.nats()
    node = NodeRecord(
        name=gethostname(),
        url=public_url,
        hub=__version__,
        bridges=configuration.has_bridges,
    )
    store = await open_jetstream(settings, retention, clock, node)
    largest = configuration.intake.max_fragment_bytes
    report = ClusterReport(store, clock, largest_fragment=largest)
    try:
        yield OpenStore(
            store,
            store.nodes,
            store.leave,
            report.describe,
            report.check_servers,
            store.trouble,
            store.node.moved,
        )
    finally:
        await store.close()
