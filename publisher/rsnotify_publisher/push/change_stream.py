"""The changes of a set, and the notices of its documents, as the feeds of its hubs read them.

The thread that has committed changes passes them to the event loop (`ChangeStream.on_recorded`),
where the newest stay in memory (`RecentChanges`). If the Source has a callback for contents,
another thread calls it first: the callback may block, and the committing thread may belong to the
Source and hold a lock. Changes by other processes, and changes that a hub missed, are read from the
journal.
"""

from __future__ import annotations

import asyncio
import logging
import sqlite3
import threading
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING

from msgspec.structs import replace

from rsnotify.format.datetimes import Instant, from_microseconds, to_microseconds
from rsnotify.format.inline_content import may_be_inline
from rsnotify.runtime.tasks import settle
from rsnotify_publisher.journal import Journal, JournalState, RecordedChanges, consecutive

if TYPE_CHECKING:
    from rsnotify_publisher.push.hub_feed import HubFeed

#: Returns the contents of resources that are small enough to be sent inline, keyed by URI.
InlineContents = Callable[[Sequence[str]], Mapping[str, bytes]]
#: Runs a function later, in the event loop or in a thread.
Schedule = Callable[[Callable[[], object]], object]

logger = logging.getLogger("rsnotify.publisher")


class Stream(ABC):
    """The changes or notices of a channel. Its feeds read it in the event loop."""

    def __init__(self) -> None:
        self._waiting: set[asyncio.Future[bool]] = set()
        self._documented = 0
        self._more_documented = asyncio.Event()

    @abstractmethod
    def state(self) -> JournalState:
        """Return the state of the journal for this channel."""

    @abstractmethod
    def read(self, after: int, limit: int) -> RecordedChanges | None:
        """Return at most `limit` changes after `after` (µs), or None if there are none."""

    async def inline_contents(self, recorded: RecordedChanges) -> Mapping[str, bytes | None]:
        """Return the contents that may be sent inline, keyed by URI."""
        return recorded.contents

    def notify(self) -> None:
        """Wake the waiting feeds, so that they read new changes."""
        for waiting in self._waiting:
            settle(waiting, True)

    async def wait_for_notification(self, due: float) -> bool:
        """Wait for the next `notify`. Return False if none arrives before the loop's time `due`."""
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
        """Record that the documents contain every change through an instant (µs)."""
        self._documented = through
        self._more_documented.set()
        self._more_documented = asyncio.Event()

    async def wait_until_documented(self, until: Instant) -> Instant:
        """Wait until the documents contain all changes through `until`.

        Return the instant through which they contain all changes by then.
        """
        while self._documented < to_microseconds(until):
            await self._more_documented.wait()
        return from_microseconds(self._documented)


class ChangeStream(Stream):
    """The changes of one set, for the feeds of all its hubs.

    `read_contents` may block, so it is called in a thread. If it is None, only contents that were
    recorded with their changes are sent inline. `call_in_loop` schedules a function in the event
    loop, `call_in_thread` in a thread.
    """

    def __init__(
        self,
        read_contents: InlineContents | None,
        call_in_loop: Schedule,
        call_in_thread: Schedule,
    ) -> None:
        super().__init__()
        self.feeds: list[HubFeed] = []
        self._read_contents = read_contents
        self._call_in_loop = call_in_loop
        self._call_in_thread = call_in_thread
        self._lock = threading.Lock()
        # Changes whose contents a thread is reading, or will read next.
        self._unread: list[RecordedChanges] = []
        self._is_open = False

    def open(self, journal: Journal) -> None:
        """Start to serve the feeds, reading `journal` in the event loop's thread.

        Call this when this process becomes the leader.
        """
        self._journal = journal
        self._recent = RecentChanges(journal.state().last_change)
        # Whether the journal may have later changes than `_recent` and `_unread`.
        self._is_behind = True
        # The datetime of the last change that this process has recorded (µs).
        self._committed = self._recent.end
        self._is_open = True

    def close(self) -> None:
        """Stop serving the feeds."""
        self._is_open = False
        self.feeds = []

    def on_recorded(self, recorded: Sequence[RecordedChanges]) -> None:
        """Pass durable changes to the feeds. Call this in order, in any thread."""
        if not (self._is_open and recorded):
            return
        self._committed = recorded[-1].end
        with self._lock:
            is_reading = bool(self._unread)
            is_complete = not is_reading and not any(map(self._missing, recorded))
            if not is_complete:
                self._unread += recorded
        if is_complete:
            self._call_in_loop(lambda: self._add(recorded))
        elif not is_reading:
            self._call_in_thread(self._read_all_contents)

    def _read_all_contents(self) -> None:
        reading = True
        while reading:
            with self._lock:
                unread = tuple(self._unread)
            read = [replace(each, contents=self._read_missing(each)) for each in unread]
            self._call_in_loop(lambda read=read: self._add(read))  # type: ignore[misc]
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

    def _read_missing(self, recorded: RecordedChanges) -> Mapping[str, bytes | None]:
        """Return all contents, after reading those that are missing. This may block."""
        missing = self._missing(recorded)
        if self._read_contents is None or not missing:
            return recorded.contents
        try:
            found = self._read_contents(missing)
        except Exception:  # the Source's callback returned something unusable
            logger.exception("sending changes without inline content")
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

    async def inline_contents(self, recorded: RecordedChanges) -> Mapping[str, bytes | None]:
        if self._missing(recorded):
            return await asyncio.to_thread(self._read_missing, recorded)
        return recorded.contents


#: Maximum number of changes, and of bytes of inline content, kept in memory for hubs that lag.
_MAX_CHANGES, _MAX_BYTES = 1_000, 1_048_576


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
        while self._changes > _MAX_CHANGES or self._bytes > _MAX_BYTES:
            self._drop_oldest()
        return True

    def drop(self, through: int) -> None:
        """Drop the changes through an instant (µs), since every hub has them."""
        while self._kept and self._kept[0].end <= through:
            self._drop_oldest()

    def _drop_oldest(self) -> None:
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
    """The notices of a journal, which feeds read like changes."""

    def __init__(self, journal: Journal) -> None:
        super().__init__()
        self._journal = journal

    def state(self) -> JournalState:
        return notice_state(self._journal)

    def read(self, after: int, limit: int) -> RecordedChanges | None:
        journal = self._journal
        return consecutive(journal.last_notice_at(after), journal.notices(after, limit))


def notice_state(journal: Journal) -> JournalState:
    """Return the state of the journal with the notices in place of the changes."""
    return replace(
        journal.state(),
        last_change=journal.last_notice(),
        pruned=journal.first_notice(),
        sum=None,  # the digest is only sent on the channel for changes
    )


def promise_notices(journal: Journal) -> JournalState:
    """Promise that every later notice will have a datetime after now. Requires a transaction."""
    journal.promise()
    return notice_state(journal)
