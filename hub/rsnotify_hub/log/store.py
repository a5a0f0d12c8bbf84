"""The interface of the store, and the values in it.

The store makes no decisions: its callers decide which fragment replaces another, and who is
subscribed. Each method returns once its effect is durable, except `move_cursor`, `move_bridged`
and `note_trouble`, whose effect becomes durable soon.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol

from msgspec import Struct

from rsnotify.format.datetimes import Instant
from rsnotify_hub.log.fragments import Fragment, Interval
from rsnotify_hub.subscriptions import Subscription


class LogEntry(Struct, frozen=True):
    """A fragment in a log.

    Args:
        position: Its position. Positions increase, and are never reused.
        fragment: The fragment.
    """

    position: int
    fragment: Fragment


class LogState(Struct, frozen=True):
    """The state of one topic's log.

    Args:
        topic: The topic.
        first: The position of the oldest kept fragment, or past `position` if none is kept.
        position: The position of the last fragment, kept or not.
        begins: The instant at which the kept part begins.
        through: The latest `until` of all fragments.
        received: When the last fragment arrived.
        kept: The number of kept fragments.
        size: Their bytes.
        heartbeat: The interval of the last fragment, if it is a heartbeat.
        whole: Whether the log has the topic's whole content instead of changes.
    """

    topic: str
    first: int
    position: int
    begins: Instant
    through: Instant
    received: Instant
    kept: int
    size: int
    heartbeat: Interval | None
    whole: bool = False


class Backlog(Struct, frozen=True):
    """The fragments that a subscriber has not received yet.

    Args:
        fragments: The number of kept fragments after its position.
        begins: The begin of the first of them; None if there are none.
    """

    fragments: int
    begins: Instant | None


class Appended(Struct, frozen=True):
    """The result of an append.

    Args:
        positions: The position of each fragment; None for a fragment that the log already had.
        state: The state of the log afterwards.
    """

    positions: tuple[int | None, ...]
    state: LogState


class Store(Protocol):
    """A durable log for each topic, and the subscriptions with their cursors.

    Every method raises `StorageError` when the store fails.
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
        self, topic: str, fragments: Sequence[Fragment], *, replacing: int | None
    ) -> Appended:
        """Append fragments to a log, and trim it by age and size.

        Args:
            topic: The topic.
            fragments: At least one. A body that the log already has is skipped.
            replacing: The position of the log's last fragment, if it is replaced.
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

    async def subscriptions(self) -> list[Subscription]:
        """Return every subscription."""

    async def save(self, subscription: Subscription) -> None:
        """Store a new or renewed subscription."""

    async def delete(self, topic: str, callback: str) -> None:
        """Delete a subscription."""

    def move_cursor(self, topic: str, callback: str, position: int) -> None:
        """Move the cursor of a subscription; durable soon.

        If a crash loses the last moves, the hub delivers some fragments twice.
        """

    async def troubles(self) -> dict[tuple[str, str], bytes]:
        """Return the last state passed to `note_trouble`, by topic and callback."""

    def note_trouble(self, topic: str, callback: str, state: bytes | None) -> None:
        """Store how deliveries to a subscription fail, None if they do not; durable soon.

        The state is deleted with the subscription.
        """

    async def bridged(self, broker: str) -> dict[str, int]:
        """Return the cursor of a broker in each log; empty for a new broker."""

    async def bridge(self, broker: str, positions: Mapping[str, int]) -> None:
        """Store cursors of a broker."""

    async def unbridge(self, broker: str, topic: str) -> None:
        """Delete a cursor of a broker."""

    def move_bridged(self, broker: str, topic: str, position: int) -> None:
        """Move a cursor of a broker; durable soon, like `move_cursor`."""

    def queued(self) -> int:
        """Return the number of writes that wait for the next transaction."""

    async def check(self) -> None:
        """Check that the store can write."""

    async def close(self) -> None:
        """Finish all writes, and release all resources."""
