"""What the feeds of the hubs read: changes from memory, or from the journal to catch up.

The thread that has committed changes passes them to the event loop. If the Source's callback
returns their contents, another thread reads these first: the callback may block, and the thread
that committed may be one of the Source's own that holds a lock. Changes of other processes, and
what a hub missed, are read from the journal.
"""

from __future__ import annotations

import asyncio
import logging
import sqlite3
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import Executor
from typing import Protocol

from msgspec.structs import replace

from rsnotify_publisher.journal import Journal, JournalState, RecordedChanges, consecutive
from rsnotify_publisher.push.channel_news import ChannelNews
from rsnotify_publisher.push.fragments import may_be_inline
from rsnotify_publisher.push.recent_changes import RecentChanges

InlineContents = Callable[[Sequence[str]], Mapping[str, bytes]]
Call = Callable[[Callable[[], object]], None]

_log = logging.getLogger("rsnotify.publisher")


class Stream(Protocol):
    """What a feed reads; used in the event loop."""

    def state(self) -> JournalState: ...

    def read(self, after: int, limit: int) -> RecordedChanges | None:
        """Return the changes later than `after`, at most `limit`; None if there are none."""
        ...

    async def contents(self, recorded: RecordedChanges) -> Mapping[str, bytes | None]:
        """Return the contents that may be sent inline, by URI."""
        ...


class ChangeStream:
    """The changes of one set, for the feeds of all its hubs.

    Args:
        journal: Read in the event loop's thread.
        read_contents: Reads contents, in a thread; with None, only recorded ones are sent inline.
        call: Calls a function in the event loop, soon.
        readers: The threads that read contents.
        lacking: Returns after which instant (µs) each hub lacks changes.
    """

    def __init__(
        self,
        journal: Journal,
        read_contents: InlineContents | None,
        call: Call,
        readers: Executor,
        lacking: Callable[[], Iterable[int]],
    ) -> None:
        self.news = ChannelNews()
        self._journal = journal
        self._read_contents = read_contents
        self._call = call
        self._readers = readers
        self._lacking = lacking
        self._recent = RecentChanges(journal.state().last_change)
        # Whether the journal may have later changes than `_recent` and `_unread`.
        self._is_behind = True
        # The end of what this process has recorded (µs).
        self._committed = self._recent.end
        self._lock = threading.Lock()
        # What waits for a thread that reads contents; it runs until nothing does.
        self._unread: list[RecordedChanges] = []

    def recorded(self, recorded: Sequence[RecordedChanges]) -> None:
        """Note changes that are durable; call this in any thread, in their order."""
        self._committed = recorded[-1].end
        with self._lock:
            is_reading = bool(self._unread)
            is_complete = not is_reading and not any(map(self._missing, recorded))
            if not is_complete:
                self._unread += recorded
        if is_complete:
            self._call(lambda: self._add(recorded))
        elif not is_reading:
            self._readers.submit(self._read_all)

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
        """Return the resources whose contents may be sent inline and were not read yet."""
        if self._read_contents is None:
            return []
        newest = {change.uri: change for change in recorded.changes}
        return [
            uri
            for uri, change in newest.items()
            if uri not in recorded.contents and may_be_inline(change)
        ]

    def _complete(self, recorded: RecordedChanges) -> Mapping[str, bytes | None]:
        """Return all contents, of which some may have to be read; this may block."""
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
        self._recent.drop(min(self._lacking(), default=self._recent.end))
        for each in recorded:
            if not self._recent.append(each) and each.end > self._recent.end:
                self._is_behind = True
        self.news.notify()

    def check(self) -> None:
        """Find out whether another process has recorded changes."""
        try:
            if self._journal.state().last_change <= self._committed:
                return
        except sqlite3.Error:  # the feed that reads gets the error, too
            pass
        self._is_behind = True
        self.news.notify()

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
            loop = asyncio.get_running_loop()
            return await loop.run_in_executor(self._readers, self._complete, recorded)
        return recorded.contents
