"""The interface of the store, and the values that it holds.

The store makes no decisions. Its callers decide which fragment replaces another, and who is
subscribed. Each method returns when its effect is durable, except `move_cursor`, `move_bridged`
and `save_failure_state`, whose effect becomes durable soon afterwards.

An *uncertain write* is a write that the store reported as failed but that took effect.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from datetime import timedelta
from typing import Protocol

from msgspec import Struct

from rsnotify.errors import StorageError
from rsnotify.format.datetimes import Instant
from rsnotify_hub.fragments import Fragment, Interval
from rsnotify_hub.websub_subscription import Subscription


class LogEntry(Struct, frozen=True):
    """A fragment in a log. Positions increase and are never reused."""

    position: int
    fragment: Fragment


class LogState(Struct, frozen=True):
    """The state of one topic's log.

    Args:
        first: The position of the oldest kept fragment; greater than `position` if none is kept.
        position: The position of the last fragment, even if it is no longer kept.
        begins: The start of the oldest kept fragment.
        through: The latest `until` of all fragments.
        received: When the last fragment arrived.
        kept: The number of kept fragments.
        size: The total size of the kept fragments, in bytes.
        heartbeat: The interval of the last fragment, if it is a heartbeat.
        whole: Whether the log holds the topic's whole content instead of changes.
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
    """The kept fragments that a subscriber has not received: their number and start."""

    fragments: int
    begins: Instant | None


class LogRetention(Struct, frozen=True):
    """The maximum size of a topic's log in bytes, and the maximum age of a fragment.

    The last fragment is kept regardless of its size.
    """

    size: int
    age: timedelta


class LogMoved(StorageError):
    """The log has changed since the caller last saw it, and the listener now has its new state.

    In a cluster, another node has appended to the log. On a single machine, there was an uncertain
    write.
    """


class LogListener(Protocol):
    """Is notified of the changes that any node makes to the logs. Methods must not block."""

    def append_started(self, topic: str, fragments: Sequence[Fragment]) -> None:
        """Called when the store starts to write fragments. They become entries unless that fails.

        A store that orders the writes of several nodes does not call this method.
        """

    def appended(
        self, topic: str, entries: Sequence[LogEntry], state: LogState, replaced: int | None
    ) -> None:
        """Called when entries have become durable, in log order, with the new state of the log.

        There are no entries if the log was only trimmed. `replaced` is the position of the entry
        that the first new entry replaced, if any.
        """

    def forgotten(self, topic: str) -> None:
        """Called when a log was deleted."""


class LogStore(Protocol):
    """A durable log for each topic. Every method raises `StorageError` when the store fails.

    Attributes:
        answer_seconds: Maximum time to wait for a publication to be stored before the hub answers
            503, in seconds. None, for a store on this machine, means no limit.
    """

    answer_seconds: float | None

    async def start(self, listener: LogListener) -> list[LogState]:
        """Return the state of every log, and notify `listener` of later changes.

        The listener receives each later entry exactly once, in order. It is not called between the
        return of this method and the caller's next `await`.
        """

    async def newest(self, *, after: tuple[Instant, str] | None, limit: int) -> list[LogState]:
        """Return the states of at most `limit` logs, newest first.

        For the next page, pass `received` and the topic of the previous page's last log as `after`.
        """

    async def append(
        self, topic: str, fragments: Sequence[Fragment], *, after: int, replacing: int | None
    ) -> int:
        """Append one or more fragments, trim the log, and return the number of new entries.

        Skips a fragment if the log already has the same body. Trims by age and size. The listener
        receives the entries before this method returns.

        `after` is the position of the log's last fragment, as far as the caller knows; 0 if there
        is no log. `replacing` equals `after` if the first new fragment replaces the last fragment.

        Raises:
            LogMoved: The log's last fragment is at another position.
        """

    async def read(self, topic: str, *, after: int, since: Instant | None = None) -> list[LogEntry]:
        """Return the next page of entries after a position; empty at the end of the log.

        Omits fragments that end at or before `since`, except those that also begin at `since`,
        which contain late changes from that second.
        """

    async def changes(self, topic: str, *, since: Instant | None) -> list[LogEntry]:
        """Return a page of a log's entries, ordered by `until`.

        With `since`, the page contains only entries that are later than that instant. If all of
        them begin after the instant, but entries beyond the page do not, it contains those instead.
        """

    async def trim(self, topic: str) -> LogState | None:
        """Trim a log by age and size, and return its state; None if there is no log."""

    async def backlogs(self, topic: str, positions: Sequence[int]) -> list[Backlog]:
        """Return the backlog after each position of a log, in the order given."""

    async def forget(self, topic: str, *, after: int) -> None:
        """Delete a log, and call the listener. The log's positions are not reused.

        Raises:
            LogMoved: The position of the log's last fragment is not `after`.
        """


class StoredSubscription(Struct, frozen=True):
    """A subscription, and its failure state (`save_failure_state`), if any."""

    subscription: Subscription
    failure_state: bytes | None


class SubscriptionRecords(Struct, frozen=True):
    """All subscriptions of a hub, and the cursors of each broker."""

    subscriptions: Sequence[Subscription]
    brokers: Mapping[str, Mapping[str, int]]


class NotOwner(StorageError):
    """This node does not own the subscription or the bridge. Another node does, or soon will."""


class SubscriptionOwner(Protocol):
    """Delivers to the subscriptions that the store assigns to it."""

    def acquired(self, stored: Sequence[StoredSubscription]) -> None:
        """Start delivering to these subscriptions, from their cursors."""

    async def released(self, ids: Collection[str]) -> None:
        """Stop delivering to these subscriptions. Give running deliveries a few seconds to finish.

        Until this returns, the cursors may still be moved.
        """

    def revoked(self, ids: Collection[str]) -> None:
        """Stop delivering to these subscriptions, which another node may already own."""


class BridgeOwner(Protocol):
    """A bridge to a broker. Only one node runs it at a time."""

    async def start(self) -> None:
        """Start publishing from the cursors in the store."""

    async def close(self) -> None:
        """Stop. The bridge may be restarted."""


class SubscriptionStore(Protocol):
    """The subscriptions with their cursors.

    Several nodes may share a store. Each subscription then has one owner at a time, and only the
    owner may write. All subscriptions with the same callback host and port have the same owner.
    Every method raises `StorageError` when the store fails. Methods that write raise `NotOwner` on
    a node that is not the owner.
    """

    async def assign(self, owner: SubscriptionOwner) -> None:
        """Assign the stored subscriptions to an owner now, and others later."""

    def owns(self, authority: str) -> bool:
        """Return whether this node may currently deliver to callbacks at this host and port."""

    async def save(self, subscription: Subscription) -> None:
        """Store a new or renewed subscription."""

    async def delete(self, topic: str, callback: str) -> None:
        """Delete a subscription."""

    def move_cursor(self, topic: str, callback: str, position: int) -> None:
        """Move a subscription's cursor. Do nothing if this node does not own the subscription.

        The move becomes durable soon. If a crash loses the last moves, the hub delivers some
        fragments twice.
        """

    def save_failure_state(self, topic: str, callback: str, state: bytes | None) -> None:
        """Store the failure state of a subscription's deliveries; None if they succeed.

        Durability and ownership are as in `move_cursor`. The state is deleted with the
        subscription.
        """

    async def records(self) -> SubscriptionRecords:
        """Return all subscriptions and cursors of all nodes."""

    async def restore(self, records: SubscriptionRecords) -> int:
        """Store missing subscriptions and brokers, and return the number of subscriptions stored.

        A subscription replaces a stored one if its lease ends later. A stored broker is never
        replaced. Call this before `assign`. Running nodes start delivering to the subscriptions
        that they own.
        """


class BridgeStore(Protocol):
    """The cursors of brokers. One node at a time runs the bridges, and owns the cursors.

    Methods raise `StorageError` when the store fails. Methods that write raise `NotOwner` on any
    other node.
    """

    async def assign_bridge(self, bridge: BridgeOwner) -> None:
        """Run the bridge while this node owns the cursors."""

    def owns_bridge(self) -> bool:
        """Return whether this node may currently publish to brokers."""

    async def bridged(self, broker: str) -> dict[str, int]:
        """Return a broker's cursor in each log; empty for a new broker."""

    async def bridge(self, broker: str, positions: Mapping[str, int]) -> None:
        """Store cursors for a broker."""

    async def unbridge(self, broker: str, topic: str) -> None:
        """Delete a broker's cursor in one topic."""

    def move_bridged(self, broker: str, topic: str, position: int) -> None:
        """Move a broker's cursor. The move becomes durable soon, like `move_cursor`."""


class Store(LogStore, SubscriptionStore, BridgeStore, Protocol):
    """Everything that a hub stores."""

    def queued(self) -> int:
        """Return the number of writes that are waiting for the next transaction."""

    async def check(self) -> None:
        """Check that the store can write."""

    async def close(self) -> None:
        """Finish all writes and release all resources."""
