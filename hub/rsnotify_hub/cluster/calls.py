"""Calls between the nodes of a hub. A hub on one machine is a single node, and calls itself."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, Generic, Protocol, TypeVar

from msgspec import Struct

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
