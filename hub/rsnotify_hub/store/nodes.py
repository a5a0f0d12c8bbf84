"""The nodes of a hub: calls between them, and their description in the admin API.

A hub on one machine is a single node that calls itself. The structs for the admin API use the terms
of NATS. Their names, fields and docstrings are part of the API's OpenAPI description.
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
    """A kind of call from one node to another. Its name is the same in all versions of the hub.

    msgspec must be able to encode the types of the argument and the answer.
    """

    name: str
    argument: Any
    answer: Any


class HubNodes(Protocol):
    """All nodes of the hub, including this one.

    If a handler raises a `Refusal` or a `StorageError`, the same error is raised at the calling
    node. Any other error becomes a `StorageError`.
    """

    def count(self) -> int:
        """Return the number of nodes that are alive, at least 1."""

    def serve(self, call: NodeCall[A, R], handler: Callable[[A], Awaitable[R]]) -> None:
        """Answer calls of this kind with the handler from now on."""

    async def ask_owner(self, authority: str, call: NodeCall[A, R], argument: A) -> R:
        """Ask the node that owns the subscriptions of a callback's host and port.

        Raises:
            Refusal: No node took ownership within a few seconds.
        """

    async def find(self, call: NodeCall[A, R | None], argument: A) -> R | None:
        """Ask every node, and return the only answer that is not None, if any.

        The answers cover all subscriptions, and errors are those of `ask_all`.
        """

    async def ask_all(self, call: NodeCall[A, R], argument: A) -> list[R]:
        """Ask every node, several times if necessary, so that the answers cover all subscriptions.

        Raises:
            StorageError: A node did not answer, or some subscriptions currently have no owner.
        """

    async def ask_others(self, call: NodeCall[A, R], argument: A) -> list[R]:
        """Ask every other node once, and return the answers that arrive promptly."""


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
        name: The name of the node's machine.
        url: The node's URL.
        version: The version of the node's software.
        started: When the node started.
        alive: Whether the node has recently renewed its record; null if the answering node is
            fenced and cannot know. A dead node stays in the list for a minute.
        draining: Whether the node is giving up its work.
        shards: The number of shards of subscriptions that the node owns.
        behind: The number of stream records that the node was missing a few seconds ago; null if
            unknown, or if the hub is on one machine.
        server: The NATS server that the node is connected to; null if none or unknown.
        this: Whether this node answered the request.
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
    """A NATS server with a copy of the stream, as reported by the stream's leader.

    Args:
        name: The name of the server.
        leader: Whether the server is the leader.
        online: Whether the server answers.
        current: Whether the copy has every record.
        behind: The number of operations that the copy is missing.
    """

    name: str
    leader: bool
    online: bool
    current: bool
    behind: int


class StreamInfo(Struct, frozen=True, kw_only=True):
    """The NATS stream that all nodes follow.

    Args:
        name: The name of the stream.
        connected: Whether this node is connected to NATS. If not, its information about the other
            nodes and NATS is out of date.
        trouble: Why this node cannot follow the stream; null if it can.
        records: The number of records in the stream.
        bytes: The total size of the records, in bytes.
        copies: The servers that have a copy.
        warnings: The problems that the last check of the servers found, with remedies.
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
        shards: The total number of shards of subscriptions; 0 on one machine.
        free: The number of shards that no living node owns, so that their subscriptions receive
            nothing. Null if the answering node is fenced and cannot know.
        stream: The stream that all nodes follow; null on one machine.
    """

    rows: tuple[NodeInfo, ...]
    shards: int = 0
    free: int | None = 0
    stream: StreamInfo | None = None
