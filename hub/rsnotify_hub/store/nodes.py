"""The nodes of a hub: what the admin API shows of them, and calls between them.

A hub on one machine is a single node, and calls itself. The values are JSON of the admin API, as
those of `admin.schemas`. Their names and texts are part of its OpenAPI description, also where a
store of several nodes that is not NATS would have other words.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Annotated, Any, Generic, Protocol, TypeVar

from msgspec import Meta, Struct

from rsnotify.format.datetimes import Instant

A = TypeVar("A")
R = TypeVar("R")

#: Answers a call on the node that receives it.
Handler = Callable[[Any], Awaitable[Any]]


class NodeCall(Struct, Generic[A, R], frozen=True):
    """A kind of call from one node to another.

    Args:
        name: Its name, the same in all versions of the hub.
        argument: The type of its argument, which msgspec can encode.
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


class NodeInfo(Struct, frozen=True, kw_only=True):
    """A node of the hub.

    Args:
        name: The name of its machine.
        url: Its URL.
        version: The version of its software.
        started: When it started.
        alive: Whether it has renewed its record lately; null if the node that answers cannot know,
            since it is fenced itself. A dead node is listed for a minute.
        draining: Whether it gives up its work.
        shards: How many shards of the subscriptions it owns.
        behind: How many records of the stream it did not have yet, some seconds ago; null if that
            is unknown, or the hub is on one machine.
        server: The NATS server that it is connected to; null if there is none, or it is unknown.
        this: Whether it has answered this request.
    """

    name: str
    url: str
    version: str
    started: Annotated[Instant, Meta(tz=True)]
    alive: bool | None = True
    draining: bool
    shards: int
    behind: int | None = None
    server: str | None = None
    this: bool


class CopyInfo(Struct, frozen=True, kw_only=True):
    """A NATS server with a copy of the stream, as its leader knows it.

    Args:
        name: Its name.
        leader: Whether it leads the others.
        online: Whether it answers.
        current: Whether its copy has every record.
        behind: How many operations its copy is behind.
    """

    name: str
    leader: bool
    online: bool
    current: bool
    behind: int


class StreamInfo(Struct, frozen=True, kw_only=True):
    """The stream of NATS that all nodes follow.

    Args:
        name: Its name.
        connected: Whether this node is connected to NATS. If not, all that this node says of the
            other nodes and of NATS is out of date.
        trouble: Why this node does not follow the stream at the moment; null if it does.
        records: The number of records in it.
        bytes: Their bytes.
        copies: The servers that have a copy.
        warnings: What the last check of the servers has found, with what to do.
    """

    name: str
    connected: bool
    trouble: str | None
    records: int
    bytes: int
    copies: tuple[CopyInfo, ...]
    warnings: tuple[str, ...]


class NodeList(Struct, frozen=True, kw_only=True):
    """The nodes of the hub.

    Args:
        rows: The nodes.
        shards: The number of shards of the subscriptions; 0 on one machine.
        free: How many of them no living node owns: their subscriptions receive nothing now. It is
            null if the node that answers cannot know, since it is fenced.
        stream: The stream that all nodes follow; null on one machine.
    """

    rows: tuple[NodeInfo, ...]
    shards: int = 0
    free: int | None = 0
    stream: StreamInfo | None = None
