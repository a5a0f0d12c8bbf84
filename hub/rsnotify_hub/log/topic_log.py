"""The log of one topic: appends in groups, and passes each append on to all delivery channels."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import takewhile
from typing import Protocol

from rsnotify.errors import RsnotifyError, StorageError, WrongDocument
from rsnotify_hub.log.appending import AppendPlan, contradicts, overlaps, plan_append
from rsnotify_hub.log.fragments import Fragment
from rsnotify_hub.log.recent_entries import RecentEntries
from rsnotify_hub.log.store import LogEntry, LogState, Store
from rsnotify_hub.statistics import Statistics

log = logging.getLogger("rsnotify.hub.topics")


class DeliveryChannel(Protocol):
    """A transport to Destinations: WebSub callbacks, WebSocket or MQTT.

    It never refuses and never blocks: a subscriber that is too slow lags or is disconnected.
    """

    def deliver(self, topic: str, entries: Sequence[LogEntry]) -> None:
        """Deliver entries that have just become durable: at least one, in the order of the log."""

    def subscribers(self, topic: str) -> int:
        """Return the number of subscribers of a topic; 0 if the channel does not count them."""
        return 0


@dataclass(eq=False, repr=False)
class TopicLog:
    """The log of one topic. At most one task, `writing`, appends to it."""

    topic: str
    state: LogState | None
    store: Store
    channels: Sequence[DeliveryChannel]
    statistics: Statistics

    def __post_init__(self) -> None:
        self.recent = RecentEntries(self.state)
        self.writing: asyncio.Task[None] | None = None
        self._waiting: list[tuple[Fragment | None, asyncio.Future[None]]] = []
        self._is_uncertain = False

    def publish(self, fragment: Fragment) -> asyncio.Future[None]:
        return self._submit(fragment)

    def delete(self) -> asyncio.Future[None]:
        """Delete what was published before; later fragments begin a new log."""
        return self._submit(None)

    def trimmed(self, state: LogState | None) -> None:
        """Note the state after a trim, unless something was published meanwhile.

        There is no log if a deletion that was reported as failed had succeeded.
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
                    # The publishers need an answer, and the log must go on.
                    _finish(futures, self._reported(error))
                else:
                    _finish(futures)
        finally:
            self.writing = None

    def _next_batch(self) -> tuple[list[Fragment], list[asyncio.Future[None]]]:
        kind = _kind(self._waiting[0][0])
        batch = list(takewhile(lambda each: _kind(each[0]) == kind, self._waiting))
        del self._waiting[: len(batch)]
        fragments = [fragment for fragment, _ in batch if fragment is not None]
        return fragments, [future for _, future in batch]

    def _reported(self, error: Exception) -> RsnotifyError:
        if isinstance(error, RsnotifyError):
            return error
        log.error("a write to the log of %s failed", self.topic, exc_info=error)
        return StorageError("the hub cannot write its data: a fault of its own")

    async def _delete(self) -> None:
        await self.store.forget(self.topic)
        self.state = None
        self.recent = RecentEntries(None)

    async def _append(self, fragments: list[Fragment]) -> None:
        state = self.state
        if fragments[0].whole and state is not None and state.kept and not state.whole:
            # For example an error page, which is useless to Destinations.
            raise WrongDocument("this topic is about changes: a Change Notification was expected")
        for fragment in fragments:
            if state is not None and overlaps(state, fragment):
                await self._check(fragment)
        try:
            added = await self._store_and_deliver(plan_append(self.state, fragments))
        except Exception:
            self._is_uncertain = True
            raise
        self.statistics.duplicates += max(0, len(fragments) - added)

    async def _check(self, fragment: Fragment) -> None:
        """Delete the log if a fragment contradicts it, so that no subscriber receives both."""
        if await contradicts(fragment, self.topic, self.store):
            log.warning(
                "the Source of %s no longer knows changes that it had published; it was restored, "
                "or lost its journal. The hub deletes the log of the topic and begins a new one",
                self.topic,
            )
            await self._delete()

    async def _store_and_deliver(self, plan: AppendPlan) -> int:
        """Append to the store, deliver, and return the number of new entries."""
        if not plan.fragments:
            return 0
        appended = await self.store.append(self.topic, plan.fragments, replacing=plan.replacing)
        entries = appended.entries
        if self._is_uncertain:
            entries = await self._entries_since_state(appended.state.position)
            self._is_uncertain = False
        self.state = appended.state
        self.recent.extend(entries, replacing=plan.replacing, first=appended.state.first)
        self._deliver(entries)
        return len(entries)

    async def _entries_since_state(self, end: int) -> list[LogEntry]:
        """Return all entries after the known state.

        A commit that was reported as failed may have succeeded. Then the same fragment, sent
        again, is not new to the log, but still new to the channels.
        """
        entries: list[LogEntry] = []
        after = self.state.position if self.state else 0
        while after < end:
            page = await self.store.read(self.topic, after=after)
            if not page:
                break
            entries += page
            after = page[-1].position
        return entries

    def _deliver(self, entries: list[LogEntry]) -> None:
        if not entries:
            return
        self.statistics.accepted += len(entries)
        self.statistics.accepted_bytes += sum(len(entry.fragment.body) for entry in entries)
        for channel in self.channels:
            try:
                channel.deliver(self.topic, entries)
            except Exception:
                # A bug in one channel must not affect the others, nor publishing.
                log.exception("a delivery channel failed")


def _kind(fragment: Fragment | None) -> bool | None:
    return None if fragment is None else fragment.whole


def _finish(futures: list[asyncio.Future[None]], error: RsnotifyError | None = None) -> None:
    for future in futures:
        if future.done():
            continue  # its publisher has gone
        if error is None:
            future.set_result(None)
        else:
            future.set_exception(error)
