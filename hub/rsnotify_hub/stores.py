"""Opens the configured store: a folder, or a store that several nodes share."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from datetime import timedelta
from pathlib import Path
from socket import gethostname

from rsnotify import __version__
from rsnotify.format.datetimes import Instant
from rsnotify_hub.config.configuration import HubConfiguration
from rsnotify_hub.store.interface import LogRetention
from rsnotify_hub.store.nodes import NodeInfo, NodeList, SingleNode
from rsnotify_hub.store.providers import NodeFacts, OpenStore
from rsnotify_hub.store.sqlite_store import SqliteStore


class _OpenFolder:
    """An `OpenStore` on one machine."""

    def __init__(self, store: SqliteStore, folder: Path, node: NodeInfo) -> None:
        self.store = store
        self.nodes = SingleNode()
        self.folder = folder
        self.moved: Mapping[str, int] = {}
        self._node = node

    async def leave(self) -> None: ...

    def describe(self) -> NodeList:
        return NodeList(rows=(self._node,))

    async def check_servers(self) -> None: ...

    def trouble(self) -> str | None:
        return None


@asynccontextmanager
async def open_store(
    configuration: HubConfiguration, clock: Callable[[], Instant], public_url: str
) -> AsyncIterator[OpenStore]:
    """Return a context with the open store. Leaving the context closes the store.

    Raises:
        ConfigurationError: The folder or the servers cannot be used.
        StorageError: The store's content cannot be read.
    """
    retention = LogRetention(
        size=configuration.log.log_bytes, age=timedelta(seconds=configuration.log.log_seconds)
    )
    node = NodeFacts(
        name=gethostname(),
        url=public_url,
        version=__version__,
        bridges=configuration.has_bridges,
        largest_fragment=configuration.intake.max_fragment_bytes,
    )
    if configuration.store is not None:
        async with configuration.store.open(retention, node, clock) as opened:
            yield opened
        return
    this = NodeInfo(
        name=node.name,
        url=node.url,
        version=node.version,
        started=clock(),
        draining=False,
        shards=0,
        this=True,
    )
    folder = Path(configuration.log.data)
    store = SqliteStore(folder, retention, clock)
    try:
        yield _OpenFolder(store, folder, this)
    finally:
        await store.close()
