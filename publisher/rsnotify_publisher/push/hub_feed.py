"""Feeds a hub: chooses the next fragment to send, from memory or from the journal.

A transport sends the fragments from `HubFeed.fragments` one after the other, and calls `accepted`
when the hub has made a fragment durable. The feed keeps the cursor between connections.

All feeds of a channel read from one `Stream`, which resumes them. The thread that has committed
changes passes them to the event loop (`ChangeStream.recorded`), where the newest stay in memory. If
the Source has a callback for contents, another thread calls it first: the callback may block, and
the committing thread may belong to the Source and hold a lock. Changes by other processes, and
changes that a hub missed, are read from the journal.
"""

from __future__ import annotations

import asyncio
import logging
import sqlite3
import threading
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import (
    AsyncGenerator,
    Awaitable,
    Callable,
    Iterable,
    Iterator,
    Mapping,
    Sequence,
)
from dataclasses import dataclass, field
from time import time

from msgspec import Struct
from msgspec.structs import replace

from rsnotify.format.datetimes import Instant, format_datetime, from_microseconds, to_microseconds
from rsnotify.format.hashes import SetDigest
from rsnotify.format.inline_content import may_be_inline, with_inline_content
from rsnotify.format.model import Capability, Document, Link, Rel, Resource
from rsnotify.format.writer import Profile, closing, entry, opening
from rsnotify.runtime.tasks import settle
from rsnotify_publisher.counters import HubCounters
from rsnotify_publisher.journal import Journal, JournalState, RecordedChanges, consecutive

InlineContents = Callable[[Sequence[str]], Mapping[str, bytes]]
Call = Callable[[Callable[[], object]], object]

_log = logging.getLogger("rsnotify.publisher")


class Stream(ABC):
    """The changes or notices of a channel, read by all its feeds. Used in the event loop."""

    def __init__(self) -> None:
        self.feeds: list[HubFeed] = []
        self._waiting: set[asyncio.Future[bool]] = set()
        self._documented = 0
        self._more_documented = asyncio.Event()

    @abstractmethod
    def state(self) -> JournalState:
        """Return the state of the journal for this channel."""

    @abstractmethod
    def read(self, after: int, limit: int) -> RecordedChanges | None:
        """Return at most `limit` changes after `after` (µs), or None if there are none."""

    async def contents(self, recorded: RecordedChanges) -> Mapping[str, bytes | None]:
        """Return the contents that may be sent inline, keyed by URI."""
        return recorded.contents

    def notify(self) -> None:
        """Wake the waiting feeds, so that they read new changes."""
        for waiting in self._waiting:
            settle(waiting, True)

    async def notified(self, due: float) -> bool:
        """Wait for the next `notify` and return True, or return False at the loop's time `due`."""
        loop = asyncio.get_running_loop()
        waiting: asyncio.Future[bool] = loop.create_future()
        timer = loop.call_at(due, settle, waiting, False)
        self._waiting.add(waiting)
        try:
            return await waiting
        finally:
            self._waiting.discard(waiting)
            timer.cancel()

    def set_documented(self, through: int) -> None:
        """Record that the documents show every change through an instant (µs)."""
        self._documented = through
        self._more_documented.set()
        self._more_documented = asyncio.Event()

    async def documented(self, until: Instant) -> Instant:
        """Wait until the documents show all changes through `until`, and return how far they do."""
        while self._documented < to_microseconds(until):
            await self._more_documented.wait()
        return from_microseconds(self._documented)


class ChangeStream(Stream):
    """The changes of one set, for the feeds of all its hubs.

    `read_contents` is called in a thread that `submit` selects. If it is None, only contents that
    were recorded with their changes are sent inline. `call` schedules a function in the event loop.
    """

    def __init__(self, read_contents: InlineContents | None, call: Call, submit: Call) -> None:
        super().__init__()
        self._read_contents = read_contents
        self._call = call
        self._submit = submit
        self._lock = threading.Lock()
        # Changes that wait for the thread that reads contents, which runs until none are left.
        self._unread: list[RecordedChanges] = []
        self._is_open = False

    def open(self, journal: Journal) -> None:
        """Start feeding the hubs, now that this process leads; read `journal` in the event loop."""
        self._journal = journal
        self._recent = RecentChanges(journal.state().last_change)
        # Whether the journal may have later changes than `_recent` and `_unread`.
        self._is_behind = True
        # The datetime of the last change that this process has recorded (µs).
        self._committed = self._recent.end
        self._is_open = True

    def close(self) -> None:
        """Stop feeding the hubs."""
        self._is_open = False
        self.feeds = []

    def recorded(self, recorded: Sequence[RecordedChanges]) -> None:
        """Pass durable changes to the feeds. Must be called in order; any thread may call it."""
        if not (self._is_open and recorded):
            return
        self._committed = recorded[-1].end
        with self._lock:
            is_reading = bool(self._unread)
            is_complete = not is_reading and not any(map(self._missing, recorded))
            if not is_complete:
                self._unread += recorded
        if is_complete:
            self._call(lambda: self._add(recorded))
        elif not is_reading:
            self._submit(self._read_all)

    def _read_all(self) -> None:
        reading = True
        while reading:
            with self._lock:
                unread = tuple(self._unread)
            read = [replace(each, contents=self._complete(each)) for each in unread]
            self._call(lambda read=read: self._add(read))  # type: ignore[misc]
            with self._lock:
                del self._unread[: len(unread)]
                reading = bool(self._unread)

    def _missing(self, recorded: RecordedChanges) -> list[str]:
        """Return the URIs whose contents may be sent inline but have not been read yet."""
        if self._read_contents is None:
            return []
        newest = {change.uri: change for change in recorded.changes}
        return [
            uri
            for uri, change in newest.items()
            if uri not in recorded.contents and may_be_inline(change)
        ]

    def _complete(self, recorded: RecordedChanges) -> Mapping[str, bytes | None]:
        """Return all contents, reading those that are missing. This may block."""
        missing = self._missing(recorded)
        if self._read_contents is None or not missing:
            return recorded.contents
        try:
            found = self._read_contents(missing)
        except Exception:  # the Source's own code returned something unusable
            _log.exception("contents are not sent inline")
            found = {}
        return {**dict.fromkeys(missing), **found, **recorded.contents}

    def _add(self, recorded: Iterable[RecordedChanges]) -> None:
        self._recent.drop(min((feed.sent for feed in self.feeds), default=self._recent.end))
        for each in recorded:
            if not self._recent.append(each) and each.end > self._recent.end:
                self._is_behind = True
        self.notify()

    def check(self) -> None:
        """Check whether another process has recorded changes, and wake the feeds if so."""
        try:
            if self._journal.state().last_change <= self._committed:
                return
        except sqlite3.Error:  # the feed that reads gets the same error
            pass
        self._is_behind = True
        self.notify()

    def state(self) -> JournalState:
        return self._journal.state()

    def read(self, after: int, limit: int) -> RecordedChanges | None:
        if self._is_behind and after >= self._recent.begin:
            self._catch_up(limit)
        if after >= self._recent.begin:
            found = self._recent.after(after, limit)
            if found is not None or not self._is_behind:
                return found
        return self._from_journal(after, limit)

    def _catch_up(self, limit: int) -> None:
        later = self._from_journal(self._recent.end, limit)
        self._is_behind = later is not None
        if later is not None and not self._recent.append(later):
            self._recent = RecentChanges(later.begin)
            self._recent.append(later)

    def _from_journal(self, after: int, limit: int) -> RecordedChanges | None:
        return consecutive(self._journal.last_change_at(after), self._journal.changes(after, limit))

    async def contents(self, recorded: RecordedChanges) -> Mapping[str, bytes | None]:
        if self._missing(recorded):
            return await asyncio.to_thread(self._complete, recorded)
        return recorded.contents


#: Maximum number of changes, and of content bytes, kept in memory for hubs that lag.
_CHANGES, _BYTES = 1_000, 1_048_576


class RecentChanges:
    """All changes of a journal after `begin`, through `end` (µs)."""

    def __init__(self, end: int) -> None:
        self.begin = self.end = end
        self._kept: deque[RecordedChanges] = deque()
        self._changes = self._bytes = 0

    def append(self, recorded: RecordedChanges) -> bool:
        """Add changes, and return True. Return False if they do not directly follow `end`."""
        if recorded.begin != self.end:
            return False
        self._kept.append(recorded)
        self.end = recorded.end
        self._count(recorded, 1)
        while self._changes > _CHANGES or self._bytes > _BYTES:
            self._drop()
        return True

    def drop(self, through: int) -> None:
        """Drop the changes through an instant (µs), which no hub lacks."""
        while self._kept and self._kept[0].end <= through:
            self._drop()

    def _drop(self) -> None:
        dropped = self._kept.popleft()
        self.begin = dropped.end
        self._count(dropped, -1)

    def _count(self, recorded: RecordedChanges, sign: int) -> None:
        self._changes += sign * len(recorded.changes)
        self._bytes += sign * sum(len(content or b"") for content in recorded.contents.values())

    def after(self, through: int, limit: int) -> RecordedChanges | None:
        """Return at most `limit` changes after `through`, or None if there are none.

        `through` must not be earlier than `begin`.
        """
        found: RecordedChanges | None = None
        for each in self._kept:
            if each.end > through:
                found = each.after(through) if found is None else found.joined(each)
                if len(found.changes) >= limit:
                    return found.first(limit)
        return found


class NoticeStream(Stream):
    """The notices of a journal, presented to feeds as changes."""

    def __init__(self, journal: Journal) -> None:
        super().__init__()
        self._journal = journal

    def state(self) -> JournalState:
        return notice_state(self._journal)

    def read(self, after: int, limit: int) -> RecordedChanges | None:
        journal = self._journal
        return consecutive(journal.last_notice_at(after), journal.notices(after, limit))


def notice_state(journal: Journal) -> JournalState:
    return replace(
        journal.state(),
        last_change=journal.last_notice(),
        pruned=journal.first_notice(),
        sum=None,  # the digest is only sent on the channel for changes
    )


def promise_notices(journal: Journal) -> JournalState:
    """Promise that every later notice gets a datetime after now. Requires a transaction."""
    journal.promise()
    return notice_state(journal)


def resume_at(through: int | None, cursor: int, state: JournalState) -> int:
    """Return the instant after which to feed a hub, limited to the range of the journal.

    The instant that the hub reports takes precedence over the stored cursor: the hub may have lost
    fragments, or have accepted more than was stored. If it reports none, the cursor is used.
    """
    start = cursor if through is None else through
    return min(max(start, state.pruned), state.reached)


@dataclass(eq=False)
class HubFeed:
    """Feeds one hub on one channel.

    Args:
        stream: The changes, or the notices of documents.
        cursor: The instant (µs) through which the hub is known to have everything.
        writer: Writes the fragments.
        promise: Makes a promise durable, and returns the state after it, with the digest.
        heartbeat: Seconds of quiet before a heartbeat, and between two digests sent with changes.
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
        #: The latest instant (µs) through which a hub can have received this journal: its end
        #: before this process promised anything, or the end of the last fragment sent since.
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
        """Log that a hub is pinged because it rejects fragments, at INFO only the first time."""
        level = logging.DEBUG if self._is_pinged else logging.INFO
        _log.log(level, "%s does not accept posted changes (%s); it is pinged instead", hub, reason)
        self._is_pinged = True

    async def fragments(
        self, through: Instant | None = None
    ) -> AsyncGenerator[OutgoingFragment, None]:
        """Yield the fragments that the hub lacks, then new ones as changes arrive, indefinitely.

        `through` is the instant through which the hub reported, when it connected, to have
        everything.
        """
        reported = None if through is None else to_microseconds(through)
        state = self.stream.state()
        self.sent = resume_at(reported, self.cursor, state)
        clock = asyncio.get_running_loop().time
        due = clock() + self.heartbeat
        if reported is not None and reported > self._published:
            _log.warning(
                "the hub has changes until %s, and this journal ended at %s: it was restored from "
                "a backup, or is not the one that was published before. Destinations that have the "
                "later changes must compare what they hold with the Resource List",
                *(format_datetime(from_microseconds(at)) for at in (reported, self._published)),
            )
            due = 0.0  # send a fragment without these changes at once
        while True:
            changes = self.stream.read(self.sent, self.batch)
            if changes is not None:
                changes, digest = await self._with_digest(changes)
                contents = await self.stream.contents(changes)
                begin = from_microseconds(changes.begin)
                for fragment in self.writer.fragments(begin, changes.changes, contents, digest):
                    yield self._sending(fragment)
                due = clock() + self.heartbeat
            elif not await self.stream.notified(due):
                state = await self.promise()
                # Send no heartbeat if a change is on its way to this feed, or if the clock stands
                # still, so that the promise covers nothing new.
                if state.last_change <= self.sent < state.reached:
                    begin, until = map(from_microseconds, (state.last_change, state.reached))
                    yield self._sending(self.writer.heartbeat(begin, until, state.digest))
                due = self._digest_due = clock() + self.heartbeat

    async def _with_digest(
        self, changes: RecordedChanges
    ) -> tuple[RecordedChanges, SetDigest | None]:
        """Return changes, and the digest of the set after them if it is known.

        A Source that is never quiet sends no heartbeats, so fragments with changes carry the digest
        as well. Changes recorded after the digest was computed are left for the next call.
        """
        clock = asyncio.get_running_loop().time
        # A hub that lags gets the changes that it lacks before it gets a digest.
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


class OutgoingFragment(Struct, frozen=True):
    """A document with all changes after `from_` and through `until`. A heartbeat has none."""

    from_: Instant
    until: Instant
    body: bytes
    is_heartbeat: bool = False


class FragmentWriter(Struct, frozen=True):
    """Writes fragments that point `up` to a URI.

    Entries fill at most `max_bytes` of a fragment, unless a single change is larger.
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

        `contents` may be sent inline. The last fragment carries `digest`.
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
