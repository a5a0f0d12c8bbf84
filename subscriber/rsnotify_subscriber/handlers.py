"""Handlers, which apply changes to the copy, and the changes that they receive.

A handler is one of:

- A function of one `Received`, or an object with `apply` (`Handler`), which receives many changes
  at once. An `async def` runs on the event loop. A plain `def` runs in the state's thread, which
  avoids switching threads for each change.
- An object with `apply_within` (`TransactionalHandler`). It receives the state's database
  connection, and its effects are committed together with T.

Either may also have `prepare`, `held_content`, `find_lost`, or all methods of a `LocatedHandler`.
Only `FolderMirror` is a `DeferredHandler`.
"""

from __future__ import annotations

import inspect
import os
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

from msgspec import Struct

from rsnotify.errors import ConfigurationError
from rsnotify.format.datetimes import Instant
from rsnotify.format.model import ChangeType, Link, Resource
from rsnotify.runtime.arguments import is_plain_function


class Received(Struct, frozen=True):
    """A change to apply, with its verified content.

    Args:
        change: The type of change. In a baseline, new and different resources are `updated`.
        uri: The URI of the resource.
        at: The datetime of the change, or of the Resource List.
        resource: The Source's entry for the change.
        content: A temporary file with the content, or None for a deletion. It is removed after
            `apply` unless the handler has renamed it. To read the content, call `read`.
        alternate: The link in `resource` from which the content was fetched, if the content is an
            alternate of a preferred media type rather than the resource itself.
        hash: The digests of the content, as a `hash` attribute: SHA-256 and the announced ones.
        length: The length of the content in bytes.
    """

    change: ChangeType
    uri: str
    at: Instant
    resource: Resource
    content: Path | None
    alternate: Link | None = None
    hash: str | None = None
    length: int | None = None

    def read(self) -> bytes:
        """Return the content, which is empty for a deletion."""
        return b"" if self.content is None else self.content.read_bytes()


@runtime_checkable
class Handler(Protocol):
    """Applies changes. `apply` is `async def`, or a plain `def`, which is called in a thread."""

    def apply(self, changes: Sequence[Received]) -> Awaitable[None] | None:
        """Apply changes durably. Each resource has at most one change in a call.

        Delivery is at least once: after a crash, the last changes are redelivered. If this method
        raises `StoreUnavailable`, it is called again later with the same changes. After any other
        exception, it is called with each change alone, and those that fail are retried later.
        """


@runtime_checkable
class PreparedHandler(Protocol):
    def prepare(self, base: str, temporary: Path) -> None:
        """Prepare for the set of resources. Called once, before the first `apply`.

        Args:
            base: The URI of the folder with the Source's documents.
            temporary: A folder on the file system of the temporary files with content.
        """


@runtime_checkable
class DeferredHandler(Protocol):
    """A handler that can make changes visible first, and flush many of them later at once.

    The state keeps the content of unflushed changes, so T can cover them at once: after a crash,
    they are reapplied. `apply` also flushes all earlier changes.
    """

    def apply(self, changes: Sequence[Received]) -> None:
        """Apply changes durably, in a thread."""

    def apply_unflushed(self, changes: Sequence[Received]) -> None:
        """Apply changes without flushing them."""

    def apply_again(self, changes: Sequence[Received]) -> None:
        """Durably reapply changes that a crash may have left unflushed."""

    def flush(self) -> None:
        """Flush all applied changes. Called in another thread, even while changes are applied.

        After a failure, all later flushes fail until `prepare` is called.
        """


@runtime_checkable
class TransactionalHandler(Protocol):
    """A handler whose effects are committed in one transaction with T, so they are exactly once.

    It needs no `apply`. Effects outside the database may be repeated.
    """

    def apply_within(self, connection: Any, changes: Sequence[Received]) -> None:
        """Apply changes without committing. Each resource has at most one change in a call.

        If this method raises, its effects are rolled back. It is then called with each change
        alone, and those that fail are retried later.

        Args:
            connection: The connection of the transaction: a `psycopg.Connection` if the state is a
                `PostgreSQLState`. Do not keep it.
            changes: The changes.
        """


@runtime_checkable
class ReadableHandler(Protocol):
    """A handler that can return the content of its copy, so that patches can be applied."""

    def held_content(self, uri: str) -> Path | None:
        """Return a file with the content of a resource, or None.

        The subscriber only reads the file, and verifies its hash before applying a patch.
        """


class HeldResource(Struct, frozen=True):
    """The content that the store should hold for a resource.

    Args:
        hash: The digests of the content, as in `Received.hash`, or None while unknown.
        length: The length of the content in bytes.
    """

    hash: str | None
    length: int | None


@runtime_checkable
class CheckedHandler(Protocol):
    """A handler that can check its store for lost content.

    The store is checked at each start, after each comparison with the whole set, and every
    `FollowOptions.check_files` seconds. Until the first check is complete, the copy is not level.
    """

    def find_lost(self, held: Mapping[str, HeldResource]) -> Iterable[str]:
        """Return the URIs of resources whose content the store lacks. They are refetched.

        This method may delete resources that are not in `held` from the store. It is called in a
        thread, and never concurrently with `apply`. If it raises, the check is repeated later.
        """


@runtime_checkable
class LocatedHandler(ReadableHandler, Protocol):
    """A handler that keeps files in a place that may disappear, such as a mounted folder."""

    @property
    def place(self) -> str:
        """An identifier of the place, or an empty string while the place does not exist."""

    def find_files(self, uris: Sequence[str]) -> Iterable[tuple[str, os.stat_result | None]]:
        """Yield the path of each resource, and the `stat` result of its file, or None if missing.

        Like `paths`, this can be called in any thread, even while changes are being applied.
        """

    def paths(self) -> Iterator[str]:
        """Yield the paths of all files in the place."""


def deferred_handler(handler: object) -> DeferredHandler | None:
    """Return the handler if it can defer its flushes, or None.

    A subclass that overrides `apply` but not `apply_unflushed` cannot.
    """
    if not isinstance(handler, DeferredHandler):
        return None
    for kind in type(handler).__mro__:
        if "apply_unflushed" in vars(kind):
            return handler
        if "apply" in vars(kind):
            return None
    return handler


def in_thread(handler: Handler) -> Callable[[Sequence[Received]], object] | None:
    """Return `apply` if it must be called in a thread, or None if it must be awaited."""
    return handler.apply if is_plain_function(handler.apply) else None


@dataclass
class _AsyncFunction:
    """A handler that calls an async function with each change."""

    function: Callable[[Received], Awaitable[None] | None]

    async def apply(self, changes: Sequence[Received]) -> None:
        for change in changes:
            applied = self.function(change)
            if not inspect.isawaitable(applied):
                raise TypeError(
                    "the handler returned nothing to await; define it with `def` or `async def`"
                )
            await applied


@dataclass
class _PlainFunction:
    """A handler that calls a function with each change, in a thread."""

    function: Callable[[Received], object]

    def apply(self, changes: Sequence[Received]) -> None:
        for change in changes:
            refuse_awaitable(self.function(change))


def refuse_awaitable(result: object) -> None:
    """Raise `TypeError` if a plain function returned an awaitable, which was not awaited."""
    if inspect.isawaitable(result):
        if inspect.iscoroutine(result):
            result.close()
        raise TypeError("the handler returned an awaitable; define it with `async def`")


#: The handlers that a `Subscriber` accepts.
AnyHandler = Handler | TransactionalHandler | Callable[[Received], Awaitable[None] | None]


def as_handler(handler: AnyHandler) -> Handler | TransactionalHandler:
    """Return an object with `apply` or `apply_within` for any kind of handler.

    Raises:
        ConfigurationError: It is not a handler, or a method that runs in a thread is `async def`.
    """
    name = getattr(handler, "__name__", None) or type(handler).__name__
    if isinstance(handler, type):
        raise ConfigurationError(f"the handler {name} is a class; pass an instance")
    for method in ("apply_within", "find_lost"):
        if inspect.iscoroutinefunction(getattr(handler, method, None)):
            raise ConfigurationError(
                f"{name}.{method} is called in a thread; define it with `def`, not `async def`"
            )
    if isinstance(handler, TransactionalHandler | Handler):
        return handler
    if not callable(handler):
        raise ConfigurationError(
            f"a handler of type {name} is not supported; pass a function, or an object with "
            "`apply` or `apply_within`"
        )
    return _PlainFunction(handler) if is_plain_function(handler) else _AsyncFunction(handler)
