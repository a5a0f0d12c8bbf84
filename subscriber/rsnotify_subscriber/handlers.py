"""Handlers, which apply changes to the copy, and the changes that they receive.

There are two kinds of handler:

- A callable for changes: a function of one `Received`, or an object with `apply` (`Handler`), which
  receives many changes at once. An `async def` runs on the event loop. A plain `def` runs in the
  thread of the state, which saves a handover between threads for each change.
- A transactional handler, with `apply_within` (`TransactionalHandler`). It receives the connection
  of the state, and its effect is committed together with T.

Either may also have `prepare`, `held_content`, `find_lost`, or all methods of a `LocatedHandler`.
The interface of a `DeferredHandler` is private to `FolderMirror`.
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
    """A change, ready to be applied.

    Args:
        change: The type of change. In a baseline, a resource that is new or different is `updated`.
        uri: The URI of the resource.
        at: The datetime of the change, or of the Resource List.
        resource: The entry as the Source wrote it.
        content: A temporary file with the verified content, or None for a deletion. The file is
            removed after `apply`, unless the handler has renamed it. `read` returns the content.
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
    """Applies changes. `apply` is either `async def`, or plain `def` and called in a thread."""

    def apply(self, changes: Sequence[Received]) -> Awaitable[None] | None:
        """Apply changes durably. Each resource has at most one change in a call.

        Changes are delivered at least once: after a crash, the last ones are redelivered. If
        this method raises `StoreUnavailable`, it is called again later with the same changes. If it
        raises anything else, it is called with each change alone, and a change that still fails is
        retried later.
        """


@runtime_checkable
class PreparedHandler(Protocol):
    def prepare(self, base: str, temporary: Path) -> None:
        """Prepare for the set of resources. Called once, before the first `apply`.

        Args:
            base: The URI below which the Source describes its resources.
            temporary: The folder of the state. Content is received on its file system.
        """


@runtime_checkable
class DeferredHandler(Protocol):
    """A handler that can make changes visible first and flush them later, many at once.

    Its `apply` also flushes everything that was applied before without a flush. The state keeps the
    content of unflushed changes until they are flushed. T can therefore cover them immediately, and
    after a crash they are reapplied.
    """

    def apply(self, changes: Sequence[Received]) -> None:
        """Apply changes durably, in a thread."""

    def apply_unflushed(self, changes: Sequence[Received]) -> None:
        """Apply changes as `apply` does, but leave it to the next `flush` to make them durable."""

    def apply_again(self, changes: Sequence[Received]) -> None:
        """Apply durably all changes that may have been applied but not flushed before a crash."""

    def flush(self) -> None:
        """Flush everything applied before. Called in another thread, even during `apply…`.

        If a flush has failed, all later ones fail until `prepare` is called.
        """


@runtime_checkable
class TransactionalHandler(Protocol):
    """A handler whose effect is committed in one transaction with T, so it happens exactly once.

    It needs no `apply`. Effects outside the database may be repeated.
    """

    def apply_within(self, connection: Any, changes: Sequence[Received]) -> None:
        """Apply changes without committing. Each resource has at most one change in a call.

        If this method raises, its effect is rolled back. It is then called with each change alone,
        and a change that still fails is retried later.

        Args:
            connection: A connection to the database of the state: a `psycopg.Connection` with
                `PostgreSQLState`. It belongs to the transaction and must not be kept.
            changes: The changes.
        """


@runtime_checkable
class ReadableHandler(Protocol):
    """A handler that can return the content it holds, so that patches can be applied to it."""

    def held_content(self, uri: str) -> Path | None:
        """Return a file with the last applied content of a resource, if there is one.

        The file is only read. Its hash is checked before a patch is applied to it.
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
    """A handler that compares its store with the content that it should hold.

    The copy is not level until the handler has done so: at each start, after each comparison with
    the whole set, and at the interval `FollowOptions.check_files`.
    """

    def find_lost(self, held: Mapping[str, HeldResource]) -> Iterable[str]:
        """Return the URIs of resources whose content the store lacks. They are refetched.

        This method may remove resources from the store that are not in `held`. It is called in a
        thread, and never concurrently with `apply`. If it raises, the check is repeated later.
        """


@runtime_checkable
class LocatedHandler(ReadableHandler, Protocol):
    """A handler that holds resources in a place that may disappear, such as a mounted folder."""

    @property
    def place(self) -> str:
        """An identifier of the place, which is empty while the place does not exist."""

    def find_files(self, uris: Sequence[str]) -> Iterable[tuple[str, os.stat_result | None]]:
        """Yield each resource's path and the status of its file, which is None without a file.

        Like `paths`, this is called in any thread, even while changes are being applied.
        """

    def paths(self) -> Iterator[str]:
        """Yield the paths of all files in the place."""


def deferred_handler(handler: object) -> DeferredHandler | None:
    """Return the handler if it may defer its flushes, or None.

    A subclass that overrides `apply` but not `apply_unflushed` may not defer them.
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
    """Return the method that applies changes in a thread, or None if `apply` must be awaited."""
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
                    "the handler returned nothing to await; write it with `def` or `async def`"
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
    """Raise `TypeError` if a plain function returned an awaitable, which would apply nothing."""
    if inspect.isawaitable(result):
        if inspect.iscoroutine(result):
            result.close()
        raise TypeError("the handler returned something to await; write it with `async def`")


#: The handlers that a `Subscriber` accepts.
AnyHandler = Handler | TransactionalHandler | Callable[[Received], Awaitable[None] | None]


def as_handler(handler: AnyHandler) -> Handler | TransactionalHandler:
    """Return an object with `apply` or `apply_within` for any kind of handler.

    Raises:
        ConfigurationError: It is not a handler, or an async method would be called in a thread.
    """
    name = getattr(handler, "__name__", None) or type(handler).__name__
    if isinstance(handler, type):
        raise ConfigurationError(f"the handler {name} is a class; give an instance of it")
    for method in ("apply_within", "find_lost"):
        if inspect.iscoroutinefunction(getattr(handler, method, None)):
            raise ConfigurationError(
                f"{name}.{method} is called in a thread and not awaited; write it `def`"
            )
    if isinstance(handler, TransactionalHandler | Handler):
        return handler
    if not callable(handler):
        raise ConfigurationError(
            f"the handler is of type {name}; give an object with `apply` or `apply_within`, or a "
            "function"
        )
    return _PlainFunction(handler) if is_plain_function(handler) else _AsyncFunction(handler)
