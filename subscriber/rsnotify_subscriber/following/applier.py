"""Applies changes: fetches content, calls the handler, and commits state and progress.

    submitted ──`Preparation`──> ready ──`Applier`──> applied, or failed

To prepare a change, the state of the resource determines what to do, and its content is fetched.
Any number of changes are prepared concurrently. If a change is ready immediately, for example
because of inline content, and the worker is idle, the worker receives it before `submit` returns.
Changes that become ready during a commit form the next batch. A single change therefore waits only
for its own flushes, and many changes share them.

A batch is one call of the handler and one commit. If the handler fails, it is called for each
change separately, and changes that fail again are reported. While the handler's store is
unavailable, the batch and its content are kept, so that neither the store nor the Source receives
requests for each change.
"""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Executor
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from random import Random
from time import time_ns
from traceback import extract_tb
from typing import Protocol

from msgspec import Struct
from msgspec.structs import replace

from rsnotify.errors import FetchError, NotFound, RsnotifyError, StorageError, StoreUnavailable
from rsnotify.format.coverage import Change, CheckMethod
from rsnotify.format.datetimes import end_of_unit, to_microseconds
from rsnotify.format.hashes import agree
from rsnotify.format.model import ChangeType
from rsnotify.runtime.reasons import reason_of
from rsnotify.runtime.tasks import Tasks, call_in, settle, wait_for_event
from rsnotify.selection import Selection, WantedRepresentation
from rsnotify.sync.progress import Progress
from rsnotify.sync.retry import Retry
from rsnotify_subscriber.content.resolver import ContentResolver, EntryRequired
from rsnotify_subscriber.fetching.fetcher import Content, Unchanged
from rsnotify_subscriber.handlers import (
    Handler,
    LocatedHandler,
    Received,
    TransactionalHandler,
    deferred_handler,
    in_thread,
    refuse_awaitable,
)
from rsnotify_subscriber.storage.destination_state import ContentDoubt, DestinationState
from rsnotify_subscriber.storage.recovery import UnflushedContent
from rsnotify_subscriber.storage.resource_state import Novelty, ResourceState

logger = logging.getLogger("rsnotify.subscriber")

_ApplyFunction = Callable[[Sequence[Received]], object]

#: Maximum size of content that is kept in the state until the handler flushes it. For larger
#: content, flushing immediately is cheaper.
_MAX_KEPT_BYTES = 16_384


class PreparedChange(Struct, frozen=True):
    """A change that is ready to be applied.

    Args:
        change: The change as received from the follower.
        decided: The change to apply; None if the state covers it or it is not selected.
        wanted: The representation to fetch.
        content: The new content, if any.
        unchanged: The resource's state, if only its metadata changes.
        doubt: Why the content may differ from the announcement; empty if nothing indicates that.
    """

    change: Change
    decided: Change | None
    wanted: WantedRepresentation
    content: Content | None = None
    unchanged: ResourceState | None = None
    doubt: str = ""

    def with_response(
        self, response: Content | Unchanged, held: ResourceState | None
    ) -> PreparedChange:
        """Return a copy with the response to a request. `held` is the state of the resource."""
        if isinstance(response, Unchanged):
            assert held is not None, "only a conditional request can have this response"
            kept = replace(held, fetched_at=response.fetched_at)
            return replace(self, decided=None, unchanged=kept, doubt=response.doubt)
        ready = replace(self, content=response, doubt=response.doubt)
        if held is None or not held.exists or agree(held.hash, response.hashes) is not True:
            return ready
        kept = held
        if response.fetched_at is not None:
            kept = replace(held, validator=response.validator, fetched_at=response.fetched_at)
        return replace(ready, decided=None, unchanged=kept)

    @property
    def is_dated_only(self) -> bool:
        """Whether the content was fetched for a Resource List entry with a date but no hash."""
        entry, has_content = self.wanted.entry, self.content is not None
        return has_content and entry.change is None and not entry.hash and bool(entry.lastmod)

    @property
    def content_doubt(self) -> ContentDoubt | None:
        """The doubt to store; None if there is none."""
        if not self.doubt:
            return None
        announced = self.wanted.entry.lastmod or self.wanted.entry.datetime
        assert announced is not None, "the date of the content contradicts it"
        # A date without a time may be in any time zone.
        slack = end_of_unit(announced) - announced if announced.fold else timedelta()
        return ContentDoubt(self.doubt, announced - slack)

    @property
    def stored_uri(self) -> str:
        """The URI of the resource as spelled in the state."""
        return (self.unchanged or self.decided or self.change).uri

    def received(self) -> Received:
        change, content = self.decided, self.content
        assert change is not None
        return Received(
            change.change,
            change.uri,
            change.at,
            change.resource,
            content.path if content else None,
            self.wanted.alternate if content else None,
            content.hashes if content else None,
            content.length if content else None,
        )

    def new_state(self) -> ResourceState | None:
        change, content = self.decided, self.content
        at = to_microseconds(self.change.at)
        entry = self.wanted.entry
        # If there is a doubt, the next comparison with a list has to find a difference.
        lastmod = to_microseconds(entry.lastmod) if entry.lastmod and not self.doubt else None
        if self.unchanged is not None:
            kept, kind = self.unchanged, self.change.change.value
            if self.change.change is ChangeType.DELETED:
                kind, lastmod = kept.change, None  # the resource was not deleted
            else:
                kept = kept.respelled(self.change.resource.uri)
            return replace(kept, changed_at=at, change=kind, lastmod=lastmod, mtime=None)
        if change is None:
            return None
        kind = change.change.value
        if content is None:
            return ResourceState(change.uri, at, kind)
        return ResourceState(
            change.uri,
            at,
            kind,
            content.hashes,
            content.length,
            lastmod,
            content.validator,
            content.fetched_at,
            mtime=0,  # until the file is written
        ).respelled(change.resource.uri)


def unflushed_contents(batch: Iterable[PreparedChange]) -> list[UnflushedContent] | None:
    """Return the contents to keep in the state until the handler flushes; None if one is large."""
    kept: list[UnflushedContent] = []
    for ready in batch:
        assert ready.decided is not None, "only a decided change is applied"
        data = ready.content.data if ready.content is not None else None
        if ready.content is not None and (data is None or len(data) > _MAX_KEPT_BYTES):
            return None
        kept.append((ready.decided.uri, data))
    return kept


def modification_times(batch: Iterable[PreparedChange]) -> dict[str, int]:
    """Set the modification times of files that a handler is about to rename. Return them by URI.

    The times are in nanoseconds. Otherwise, files written within a few milliseconds would have the
    same time, and a replacement of the same size could not be detected.
    """
    return {
        ready.decided.uri: _set_modification_time(ready.content.path)
        for ready in batch
        if ready.decided is not None and ready.content is not None
    }


def _set_modification_time(path: Path) -> int:
    now = time_ns()
    os.utime(path, ns=(now, now))
    return os.stat(path).st_mtime_ns  # the file system may store it with less precision


#: A change without its content, and the state of its resource.
_Unfetched = tuple[PreparedChange, ResourceState | None]


@dataclass
class Preparation:
    """Prepares changes concurrently."""

    content: ContentResolver
    state: DestinationState
    tasks: Tasks
    selection: Selection
    #: Called with each prepared change.
    on_ready: Callable[[PreparedChange], None]
    #: Called with each change that cannot be prepared, and the reason.
    on_failed: Callable[[Change, RsnotifyError], None]
    #: Called after a resource was marked as lost, because only the lists show how to fetch it.
    on_lost: Callable[[], None]
    worker: Executor
    #: Changes with content in packages, collected while a submission is prepared.
    _packaged: list[_Unfetched] = field(default_factory=list, init=False)

    def submit(self, changes: Sequence[Change]) -> None:
        uris = [change.uri for change in changes]
        if self.state.database.is_local:
            self._prepare_all(changes, self.state.find_all(uris))
        else:
            self.tasks.spawn(self._find_states(changes, uris))

    async def _find_states(self, changes: Sequence[Change], uris: Sequence[str]) -> None:
        self._prepare_all(changes, await asyncio.to_thread(self.state.find_all, uris))

    def _prepare_all(self, changes: Sequence[Change], held: Mapping[str, ResourceState]) -> None:
        for change in changes:
            self._prepare(change, held.get(change.uri))
        if packaged := self._packaged:
            self._packaged = []
            self.tasks.spawn(self._unpack(packaged))

    async def _unpack(self, packaged: Sequence[_Unfetched]) -> None:
        """Prepare changes with content in packages. Small members are read together."""
        contents = await self.content.members([ready.wanted for ready, _ in packaged])
        for (ready, held), content in zip(packaged, contents, strict=True):
            if content is None:
                self.tasks.spawn(self._fetch(ready, held))
            else:
                self.on_ready(ready.with_response(content, held))

    @contextmanager
    def _reported_errors(self, change: Change) -> Iterator[None]:
        try:
            yield
        except (FetchError, StorageError) as error:
            self.on_failed(change, error)
        except OSError as error:
            self.on_failed(change, StorageError(f"{change.resource.uri}: {reason_of(error)}"))

    def _prepare(self, change: Change, held: ResourceState | None) -> None:
        wanted = self.content.wanted(change)
        decided = self._decide(change, held)
        ready = PreparedChange(change, decided, wanted)
        if decided is None:
            self.on_ready(ready)
            return
        match _novelty(decided, change, wanted, held):
            case Novelty.COVERED:
                self.on_ready(replace(ready, decided=None))
            case Novelty.FETCH:
                self.tasks.spawn(self._verify(ready, held))
            case Novelty.APPLY:
                self._prepare_content(ready, held)

    def _prepare_content(self, ready: PreparedChange, held: ResourceState | None) -> None:
        decided, entry = ready.decided, ready.wanted.entry
        if decided is None or decided.change is ChangeType.DELETED:
            self.on_ready(ready)
        elif held is not None and held.exists and agree(held.hash, entry.hash):
            self.on_ready(replace(ready, decided=None, unchanged=held))
        elif (content := self.content.inline(ready.wanted)) is not None:
            self.on_ready(ready.with_response(content, held))
        elif ready.wanted.package is not None:
            self._packaged.append((ready, held))
        else:
            self.tasks.spawn(self._fetch(ready, held))

    async def _fetch(self, ready: PreparedChange, held: ResourceState | None) -> None:
        with self._reported_errors(ready.change):
            fresh = held is not None and held.may_be_later_than(ready.change)
            response = await self.content.resolve(ready.wanted, held, fresh=fresh)
            self.on_ready(ready.with_response(response, held))

    async def _verify(self, ready: PreparedChange, held: ResourceState | None) -> None:
        """Fetch the current version of the resource."""
        with self._reported_errors(ready.change):
            try:
                content = await self.content.current(ready.wanted, held)
            except NotFound:
                if ready.change.change is not ChangeType.DELETED:
                    raise
                if held is None or not held.exists:  # the copy does not have it either
                    ready = replace(ready, decided=None, unchanged=held)
                self.on_ready(ready)
            except EntryRequired:
                if held is None or not held.exists:
                    raise
                ready = replace(ready, decided=None)
                if ready.change.change is ChangeType.DELETED:
                    self.on_ready(replace(ready, unchanged=held))  # it exists, as in the copy
                else:
                    await call_in(self.worker, self.state.require_entry, held.uri)
                    self.on_ready(ready)
                    self.on_lost()
            else:
                ready = replace(ready, decided=self._decide_current(ready.change, held))
                if ready.decided is None or ready.decided.change is not ChangeType.DELETED:
                    ready = ready.with_response(content, held)
                elif isinstance(content, Content):
                    content.discard()  # the resource is no longer selected
                self.on_ready(ready)

    def _decide_current(self, change: Change, held: ResourceState | None) -> Change | None:
        """Return the change to apply for the current version; None if it is not selected.

        This is a deletion if the copy has a resource that is no longer selected.
        """
        exists = held is not None and held.exists
        kind = ChangeType.UPDATED if exists else ChangeType.CREATED
        resource = change.resource
        if resource.change is not None:
            resource = replace(resource, change=kind)
        return self._decide(replace(change, change=kind, resource=resource), held)

    def _decide(self, change: Change, held: ResourceState | None) -> Change | None:
        """Return the change to apply; None if it is not selected.

        Its URI is spelled as in the state, or if the state has none, as in the Source's entry.
        """
        decided = self.selection.decide(change, held=held is not None and held.exists)
        if decided is None:
            return None
        uri = decided.resource.uri if held is None else held.uri
        return decided if uri == decided.uri else replace(decided, uri=uri)


def _novelty(
    decided: Change, change: Change, wanted: WantedRepresentation, held: ResourceState | None
) -> Novelty:
    described = replace(decided, resource=wanted.entry)
    if decided.change is not change.change:  # no longer selected, so removed
        assert held is not None, "only a held resource is removed"
        return Novelty.COVERED if held.covers(described) else Novelty.APPLY
    if held is not None:
        return held.novelty(described)
    if change.check is CheckMethod.FETCH:
        return Novelty.FETCH
    is_no_change = change.check is CheckMethod.COMPARE and change.change is ChangeType.DELETED
    return Novelty.COVERED if is_no_change else Novelty.APPLY


class ApplyOutcome(Protocol):
    """Receives the results of an `Applier`."""

    def progress_after(self, changes: Sequence[Change]) -> Progress | None:
        """Return the progress to commit together with these changes; None if unchanged."""

    def applied(self, changes: Sequence[Change]) -> None:
        """Handle durable changes, including those without an effect."""

    def committed(self, changes: Sequence[Change]) -> None:
        """Handle the durable changes that had an effect."""

    def failed(self, change: Change, error: RsnotifyError) -> None:
        """Handle a change that could not be applied."""

    def find_lost(self) -> None:
        """Schedule another fetch of the resources that the state records as lost."""

    def resumed(self) -> None:
        """Handle the end of an outage of the handler's store."""


class Applier:
    """Applies the changes of a follower.

    Args:
        worker: Runs calls that block on the disk. Its single thread keeps commits in order.
        selection: The resources to follow. Others are removed from the copy.
        retry: The backoff while the handler's store is unavailable.
    """

    def __init__(
        self,
        content: ContentResolver,
        state: DestinationState,
        handler: Handler | TransactionalHandler,
        outcome: ApplyOutcome,
        worker: Executor,
        tasks: Tasks,
        selection: Selection,
        retry: Retry,
    ) -> None:
        self._state = state
        self._preparation = Preparation(
            content,
            state,
            tasks,
            selection,
            self._add_ready,
            outcome.failed,
            outcome.find_lost,
            worker,
        )
        self._handler = handler if isinstance(handler, Handler) else None
        self._transactional = handler if isinstance(handler, TransactionalHandler) else None
        #: Applies changes in the worker; None if the handler is asynchronous.
        self._apply_blocking: _ApplyFunction | None = self._apply_transactional
        if self._handler is not None and self._transactional is None:
            self._apply_blocking = in_thread(self._handler)
        #: Applies changes without flushing, if the state can keep their content until then.
        self._apply_unflushed: _ApplyFunction | None = None
        if (deferred := deferred_handler(handler)) is not None and state.database.is_local:
            self._apply_unflushed = deferred.apply_unflushed
        #: The modification times of files since the last commit, keyed by URI.
        self._mtimes: dict[str, int] = {}
        self._records_mtimes = isinstance(handler, LocatedHandler)
        self._outcome = outcome
        self._worker = worker
        self._ready: list[PreparedChange] = []
        #: Resources for which the handler failed, perhaps after applying a part of the change.
        self._refused: set[str] = set()
        #: The types and source lines of handler errors whose traceback was logged.
        self._logged_errors: set[object] = set()
        self._wake = asyncio.Event()
        #: Whether `run` is waiting for changes, so that the worker is idle.
        self._is_waiting = False
        #: The batch that the worker started while `run` was waiting.
        self._started: tuple[list[PreparedChange], asyncio.Future[bool]] | None = None
        self._stopping = asyncio.Event()
        self._retry = retry
        #: The error of an unavailable store, and since when; None while it is available.
        self.unavailable: tuple[StoreUnavailable, float] | None = None
        self.idle = True
        #: Whether a batch is being applied. Its commit includes its progress.
        self.is_applying = False
        #: Whether a call of the handler is in progress.
        self.is_in_handler = False

    def submit(self, changes: Sequence[Change]) -> None:
        self._preparation.submit(changes)
        if self._ready and self._is_waiting and self._apply_blocking is not None:
            self._is_waiting = False
            batch = self._next_batch()
            self._started = batch, self._start_in_worker(self._apply_blocking, batch)

    def _next_batch(self) -> list[PreparedChange]:
        batch, self._ready = self._ready, []
        self.is_applying = True
        return batch

    def _add_ready(self, ready: PreparedChange) -> None:
        self._ready.append(ready)
        self.idle = False
        self._wake.set()

    def stop(self) -> None:
        """Make `run` return after committing the current batch."""
        self._stopping.set()
        self._wake.set()

    async def run(self) -> None:
        """Commit changes as they become ready, batch by batch, until stopped or a commit fails."""
        while not self._stopping.is_set():
            self._is_waiting = True
            try:
                await self._wake.wait()
            finally:
                self._is_waiting = False
            self._wake.clear()
            started, self._started = self._started, None
            if started is not None:
                await self._apply_batch(*started)
                if self._ready:
                    self._wake.set()
            elif self._ready:
                await self._apply_batch(self._next_batch())

    async def _apply_batch(
        self, batch: list[PreparedChange], started: asyncio.Future[bool] | None = None
    ) -> None:
        new = _with_effect(batch)
        failures = 0
        while True:
            try:
                failed = await self._try_batch(batch, new, started)
            except StoreUnavailable as error:
                started = None
                failures += 1
                if await self._wait_for_store(error, failures):
                    return  # stopped
            else:
                break
        if self.unavailable is not None:
            self.unavailable = None
            logger.info("the store is available again")
            self._outcome.resumed()
        self._report_results(batch, failed)

    async def _wait_for_store(self, error: StoreUnavailable, failures: int) -> bool:
        """Wait until the handler may be called again. Return True if stopped before that."""
        since = asyncio.get_running_loop().time()
        if self.unavailable is None:
            logger.warning("waiting for the store: %s", error)
        else:
            since = self.unavailable[1]
        self.unavailable = error, since
        at_least = error.retry_after or 0.0
        delay = self._retry.delay(failures, Random(), at_least=at_least)
        return await wait_for_event(self._stopping, delay)

    async def _try_batch(
        self,
        batch: list[PreparedChange],
        new: list[PreparedChange],
        started: asyncio.Future[bool] | None,
    ) -> dict[str, RsnotifyError]:
        """Apply and commit a batch. Return the errors of failed changes by URI."""
        if await (started or self._apply_together(batch, new)):
            return {}
        failed = await self._apply_separately(new)
        done = [ready for ready in batch if ready.change.uri not in failed]
        self._refused.update(failed)
        await call_in(self._worker, self._store_intent, new)
        # A change that was applied separately is flushed, and so is everything before it.
        unflushed = None if len(failed) < len(new) else ()
        await call_in(self._worker, self._commit, done, *self._states_and_progress(done), unflushed)
        return failed

    def _report_results(
        self, batch: list[PreparedChange], failed: Mapping[str, RsnotifyError]
    ) -> None:
        done = [ready for ready in batch if ready.change.uri not in failed]
        self.is_applying = False
        self._outcome.applied([ready.change for ready in done])
        if self._refused:
            self._refused.difference_update(ready.change.uri for ready in done)
        self.idle = not self._ready
        self._outcome.committed([ready.decided for ready in done if ready.decided is not None])
        for ready in batch:
            if ready.change.uri in failed:
                self._outcome.failed(ready.change, failed[ready.change.uri])

    async def _apply_together(self, batch: list[PreparedChange], new: list[PreparedChange]) -> bool:
        """Apply a batch with one call of the handler, and commit it. Return False on failure."""
        if self._apply_blocking is not None:
            return await self._start_in_worker(self._apply_blocking, batch)
        if new:
            await call_in(self._worker, self._store_intent, new)
            if await self._call_handler(new) is not None:
                return False
        await call_in(self._worker, self._commit, batch, *self._states_and_progress(batch))
        return True

    def _start_in_worker(
        self, apply: _ApplyFunction, batch: list[PreparedChange]
    ) -> asyncio.Future[bool]:
        """Start to apply a batch. `run_in_executor` would be slower, with a second future."""
        loop = asyncio.get_running_loop()
        done: asyncio.Future[bool] = loop.create_future()
        states, progress = self._states_and_progress(batch)

        def work() -> None:
            outcome: bool | BaseException
            try:
                outcome = self._call_and_commit(apply, batch, states, progress)
            except BaseException as error:
                outcome = error
            loop.call_soon_threadsafe(settle, done, outcome)

        self._worker.submit(work)
        return done

    async def _apply_separately(self, new: list[PreparedChange]) -> dict[str, RsnotifyError]:
        """Call the handler for each change. Return the errors of failed changes by URI."""
        failed: dict[str, RsnotifyError] = {}
        for ready in new:
            if (reason := await self._call_handler([ready])) is not None:
                uri = ready.change.uri
                failed[uri] = StorageError(
                    f"{ready.change.resource.uri}: it could not be applied: {reason}"
                )
                if ready.content is not None:  # it is fetched again
                    await call_in(self._worker, ready.content.discard)
        return failed

    async def _call_handler(self, batch: list[PreparedChange]) -> str | None:
        """Call the handler with a batch. Return the reason if it fails, or None."""
        if self._apply_blocking is not None:
            return await call_in(
                self._worker, self._call_blocking_handler, self._apply_blocking, batch
            )
        assert self._handler is not None
        try:
            await call_in(self._worker, self._write, batch)
            with self._handling():
                applied = self._handler.apply([ready.received() for ready in batch])
                assert applied is not None, (
                    "an `apply` that is not a coroutine is called in a thread"
                )
                await applied
        except StoreUnavailable:
            raise
        except (Exception, asyncio.CancelledError) as error:
            task = asyncio.current_task()
            if task is not None and task.cancelling():
                raise
            return self._failure(error)
        return None

    def _failure(self, error: BaseException) -> str:
        """Return why the handler failed, and log the traceback of each new kind of error.

        The handler is user code. Following continues whatever it raises.
        """
        places = [(frame.filename, frame.lineno) for frame in extract_tb(error.__traceback__)[-1:]]
        kind = type(error), *places
        is_clear = isinstance(error, RsnotifyError | OSError)
        level = logging.DEBUG if is_clear or kind in self._logged_errors else logging.WARNING
        logger.log(level, "the handler failed; retrying later", exc_info=error)
        self._logged_errors.add(kind)
        name, reason = type(error).__name__, str(error)
        if not reason:
            return name
        return reason if is_clear else f"{name}: {reason}"

    def _apply_transactional(self, received: Sequence[Received]) -> None:
        transactional = self._transactional
        assert transactional is not None
        self._state.transactions.apply_within(
            lambda connection: transactional.apply_within(connection, received)
        )

    def _states_and_progress(
        self, done: Sequence[PreparedChange]
    ) -> tuple[list[ResourceState], Progress | None]:
        states = [state for state in map(PreparedChange.new_state, done) if state is not None]
        return states, self._outcome.progress_after([ready.change for ready in done])

    # In the worker

    def _store_intent(self, new: Sequence[PreparedChange]) -> None:
        """Store which resources are about to change, in case of a crash before the commit."""
        if self._transactional is None:
            uris = [ready.decided.uri for ready in new if ready.decided is not None]
            self._state.store_intent(uris, self._refused)

    def _call_and_commit(
        self,
        apply: _ApplyFunction,
        batch: Sequence[PreparedChange],
        states: Sequence[ResourceState],
        progress: Progress | None,
    ) -> bool:
        """Apply and commit a batch. Return False if the handler failed.

        Returning to the event loop in between could cost a millisecond.
        """
        unflushed: Sequence[UnflushedContent] | None = ()
        if new := _with_effect(batch):
            unflushed = unflushed_contents(new) if self._apply_unflushed is not None else None
            if self._apply_unflushed is not None and unflushed is not None:
                apply = self._apply_unflushed
            self._store_intent(new)
            if self._call_blocking_handler(apply, new) is not None:
                return False
        self._commit(batch, states, progress, unflushed)
        return True

    def _write(self, batch: Sequence[PreparedChange]) -> None:
        for ready in batch:
            if ready.content is not None:
                ready.content.write()
        if self._records_mtimes:
            self._mtimes |= modification_times(batch)

    def _call_blocking_handler(
        self, apply: _ApplyFunction, batch: Sequence[PreparedChange]
    ) -> str | None:
        try:
            self._write(batch)
            with self._handling():
                applied = apply([ready.received() for ready in batch])
                if applied is not None:
                    refuse_awaitable(applied)
        except StoreUnavailable:
            raise
        except (Exception, asyncio.CancelledError) as error:
            return self._failure(error)
        return None

    @contextmanager
    def _handling(self) -> Iterator[None]:
        self.is_in_handler = True
        try:
            yield
        finally:
            self.is_in_handler = False

    def _commit(
        self,
        batch: Sequence[PreparedChange],
        states: Sequence[ResourceState],
        progress: Progress | None,
        unflushed: Sequence[UnflushedContent] | None = None,
    ) -> None:
        """Commit a batch.

        `unflushed` has the contents that the handler has not flushed. It is None if everything is
        flushed, and empty if the batch adds none.
        """
        if mtimes := self._mtimes:
            self._mtimes = {}
            states = [replace(one, mtime=mtimes.get(one.uri, one.mtime)) for one in states]
        if states or progress is not None or self._transactional is not None:
            doubts = {one.stored_uri: doubt for one in batch if (doubt := one.content_doubt)}
            dated = {one.stored_uri: one.wanted.entry.length for one in batch if one.is_dated_only}
            self._state.commit(states, progress, doubts, unflushed, dated)
        for ready in batch:
            if ready.content is not None:
                ready.content.discard()


def _with_effect(batch: Iterable[PreparedChange]) -> list[PreparedChange]:
    """Return the changes that have an effect."""
    return [ready for ready in batch if ready.decided is not None]
