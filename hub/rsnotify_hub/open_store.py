"""Opens the configured store: a folder on this machine, or a store that several nodes share."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from datetime import timedelta
from pathlib import Path
from socket import gethostname

from rsnotify import __version__
from rsnotify.format.datetimes import Instant
from rsnotify_hub.config.configuration import HubConfig
from rsnotify_hub.store.interface import LogRetention
from rsnotify_hub.store.nodes import NodeInfo, NodeList, SingleNode
from rsnotify_hub.store.providers import NodeFacts, OpenStore, StoreProvider
from rsnotify_hub.store.sqlite_store import SqliteStore


class SqliteProvider(StoreProvider, frozen=True, kw_only=True):
    """Opens a folder with an SQLite database."""

    folder: Path

    @asynccontextmanager
    async def open(
        self, retention: LogRetention, node: NodeFacts, clock: Callable[[], Instant]
    ) -> AsyncIterator[OpenStore]:
        info = NodeInfo(
            name=node.name,
            url=node.url,
            version=node.version,
            started=clock(),
            draining=False,
            shards=0,
            this=True,
        )
        store = SqliteStore(self.folder, retention, clock)
        try:
            yield OpenFolder(store, self.folder, info)
        finally:
            await store.close()


class OpenFolder:
    """The `OpenStore` of a hub with a single node."""

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


def open_store(
    configuration: HubConfig, clock: Callable[[], Instant], public_url: str
) -> AbstractAsyncContextManager[OpenStore]:
    """Return a context with the open store. Leaving the context closes the store.

    Raises:
        ConfigurationError: The folder or the servers cannot be used.
        StorageError: The store's content cannot be read.
    """
    provider = configuration.store or SqliteProvider(folder=Path(configuration.log.data))
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
    return provider.open(retention, node, clock)
