"""One topic's log: what is published goes into it in groups, and on to every channel."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from itertools import takewhile

from rsnotify.errors import RsnotifyError, StorageError, WrongDocument
from rsnotify_hub.log.appending import AppendPlan, plan_append
from rsnotify_hub.log.channel import DeliveryChannel
from rsnotify_hub.log.contradicting import contradicts, overlaps
from rsnotify_hub.log.fragments import Fragment
from rsnotify_hub.log.recent_entries import RecentEntries
from rsnotify_hub.log.store import LogEntry, LogState, Store
from rsnotify_hub.statistics import Statistics

log = logging.getLogger("rsnotify.hub.topics")


class TopicLog:
    """The log of one topic, which is appended to by one task at most.

    Args:
        topic: Whose log it is.
        state: How it stands; None when there is none yet.
        store: What keeps it.
        channels: The ways out.
        statistics: Counts what becomes durable.

    Attributes:
        state: How it stands.
        recent: Its last entries.
        writing: The task that appends, while there is something to append.
    """

    def __init__(
        self,
        topic: str,
        state: LogState | None,
        store: Store,
        channels: Sequence[DeliveryChannel],
        statistics: Statistics,
    ) -> None:
        self._topic = topic
        self.state = state
        self.recent = RecentEntries(state)
        self._store = store
        self._channels = channels
        self._statistics = statistics
        self._waiting: list[tuple[Fragment | None, asyncio.Future[None]]] = []
        self._doubtful = False
        self.writing: asyncio.Task[None] | None = None

    def publish(self, fragment: Fragment) -> asyncio.Future[None]:
        """Append a fragment (`Topics.publish`)."""
        return self._submit(fragment)

    def delete(self) -> asyncio.Future[None]:
        """Delete what was published before; what is published from now on begins anew."""
        return self._submit(None)

    def trimmed(self, state: LogState | None) -> None:
        """Take note that the log was trimmed, unless something was published meanwhile.

        Args:
            state: How it stands; None when there is none, since its deletion was told to have
                failed and had not.
        """
        if self.writing is not None or self.state is None:
            return
        if state is None:
            self.state, self.recent = None, RecentEntries(None)
        elif state.position == self.state.position:
            self.state = state
            self.recent.shrink(state.first)

    def _submit(self, fragment: Fragment | None) -> asyncio.Future[None]:
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.append((fragment, future))
        if self.writing is None:
            self.writing = asyncio.create_task(self._write_all())
        return future

    async def _write_all(self) -> None:
        try:
            while self._waiting:
                fragments, futures = self._next_batch()
                try:
                    await (self._append(fragments) if fragments else self._delete())
                except Exception as error:
                    # Whoever asked must get an answer, and the log must go on.
                    _fail(futures, self._told(error))
                else:
                    _succeed(futures)
        finally:
            self.writing = None

    def _next_batch(self) -> tuple[list[Fragment], list[asyncio.Future[None]]]:
        """Take what waits, as far as it is of one kind: deletions, changes, whole contents."""
        kind = _kind(self._waiting[0][0])
        batch = list(takewhile(lambda each: _kind(each[0]) == kind, self._waiting))
        del self._waiting[: len(batch)]
        fragments = [fragment for fragment, _ in batch if fragment is not None]
        return fragments, [future for _, future in batch]

    def _told(self, error: Exception) -> RsnotifyError:
        if isinstance(error, RsnotifyError):
            return error
        log.error("a write to the log of %s failed", self._topic, exc_info=error)
        return StorageError("the hub cannot write its data: a fault of its own")

    async def _delete(self) -> None:
        await self._store.forget(self._topic)
        self.state = None
        self.recent = RecentEntries(None)

    async def _append(self, fragments: list[Fragment]) -> None:
        state = self.state
        if fragments[0].whole and state is not None and state.kept and not state.whole:
            # An error page, say: whoever follows the changes could do nothing with it.
            raise WrongDocument("this topic is about changes: a Change Notification was expected")
        for fragment in fragments:
            if state is not None and overlaps(state, fragment):
                await self._check(fragment)
        state = self.state
        try:
            added = await self._keep(plan_append(state, fragments))
        except Exception:
            self._doubtful = True
            raise
        self._statistics.duplicates += max(0, len(fragments) - added)

    async def _check(self, fragment: Fragment) -> None:
        """Delete the log if a fragment contradicts it, so that no subscriber receives both."""
        if await contradicts(fragment, self._topic, self._store):
            log.warning(
                "the Source of %s does not know changes any more that it had published; it was "
                "restored, or lost its journal. The log of the topic begins anew",
                self._topic,
            )
            await self._delete()

    async def _keep(self, planned: AppendPlan) -> int:
        """Append, and hand on. Return how many entries are new."""
        if not planned.fragments:
            return 0
        appended = await self._store.append(
            self._topic, planned.fragments, replacing=planned.replacing
        )
        entries = [
            LogEntry(position, fragment)
            for position, fragment in zip(appended.positions, planned.fragments, strict=True)
            if position is not None
        ]
        if self._doubtful:
            entries = await self._unknown(appended.state.position)
            self._doubtful = False
        self.state = appended.state
        self.recent.extend(entries, replacing=planned.replacing, first=appended.state.first)
        self._hand_on(entries)
        return len(entries)

    async def _unknown(self, end: int) -> list[LogEntry]:
        """Return all that the log got since its state was known.

        A commit that was told to have failed may have been kept: then the same fragment, sent
        again, is no news to the log, but still is to the channels.
        """
        entries: list[LogEntry] = []
        after = self.state.position if self.state else 0
        while after < end:
            page = await self._store.read(self._topic, after=after)
            if not page:
                break
            entries += page
            after = page[-1].position
        return entries

    def _hand_on(self, entries: list[LogEntry]) -> None:
        if not entries:
            return
        self._statistics.accepted += len(entries)
        self._statistics.accepted_bytes += sum(len(entry.fragment.body) for entry in entries)
        for channel in self._channels:
            try:
                channel.deliver(self._topic, entries)
            except Exception:
                # One channel's fault must not stop the others, nor publishing.
                log.exception("a channel failed to take what was published")


def _kind(fragment: Fragment | None) -> bool | None:
    return None if fragment is None else fragment.whole


# Whoever published may have gone.
def _succeed(futures: list[asyncio.Future[None]]) -> None:
    for future in futures:
        if not future.done():
            future.set_result(None)


def _fail(futures: list[asyncio.Future[None]], error: RsnotifyError) -> None:
    for future in futures:
        if not future.done():
            future.set_exception(error)
