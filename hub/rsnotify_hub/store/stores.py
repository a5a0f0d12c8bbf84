"""Opens the store that the settings name: a folder, or NATS for many nodes.

Calls between the nodes of a hub. A hub on one machine is a single node, and calls itself.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from datetime import timedelta
from pathlib import Path
from socket import gethostname
from typing import Any, Generic, Protocol, TypeVar

from msgspec import Struct

from rsnotify import __version__
from rsnotify.errors import ConfigurationError
from rsnotify.format.datetimes import Instant
from rsnotify_hub.admin.schemas import NodeInfo, NodeList
from rsnotify_hub.config.configuration import HubConfiguration
from rsnotify_hub.store.interface import LogRetention, Store
from rsnotify_hub.store.sqlite_store import SqliteStore

A = TypeVar("A")
R = TypeVar("R")

#: Does what a call asks for, on the node that receives it.
Handler = Callable[[Any], Awaitable[Any]]


class NodeCall(Struct, Generic[A, R], frozen=True):
    """What a node may ask another one for.

    Args:
        name: Its name, the same in all versions of the hub.
        argument: The type of what it is given, which msgspec can encode.
        answer: The type of the answer, likewise.
    """

    name: str
    argument: Any
    answer: Any


class HubNodes(Protocol):
    """All nodes of the hub, this one included.

    What a handler raises is raised at the node that asks, if it is a `Refusal` or a `StorageError`;
    any other error becomes a `StorageError`.
    """

    def count(self) -> int:
        """Return the number of nodes that are alive, at least 1."""

    def serve(self, call: NodeCall[A, R], handler: Callable[[A], Awaitable[R]]) -> None:
        """Answer a call with a handler from now on."""

    async def ask_owner(self, authority: str, call: NodeCall[A, R], argument: A) -> R:
        """Ask the node that owns the subscriptions of a callback's host and port.

        Raises:
            Refusal: No node owns them at the moment, not even after some seconds.
        """

    async def find(self, call: NodeCall[A, R | None], argument: A) -> R | None:
        """Ask every node, and return the answer of the one that has one.

        Returns:
            The answer; None if no node has one, which together have all subscriptions.

        Raises:
            StorageError: As `ask_all`.
        """

    async def ask_all(self, call: NodeCall[A, R], argument: A) -> list[R]:
        """Ask every node, perhaps several times.

        Returns:
            The answers. Together they are about all subscriptions.

        Raises:
            StorageError: Some node does not answer, or subscriptions have no owner at the moment.
        """

    async def ask_others(self, call: NodeCall[A, R], argument: A) -> list[R]:
        """Ask every other node once.

        Returns:
            The answers of those that answer soon; it never waits for long.
        """


class SingleNode:
    """The `HubNodes` of a hub on one machine."""

    def __init__(self) -> None:
        self._handlers: dict[str, Handler] = {}

    def count(self) -> int:
        return 1

    def serve(self, call: NodeCall[A, R], handler: Callable[[A], Awaitable[R]]) -> None:
        self._handlers[call.name] = handler

    async def ask_owner(self, authority: str, call: NodeCall[A, R], argument: A) -> R:
        answer: R = await self._handlers[call.name](argument)
        return answer

    async def find(self, call: NodeCall[A, R | None], argument: A) -> R | None:
        return await self.ask_owner("", call, argument)

    async def ask_all(self, call: NodeCall[A, R], argument: A) -> list[R]:
        return [await self._handlers[call.name](argument)]

    async def ask_others(self, call: NodeCall[A, R], argument: A) -> list[R]:
        return []


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
    from rsnotify_jetstream.cluster_records import NodeRecord
    from rsnotify_jetstream.jetstream_store import open_jetstream
    from rsnotify_jetstream.server_check import ClusterReport

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
