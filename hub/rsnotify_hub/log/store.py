"""What the hub keeps, and the interface of what keeps it.

The store keeps and does not decide: which fragment gives way to another, and who is
subscribed, is decided above it. Each method returns once its effect is durable, except
`move_cursor`, `move_bridged` and `note_trouble`.
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
        position: Its place. Positions grow, and are never used twice.
        fragment: The fragment.
    """

    position: int
    fragment: Fragment


class LogState(Struct, frozen=True):
    """The state of one topic's log.

    Args:
        topic: Whose log it is.
        first: The position of the oldest fragment that is kept, or past `position` if none is.
        position: The position of the last fragment, kept or not.
        begins: The instant that the kept part reaches back to.
        through: The latest instant that any fragment reached.
        received: When the last fragment came.
        kept: How many fragments are kept.
        size: The bytes of the kept fragments.
        heartbeat: What the last fragment covers, if it is a heartbeat.
        whole: Whether it holds the topic's whole content, and no changes.
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
    """What somebody has not got yet.

    Args:
        fragments: How many kept fragments stand after a position.
        begins: Where the first of them begins; None when there are none.
    """

    fragments: int
    begins: Instant | None


class Appended(Struct, frozen=True):
    """What an append did.

    Args:
        positions: The position of each fragment; None for one that the log has already.
        state: The log afterwards.
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
            after: When the log before them got something last, and its topic; None to begin.
            limit: How many at most.
        """

    async def append(
        self, topic: str, fragments: Sequence[Fragment], *, replacing: int | None
    ) -> Appended:
        """Append fragments to a log, and trim it by age and size.

        Args:
            topic: Whose log.
            fragments: At least one. A body that the log has already is passed over.
            replacing: The position of the log's last fragment, when it gives way.
        """

    async def read(self, topic: str, *, after: int, since: Instant | None = None) -> list[LogEntry]:
        """Read on in a log.

        Args:
            topic: Whose log.
            after: The position to start after.
            since: Leave out what reaches no further than this instant.

        Returns:
            The next entries, as many as make a handy page; none at the log's end.
        """

    async def changes(self, topic: str, *, since: Instant | None) -> list[LogEntry]:
        """Read what a log has of the time after an instant.

        Args:
            topic: Whose log.
            since: The instant; None for all time.

        Returns:
            The entries in the order of where they end, as many as make a handy page. Where
            none of these reaches back to the instant, but another does, that one.
        """

    async def trim(self, topic: str) -> LogState | None:
        """Trim a log that nobody appends to, by age. Return None if there is none."""

    async def waiting(self, topic: str, positions: Sequence[int]) -> list[Backlog]:
        """Tell what stands after each of some positions of a log, in their order."""

    async def forget(self, topic: str) -> None:
        """Delete a log. Its positions are not used again."""

    async def subscriptions(self) -> list[Subscription]:
        """Return every subscription."""

    async def save(self, subscription: Subscription) -> None:
        """Keep a new or renewed subscription."""

    async def delete(self, topic: str, callback: str) -> None:
        """Forget a subscription."""

    def move_cursor(self, topic: str, callback: str, position: int) -> None:
        """Note how far a subscription was delivered; durable soon.

        Losing the last moves in a crash only makes the hub deliver once more.
        """

    async def troubles(self) -> dict[tuple[str, str], bytes]:
        """Return the last state noted of each subscription whose deliveries fail.

        Returns:
            What `note_trouble` was given, by topic and callback.
        """

    def note_trouble(self, topic: str, callback: str, state: bytes | None) -> None:
        """Store how deliveries to a subscription fail; None if they do not; durable soon.

        It is deleted with the subscription.
        """

    async def bridged(self, broker: str) -> dict[str, int]:
        """Return how far a broker has each topic, by position; nothing of a new broker."""

    async def bridge(self, broker: str, positions: Mapping[str, int]) -> None:
        """Keep how far a broker has some topics."""

    async def unbridge(self, broker: str, topic: str) -> None:
        """Forget how far a broker has a topic."""

    def move_bridged(self, broker: str, topic: str, position: int) -> None:
        """Note how far a broker has a topic; durable soon, as with `move_cursor`."""

    def queued(self) -> int:
        """Count the writes that wait for the next transaction."""

    async def check(self) -> None:
        """Write something, to see that the store can."""

    async def close(self) -> None:
        """Finish what was begun, and let go."""
