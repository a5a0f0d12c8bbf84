"""The interface between the hub and its store.

Theory of operation. A store holds one log per topic. On a cluster several hubs (nodes) use one
store. Every node is notified of everything that becomes part of a log, in the same order, whoever
appended it. A node appends what it has planned from the log as it knows it; if the log has moved
on, nothing is appended, and the node plans again.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from rsnotify.errors import StorageError
from rsnotify.format.datetimes import Instant
from rsnotify_hub.log.fragments import Fragment
from rsnotify_hub.log.store import Appended, Backlog, LogEntry, LogState


class LogMoved(StorageError):
    """Another node has appended to the log, or deleted it: plan the append again.

    The listener has received what was appended meanwhile. Nothing was appended by this call; or,
    of several fragments, only the first ones, which a new plan skips since the log has them.
    """


class LogListener(Protocol):
    """Is notified of changes of the logs. Its methods must not block."""

    def appended(
        self, topic: str, entries: Sequence[LogEntry], state: LogState, replaced: int | None
    ) -> None:
        """Receive entries that became part of a log.

        Args:
            topic: The topic.
            entries: At least one, in the order of the log.
            state: The state of the log with these entries.
            replaced: The position of the entry that the first of these replaced, if any.
        """

    def forgotten(self, topic: str) -> None:
        """Note that a log was deleted."""


class LogStore(Protocol):
    """A durable log for each topic.

    Every method raises `StorageError` when the store fails. Each returns once its effect is
    durable, as far as the store can tell.
    """

    async def start(self, listener: LogListener) -> None:
        """Load the logs, and from now on notify a listener.

        The listener receives each entry that becomes part of a log from now on exactly once, in
        the order of the log, in the event loop; on every node in the same order.
        """

    async def logs(self) -> list[LogState]:
        """Return the state of every log."""

    async def newest(self, *, after: tuple[Instant, str] | None, limit: int) -> list[LogState]:
        """Return the state of some logs, the newest first.

        Args:
            after: The `received` and the topic of the log before them; None to begin.
            limit: The largest number of logs.
        """

    async def append(
        self, topic: str, fragments: Sequence[Fragment], *, after: int, replacing: int | None
    ) -> Appended:
        """Append fragments to a log, and trim it by age and size.

        It returns after the listener has received the entries.

        Args:
            topic: The topic.
            fragments: At least one. A body that the log already has is skipped.
            after: The position of the log's last entry, from which the caller has planned; 0 if
                there is no log.
            replacing: The position of the log's last fragment, if it is replaced.

        Raises:
            LogMoved: The last entry of the log is another one.
            TooLarge: A fragment is larger than the store allows.
        """

    async def read(self, topic: str, *, after: int, since: Instant | None = None) -> list[LogEntry]:
        """Read a page of a log.

        Args:
            topic: The topic.
            after: The position to start after.
            since: Leave out fragments that end at this instant or before.

        Returns:
            The next entries, up to the size of a page; none at the end of the log.
        """

    async def changes(self, topic: str, *, since: Instant | None) -> list[LogEntry]:
        """Read a page of the entries of a log after an instant.

        Args:
            topic: The topic.
            since: The instant; None for all entries.

        Returns:
            The entries in the order of their ends, up to the size of a page. If none of these
            begins at the instant or before, but others do, those.
        """

    async def trim(self, topic: str) -> LogState | None:
        """Trim a log by age and size, and return its state; None if there is none."""

    async def backlogs(self, topic: str, positions: Sequence[int]) -> list[Backlog]:
        """Return the backlog after each of some positions of a log, in their order."""

    async def forget(self, topic: str) -> None:
        """Delete a log. Its positions are not reused."""

    def queued(self) -> int:
        """Return the number of writes that wait."""

    async def check(self) -> None:
        """Check that the store can write."""

    async def close(self) -> None:
        """Finish all writes, and release all resources."""
