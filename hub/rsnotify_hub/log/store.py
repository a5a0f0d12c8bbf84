"""The interface of the store, and the values in it.

The store makes no decisions: its callers decide which fragment replaces another, and who is
subscribed. Each method returns once its effect is durable, except `move_cursor`, `move_bridged`
and `note_trouble`, whose effect becomes durable soon.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import timedelta
from typing import Protocol

from msgspec import Struct

from rsnotify.format.datetimes import Instant
from rsnotify_hub.log.fragments import Fragment, Interval
from rsnotify_hub.subscriptions import Subscription


class LogEntry(Struct, frozen=True):
    """A fragment in a log. Positions increase, and are never reused."""

    position: int
    fragment: Fragment


class LogState(Struct, frozen=True):
    """The state of one topic's log.

    Args:
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
    """The number of kept fragments that a subscriber has not received, and their begin."""

    fragments: int
    begins: Instant | None


class Appended(Struct, frozen=True):
    """The entries of the fragments that the log did not have, and its state afterwards."""

    entries: list[LogEntry]
    state: LogState


class LogRetention(Struct, frozen=True):
    """The bytes of a topic's log, and the age of a fragment, up to which they are kept.

    The last fragment is kept, whatever its size.
    """

    size: int
    age: timedelta


class Store(Protocol):
    """A durable log for each topic, and the subscriptions with their cursors.

    Every method raises `StorageError` when the store fails.
    """

    async def logs(self) -> list[LogState]:
        """Return the state of every log."""

    async def newest(self, *, after: tuple[Instant, str] | None, limit: int) -> list[LogState]:
        """Return the state of at most `limit` logs, the newest first.

        A page begins after the `received` and the topic of the last log of the page before.
        """

    async def append(
        self, topic: str, fragments: Sequence[Fragment], *, replacing: int | None
    ) -> Appended:
        """Append at least one fragment to a log, and trim it by age and size.

        A body that the log already has is skipped. `replacing` is the position of the log's last
        fragment, if it is replaced.
        """

    async def read(self, topic: str, *, after: int, since: Instant | None = None) -> list[LogEntry]:
        """Return the next entries after a position, up to the size of a page; none at the end.

        Fragments that end at `since` or before are left out.
        """

    async def changes(self, topic: str, *, since: Instant | None) -> list[LogEntry]:
        """Return the entries of a log after an instant, or all, in the order of their ends.

        They are at most a page. If none of these begins at the instant or before, but others do, it
        has those.
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
