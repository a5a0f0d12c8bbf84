"""The interface of the store, and the values in it.

The store makes no decisions: its callers decide which fragment replaces another, and who is
subscribed. Each method returns once its effect is durable, except `move_cursor`, `move_bridged`
and `note_trouble`, whose effect becomes durable soon.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from datetime import timedelta
from typing import Protocol

from msgspec import Struct

from rsnotify.errors import StorageError
from rsnotify.format.datetimes import Instant
from rsnotify_hub.fragments import Fragment, Interval
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
    """The number of kept fragments that a subscriber has not received, and their start."""

    fragments: int
    begins: Instant | None


class LogRetention(Struct, frozen=True):
    """The bytes of a topic's log, and the age of a fragment, up to which they are kept.

    The last fragment is kept, whatever its size.
    """

    size: int
    age: timedelta


class LogMoved(StorageError):
    """The log is no longer as the caller knew it; its listener now knows what has happened to it.

    On a cluster another node has appended to it; on one machine, a write that was reported as
    failed had succeeded.
    """


class LogListener(Protocol):
    """Receives the changes that any node makes to the logs. Its methods must not block."""

    def writing(self, topic: str, fragments: Sequence[Fragment]) -> None:
        """Receive fragments whose write begins; they become entries unless the write fails.

        A store that orders the writes of several hubs does not call this.
        """

    def appended(
        self, topic: str, entries: Sequence[LogEntry], state: LogState, replaced: int | None
    ) -> None:
        """Receive entries that are now durable.

        Args:
            topic: The topic.
            entries: The entries, in the order of the log; none if the log was only trimmed.
            state: The state of the log with these entries.
            replaced: The position of the entry that the first of them replaced, if any.
        """

    def forgotten(self, topic: str) -> None:
        """Note that a log was deleted."""


class LogStore(Protocol):
    """A durable log for each topic. Every method raises `StorageError` when the store fails.

    Attributes:
        answer_seconds: After how many seconds a publication is answered with 503 if it is not
            stored yet; None to wait for a store that is not on other machines.
    """

    answer_seconds: float | None

    async def start(self, listener: LogListener) -> list[LogState]:
        """Return the state of every log, and call `listener` from now on.

        It receives each entry that becomes part of a log later exactly once, in order. It is not
        called between the return of this method and the next `await` of its caller.
        """

    async def newest(self, *, after: tuple[Instant, str] | None, limit: int) -> list[LogState]:
        """Return the state of at most `limit` logs, the newest first.

        A page begins after the `received` and the topic of the last log of the page before.
        """

    async def append(
        self, topic: str, fragments: Sequence[Fragment], *, after: int, replacing: int | None
    ) -> int:
        """Append at least one fragment to a log, and trim it by age and size.

        A body that the log already has is skipped. The listener has received the entries when this
        returns their number.

        Args:
            topic: The topic.
            fragments: The fragments.
            after: The position of the log's last fragment, as the caller knows it; 0 without a log.
            replacing: The same position, if that fragment is replaced.

        Raises:
            LogMoved: The log has another last fragment.
        """

    async def read(self, topic: str, *, after: int, since: Instant | None = None) -> list[LogEntry]:
        """Return the next entries after a position, up to the size of a page; none at the end.

        Fragments that end at `since` or before are left out, except one that begins there, too: it
        has late changes of that second.
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

    async def forget(self, topic: str, *, after: int) -> None:
        """Delete a log, and call the listener. Its positions are not reused.

        Raises:
            LogMoved: The position of its last fragment is not `after`.
        """


class StoredSubscription(Struct, frozen=True):
    """A subscription, and the last state passed to `note_trouble`, if any."""

    subscription: Subscription
    trouble: bytes | None


class SubscriptionRecords(Struct, frozen=True):
    """All subscriptions of a hub, and the cursors of each broker."""

    subscriptions: Sequence[Subscription]
    brokers: Mapping[str, Mapping[str, int]]


class NotOwner(StorageError):
    """This node does not, or no longer, own the subscription: another node does, or will soon."""


class SubscriptionOwner(Protocol):
    """Delivers to the subscriptions that the store assigns to it."""

    def acquired(self, stored: Sequence[StoredSubscription]) -> None:
        """Begin to deliver to some subscriptions, from their cursors."""

    async def released(self, ids: Collection[str]) -> None:
        """Deliver no more to some subscriptions, and wait, within bounds, for what runs.

        Their cursors may still be moved until this returns.
        """

    def revoked(self, ids: Collection[str]) -> None:
        """Deliver no more to some subscriptions, which another node may own already."""


class BridgeOwner(Protocol):
    """A bridge to a broker, of which one runs at a time."""

    async def start(self) -> None:
        """Start, from the cursors in the store."""

    async def close(self) -> None:
        """Stop; it may be started again."""


class SubscriptionStore(Protocol):
    """The subscriptions with their cursors.

    Several nodes may share a store; then each subscription has one owner at a time, which alone may
    write. All subscriptions of one callback host and port have the same owner. Every method raises
    `StorageError` when the store fails, and those that write `NotOwner` on a node that is not the
    owner.
    """

    async def assign(self, owner: SubscriptionOwner) -> None:
        """Assign subscriptions to an owner: now those that are stored, and later others."""

    def owns(self, authority: str) -> bool:
        """Return whether this node may deliver to the callbacks of a host and port right now."""

    async def save(self, subscription: Subscription) -> None:
        """Store a new or renewed subscription."""

    async def delete(self, topic: str, callback: str) -> None:
        """Delete a subscription."""

    def move_cursor(self, topic: str, callback: str, position: int) -> None:
        """Move the cursor of a subscription; durable soon, and ignored if it is not owned.

        If a crash loses the last moves, the hub delivers some fragments twice.
        """

    def note_trouble(self, topic: str, callback: str, state: bytes | None) -> None:
        """Store how deliveries to a subscription fail, None if they do not; like `move_cursor`.

        The state is deleted with the subscription.
        """

    async def records(self) -> SubscriptionRecords:
        """Return all subscriptions and cursors, whichever node owns them."""

    async def restore(self, records: SubscriptionRecords) -> int:
        """Store subscriptions and brokers that are missing, and return how many subscriptions.

        A stored subscription is replaced by one whose lease ends later, and a stored broker is not.
        Nothing may be assigned to this process; nodes that run begin to deliver to what they own.
        """


class BridgeStore(Protocol):
    """The cursors of brokers, which one node at a time owns: the one that runs the bridges.

    Methods raise `StorageError` when the store fails, and those that write `NotOwner` on another
    node.
    """

    async def assign_bridge(self, bridge: BridgeOwner) -> None:
        """Start a bridge: now, or when this node is the one that runs it; and stop it when it no
        longer is.
        """

    def owns_bridge(self) -> bool:
        """Return whether this node may publish to brokers right now."""

    async def bridged(self, broker: str) -> dict[str, int]:
        """Return the cursor of a broker in each log; empty for a new broker."""

    async def bridge(self, broker: str, positions: Mapping[str, int]) -> None:
        """Store cursors of a broker."""

    async def unbridge(self, broker: str, topic: str) -> None:
        """Delete a cursor of a broker."""

    def move_bridged(self, broker: str, topic: str, position: int) -> None:
        """Move a cursor of a broker; durable soon, like `move_cursor`."""


class Store(LogStore, SubscriptionStore, BridgeStore, Protocol):
    """Everything that a hub stores."""

    def queued(self) -> int:
        """Return the number of writes that wait for the next transaction."""

    async def check(self) -> None:
        """Check that the store can write."""

    async def close(self) -> None:
        """Finish all writes, and release all resources."""
