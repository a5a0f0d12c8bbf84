"""Opens the default store."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from pathlib import Path

from rsnotify.format.datetimes import Instant
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
