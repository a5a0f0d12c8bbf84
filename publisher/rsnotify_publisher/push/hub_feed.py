"""The feed of one hub: which fragment to send next, and which ones the hub has accepted.

A transport sends the fragments from `HubFeed.fragments` one after the other, and calls `accepted`
when the hub has made a fragment durable. The feed keeps the cursor between connections. All feeds
of a channel read from one `Stream`, which wakes them when there are new changes.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from time import time
from typing import Protocol

from msgspec import Struct

from rsnotify.format.datetimes import Instant, format_datetime, from_microseconds, to_microseconds
from rsnotify.format.hashes import SetDigest
from rsnotify.format.inline_content import with_inline_content
from rsnotify.format.model import Capability, Document, Link, Rel, Resource
from rsnotify.format.writer import Profile, closing, entry, opening
from rsnotify_publisher.counters import HubCounters
from rsnotify_publisher.journal import JournalState, RecordedChanges
from rsnotify_publisher.push.change_stream import Stream

logger = logging.getLogger("rsnotify.publisher")


class OutgoingFragment(Struct, frozen=True):
    """A fragment with all changes after `from_` and through `until`. A heartbeat has none."""

    from_: Instant
    until: Instant
    body: bytes
    is_heartbeat: bool = False


class FragmentWriter(Struct, frozen=True):
    """Writes fragments with an `up` link to a URI.

    The entries of a fragment have at most `max_bytes`, unless a single change is larger.
    """

    up: str
    max_entries: int
    max_bytes: int
    profile: Profile = Profile.V1_1
    capability: str = Capability.CHANGE_NOTIFICATION

    def fragments(
        self,
        from_: Instant,
        changes: Sequence[Resource],
        contents: Mapping[str, bytes | None],
        digest: SetDigest | None = None,
    ) -> Iterator[OutgoingFragment]:
        """Yield consecutive fragments with the given changes, which directly follow `from_`.

        Content from `contents` is sent inline, with the last change of its resource. The last
        fragment carries `digest`.
        """
        last = {change.uri: number for number, change in enumerate(changes)}
        entries: list[bytes] = []
        size, until = 0, from_
        for number, change in enumerate(changes):
            inline = contents.get(change.uri) if last[change.uri] == number else None
            written = entry(with_inline_content(change, inline), profile=self.profile)
            is_full = len(entries) == self.max_entries or size + len(written) > self.max_bytes
            if entries and is_full:
                yield self._fragment(from_, until, entries)
                from_, entries, size = until, [], 0
            entries.append(written)
            size += len(written)
            assert change.datetime is not None
            until = change.datetime
        if entries:
            yield self._fragment(from_, until, entries, digest)

    def heartbeat(
        self, from_: Instant, until: Instant, digest: SetDigest | None = None
    ) -> OutgoingFragment:
        return self._fragment(from_, until, [], digest)

    def _fragment(
        self, from_: Instant, until: Instant, entries: list[bytes], digest: SetDigest | None = None
    ) -> OutgoingFragment:
        head = Document(
            self.capability,
            from_=from_,
            until=until,
            links=(Link(Rel.UP, self.up),),
            attributes=digest.attributes if digest is not None else (),
        )
        body = b"".join([opening(head), *entries, closing(head)])
        return OutgoingFragment(from_, until, body, is_heartbeat=not entries)


class FragmentFeed(Protocol):
    """The fragments of a channel that one hub lacks, in the order of the changes."""

    def fragments(self, through: Instant | None = None) -> AsyncGenerator[OutgoingFragment, None]:
        """Yield fragments indefinitely, and heartbeats while there are no changes.

        Args:
            through: The instant through which the hub reports having all changes; None if it
                reports nothing.
        """

    def accepted(self, until: Instant) -> None:
        """Record that the hub has every change up to an instant."""


def resume_at(through: int | None, cursor: int, state: JournalState) -> int:
    """Return the instant after which to feed a hub, limited to the range of the journal.

    The instant `through` that the hub reports takes precedence over the stored cursor: the hub may
    have lost fragments, or accepted fragments after the cursor was stored. If the hub reports none,
    the feed starts at the cursor.
    """
    start = cursor if through is None else through
    return min(max(start, state.pruned), state.reached)


@dataclass(eq=False)
class HubFeed:
    """The feed of one hub on one channel.

    Args:
        stream: The changes, or the notices of documents.
        cursor: The instant (µs) through which the hub is known to have everything.
        writer: Writes the fragments.
        promise: Promises durably that later changes will have later datetimes, and returns the
            state of the journal after that, with the digest if it is known.
        heartbeat: Seconds without a change before a heartbeat, and between two digests that are
            sent with changes.
        batch: Maximum number of changes to read at once.
        counters: Counts the fragments that are sent.
    """

    stream: Stream
    cursor: int
    writer: FragmentWriter
    promise: Callable[[], Awaitable[JournalState]]
    heartbeat: float
    batch: int
    counters: HubCounters = field(default_factory=HubCounters)

    def __post_init__(self) -> None:
        #: The instant (µs) after which the next fragment begins.
        self.sent = self.cursor
        #: The latest instant (µs) that the hub can have reached with fragments from this journal:
        #: the journal's end when this feed was created, or the end of the last fragment sent since.
        self._published = self.stream.state().reached
        #: The end (µs) of the last fragment with changes that was sent.
        self._changes_sent = 0
        self._is_pinged = False
        self._digest_due = 0.0
        #: The state at the last promise. Its digest is sent along with its last change.
        self._known: JournalState | None = None

    def accepted(self, until: Instant) -> None:
        accepted = to_microseconds(until)
        if self.cursor < accepted <= self._changes_sent:
            self.counters.lags.add(max(0.0, time() - accepted / 1_000_000))
        self.cursor = max(self.cursor, accepted)

    def pinged(self, hub: str, reason: str) -> None:
        """Log that a hub is pinged because it rejects fragments; at INFO only the first time."""
        level = logging.DEBUG if self._is_pinged else logging.INFO
        logger.log(level, "%s does not accept posted changes (%s); pinging it instead", hub, reason)
        self._is_pinged = True

    async def fragments(
        self, through: Instant | None = None
    ) -> AsyncGenerator[OutgoingFragment, None]:
        """Yield the fragments that the hub lacks, then new ones as changes arrive, indefinitely.

        `through` is the instant through which the hub, when it connected, reported having
        everything.
        """
        reported = None if through is None else to_microseconds(through)
        state = self.stream.state()
        self.sent = resume_at(reported, self.cursor, state)
        clock = asyncio.get_running_loop().time
        due = clock() + self.heartbeat
        if reported is not None and reported > self._published:
            logger.warning(
                "the hub has changes until %s, but this journal ended at %s: the journal was "
                "restored from a backup, or replaced. Destinations that have the later changes "
                "must compare their copies with the Resource List",
                *(format_datetime(from_microseconds(at)) for at in (reported, self._published)),
            )
            due = 0.0  # send a fragment without these changes at once
        while True:
            changes = self.stream.read(self.sent, self.batch)
            if changes is not None:
                changes, digest = await self._with_digest(changes)
                contents = await self.stream.inline_contents(changes)
                begin = from_microseconds(changes.begin)
                for fragment in self.writer.fragments(begin, changes.changes, contents, digest):
                    yield self._sending(fragment)
                due = clock() + self.heartbeat
            elif not await self.stream.wait_for_notification(due):
                state = await self.promise()
                # Send no heartbeat if a change has been recorded meanwhile, or if the clock stands
                # still so that the promise covers nothing new.
                if state.last_change <= self.sent < state.reached:
                    begin, until = map(from_microseconds, (state.last_change, state.reached))
                    yield self._sending(self.writer.heartbeat(begin, until, state.digest))
                due = self._digest_due = clock() + self.heartbeat

    async def _with_digest(
        self, changes: RecordedChanges
    ) -> tuple[RecordedChanges, SetDigest | None]:
        """Return the changes to send now, and the digest of the set after them if it is known.

        A Source that changes constantly sends no heartbeats, so fragments with changes carry the
        digest as well. Changes recorded after the digest was computed are left for the next call.
        """
        clock = asyncio.get_running_loop().time
        # A hub that lags receives the missing changes first, and then a digest.
        if clock() >= self._digest_due and self.stream.state().last_change <= changes.end:
            self._known = await self.promise()
            self._digest_due = clock() + self.heartbeat
        if self._known is None or not changes.begin < self._known.last_change <= changes.end:
            return changes, None
        return changes.through(self._known.last_change), self._known.digest

    def _sending(self, fragment: OutgoingFragment) -> OutgoingFragment:
        self.sent = to_microseconds(fragment.until)
        self._published = max(self._published, self.sent)
        if not fragment.is_heartbeat:
            self._changes_sent = self.sent
        self.counters.fragments += 1
        self.counters.bytes += len(fragment.body)
        return fragment
