"""The log of one topic: appends in groups, and passes each append on to all delivery channels."""

from __future__ import annotations

import asyncio
import logging
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import takewhile

from rsnotify.errors import RsnotifyError, StorageError, WrongDocument
from rsnotify_hub.fragments.fragment import Fragment, is_framework
from rsnotify_hub.log.appending import contradicts, overlaps, plan_append
from rsnotify_hub.log.recent_entries import RecentEntries
from rsnotify_hub.statistics import Statistics
from rsnotify_hub.store.interface import LogEntry, LogMoved, LogState, LogStore

log = logging.getLogger("rsnotify.hub.topics")

_ABOUT_DOCUMENTS = (
    "this topic is about documents (Framework Notifications): publish changes of resources on "
    "another topic, or delete this one if its notifications were published by mistake"
)
_ABOUT_CHANGES = (
    "this topic is about changes of resources: publish Framework Notifications on another topic, "
    "or delete this one if its changes were published by mistake"
)


class DeliveryChannel(ABC):
    """A transport to Destinations: WebSub callbacks, live connections or a broker.

    It never refuses and never blocks: a subscriber that is too slow lags or is disconnected.
    """

    @abstractmethod
    def deliver(self, topic: str, entries: Sequence[LogEntry]) -> None:
        """Deliver entries that have just become durable: at least one, in the order of the log."""

    def deliver_early(  # noqa: B027  (most transports only deliver what is durable)
        self, topic: str, fragments: Sequence[Fragment]
    ) -> None:
        """Deliver fragments that are not durable yet, if the transport permits it.

        `deliver` follows for the same fragments, or `write_failed`.
        """

    def write_failed(self, topic: str) -> None:  # noqa: B027
        """Forget what `deliver_early` received: subscribers that come later do not receive it."""

    def subscribers(self, topic: str) -> int:
        """Return the number of subscribers of a topic; 0 if the channel does not count them."""
        return 0


@dataclass(eq=False, repr=False)
class TopicLog:
    """The log of one topic. At most one task, `writing`, appends to it."""

    topic: str
    state: LogState | None
    store: LogStore
    channels: Sequence[DeliveryChannel]
    statistics: Statistics

    def __post_init__(self) -> None:
        self.recent = RecentEntries(self.state)
        self.writing: asyncio.Task[None] | None = None
        self._waiting: list[tuple[Fragment | None, asyncio.Future[None]]] = []
        #: Whether the log is about documents; None until that is known.
        self._framework: bool | None = None

    def publish(self, fragment: Fragment) -> asyncio.Future[None]:
        return self._submit(fragment)

    def delete(self) -> asyncio.Future[None]:
        """Delete what was published before; later fragments begin a new log."""
        return self._submit(None)

    def appended(self, entries: Sequence[LogEntry], state: LogState, replaced: int | None) -> None:
        """Note what was appended, by this hub or another one, and deliver it."""
        self.state = state
        if entries:
            last = entries[-1].fragment
            self._framework = None if last.whole else is_framework(last)
        self.recent.extend(entries, replacing=replaced, first=state.first)
        self._deliver(entries)

    def deliver_early(self, fragments: Sequence[Fragment]) -> None:
        """Deliver fragments before they are durable, if none of them can be a repetition."""
        through = self.state.through if self.state else None
        for fragment in fragments:
            if fragment.whole or (through is not None and fragment.until <= through):
                return
            through = fragment.until
        self._call_channels(lambda channel: channel.deliver_early(self.topic, fragments))

    def forgotten(self) -> None:
        """Note that the log was deleted."""
        self.state = None
        self.recent = RecentEntries(None)
        self._framework = None

    def trimmed(self, state: LogState | None) -> None:
        """Note the state after a trim, unless something was published meanwhile.

        There is no log if a deletion that was reported as failed had succeeded.
        """
        if self.writing is not None or self.state is None:
            return
        if state is None:
            self.forgotten()
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
                    reported = self._reported(error)
                    self._call_channels(lambda channel: channel.write_failed(self.topic))
                    if fragments and isinstance(reported, StorageError):
                        futures += self._remove_fragments()
                    _finish(futures, reported)
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

    def _remove_fragments(self) -> list[asyncio.Future[None]]:
        """Remove the fragments that wait, and return their futures.

        After a fragment whose write failed, none that was published later may be stored: its Source
        continues at the end of the log, and would never send again what failed.
        """
        futures = [future for fragment, future in self._waiting if fragment is not None]
        self._waiting = [each for each in self._waiting if each[0] is None]
        return futures

    def _reported(self, error: Exception) -> RsnotifyError:
        if isinstance(error, RsnotifyError):
            return error
        log.error("a write to the log of %s failed", self.topic, exc_info=error)
        return StorageError("the hub cannot write its data: a fault of its own")

    async def _delete(self) -> None:
        while self.state is not None:
            with suppress(LogMoved):
                await self._forget(self.state)

    async def _forget(self, state: LogState) -> None:
        await self.store.forget(self.topic, after=state.position)

    async def _append(self, fragments: list[Fragment]) -> None:
        while True:
            with suppress(LogMoved):  # decide anew, by the log as it is now
                added = await self._append_after(self.state, fragments)
                break
        self.statistics.duplicates += max(0, len(fragments) - added)

    async def _append_after(self, state: LogState | None, fragments: list[Fragment]) -> int:
        """Append to the log in a given state, and return the number of new entries."""
        if fragments[0].whole and state is not None and state.kept and not state.whole:
            # For example an error page, which is useless to Destinations.
            raise WrongDocument("this topic is about changes: a Change Notification was expected")
        await self._check_kind(state, fragments[0])
        for fragment in fragments:
            if state is None or not overlaps(state, fragment):
                continue
            if await contradicts(fragment, self.topic, self.store):
                # No subscriber may receive both.
                log.warning(
                    "the Source of %s no longer knows changes that it had published; it was "
                    "restored, or lost its journal. The hub deletes the log of the topic and "
                    "begins a new one",
                    self.topic,
                )
                await self._forget(state)
                state = None
        plan = plan_append(state, fragments)
        if not plan.fragments:
            return 0
        after = state.position if state else 0
        appended = await self.store.append(
            self.topic, plan.fragments, after=after, replacing=plan.replacing
        )
        return len(appended.entries)

    async def _check_kind(self, state: LogState | None, fragment: Fragment) -> None:
        """Refuse changes of resources on a topic about documents, and the reverse.

        The interval of one says nothing about the other: a Destination that received both merged
        would take the changes of resources in both intervals as known.
        """
        if fragment.whole or state is None or state.whole or not state.kept:
            return
        framework = self._framework
        if framework is None:
            last = await self.store.read(self.topic, after=state.position - 1)
            if not last:
                return  # another hub has appended or deleted; the store reports that
            framework = is_framework(last[0].fragment)
            if self.state is state:
                self._framework = framework
        if framework and not is_framework(fragment):
            raise WrongDocument(_ABOUT_DOCUMENTS)
        if not framework and is_framework(fragment):
            raise WrongDocument(_ABOUT_CHANGES)

    def _deliver(self, entries: Sequence[LogEntry]) -> None:
        if not entries:
            return
        self.statistics.accepted += len(entries)
        self.statistics.accepted_bytes += sum(len(entry.fragment.body) for entry in entries)
        self._call_channels(lambda channel: channel.deliver(self.topic, entries))

    def _call_channels(self, call: Callable[[DeliveryChannel], None]) -> None:
        for channel in self.channels:
            try:
                call(channel)
            except Exception:
                # A bug in one channel must not affect the others, nor publishing.
                log.exception("a delivery channel failed")


def _kind(fragment: Fragment | None) -> tuple[bool, bool] | None:
    return None if fragment is None else (fragment.whole, is_framework(fragment))


def _finish(futures: list[asyncio.Future[None]], error: RsnotifyError | None = None) -> None:
    for future in futures:
        if future.done():
            continue  # its publisher has gone
        if error is None:
            future.set_result(None)
        else:
            future.set_exception(error)
