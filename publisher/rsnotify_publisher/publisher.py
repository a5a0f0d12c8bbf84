"""The library that a Source embeds to record, publish and push its changes.

    publisher = Publisher("state", "https://source.example/data/", hubs=["https://hub.example"])
    with publisher:
        publisher.updated("https://source.example/data/res1", length=8876)

Every blocking method has an asyncio counterpart whose name begins with `a`, as in Django: `updated`
blocks until the change is durable, and `await aupdated` waits for it.
"""

from __future__ import annotations

import asyncio
import atexit
import concurrent.futures
import concurrent.futures.thread
import os
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Self, TypeVar, Unpack

from rsnotify.errors import ConfigurationError
from rsnotify.format.model import ChangeType, Resource
from rsnotify.runtime.arguments import require, require_function
from rsnotify.runtime.tasks import wait_for_event
from rsnotify_publisher.background.leader import LeaderElection
from rsnotify_publisher.background.pool import PublisherPool
from rsnotify_publisher.changes import (
    Metadata,
    Record,
    change_record,
    check_record,
    check_resource,
)
from rsnotify_publisher.hubs import Hub, parse_hub
from rsnotify_publisher.journal import Journal, Recorder, system_clock
from rsnotify_publisher.options import Options
from rsnotify_publisher.push.change_stream import ChangeStream
from rsnotify_publisher.source_context import SourceCallbacks, SourceContext

#: Maximum number of Publishers to close at the same time.
_MAX_CLOSING = 8


class Startable(ABC):
    """Something that runs from `start` to `close`, or inside `with` or `async with`."""

    @abstractmethod
    def start(self) -> None:
        """Start. A second call does nothing."""

    @abstractmethod
    def close(self) -> None:
        """Shut down cleanly. Do nothing if not running."""

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    async def __aenter__(self) -> Self:
        await asyncio.to_thread(self.start)
        return self

    async def __aexit__(self, *_: object) -> None:
        await asyncio.to_thread(self.close)


#: The running Publishers, which are closed when the program ends.
running: set[Publisher] = set()


def close_all(publishers: Iterable[Publisher]) -> None:
    """Close several Publishers at the same time."""
    publishers = list(publishers)
    for publisher in publishers:
        with publisher._lock:
            if publisher.is_running:
                publisher._election.stop()
    # Each call waits for the disk, so several run in parallel.
    with concurrent.futures.ThreadPoolExecutor(_MAX_CLOSING) as threads:
        for closed in [threads.submit(publisher.close) for publisher in publishers]:
            closed.result()


# `atexit` hooks run too late: the executors that closing needs have ended by then. The hooks that
# `concurrent.futures` uses run earlier, the last registered one first. So this one runs before the
# hook of `concurrent.futures` itself, which is imported above. The function that registers them is
# private, so `atexit` is the fallback.
getattr(threading, "_register_atexit", atexit.register)(lambda: close_all(running))


T = TypeVar("T")


class Publisher(Startable):
    """Records changes durably, pushes them to hubs, and keeps the documents up to date.

    A Publisher starts with the first change, or with `start()`, `with` or `async with`. Any number
    of threads may use one Publisher, and any number of processes may each have a Publisher for the
    same folder. One process pushes to the hubs and writes the documents, and another takes over if
    that process dies.

    Args:
        state: The folder for the state. The documents are in its subfolder `documents`.
        base_url: The URL below which the documents are served.
        hubs: The hubs' URLs, or `Hub` objects from `parse_hub` if they have different tokens. A
            string may contain the URLs of all nodes of a hub, separated by commas.
        token: The bearer token for hubs that are given as URLs.
        described_by: The URL of a document about this set of resources.
        options: Tuning.
        callbacks: `content`, `resources` and `clock`; see `SourceCallbacks`.

    Raises:
        ConfigurationError: A URL or an option is unusable, or an argument has the wrong type.
    """

    def __init__(
        self,
        state: str | os.PathLike[str],
        base_url: str,
        *,
        hubs: Sequence[str | Hub] = (),
        token: str | None = None,
        described_by: str | None = None,
        options: Options | None = None,
        **callbacks: Unpack[SourceCallbacks],
    ) -> None:
        require("state", state, str | os.PathLike, "the path of a folder")
        require("base_url", base_url, str, "a URL as a str")
        if isinstance(hubs, str):
            raise ConfigurationError("hubs is of type str; give a list of URLs")
        for hub in hubs:
            require("a hub", hub, str | Hub, "a URL as a str, or a Hub")
        require("options", options, Options | None, "Options")
        for name, function in callbacks.items():
            if name not in SourceCallbacks.__annotations__:
                raise TypeError(f"Publisher() got an unexpected keyword argument {name!r}")
            require_function(name, function)
        known = tuple(hub if isinstance(hub, Hub) else parse_hub(hub, token) for hub in hubs)
        self.source = SourceContext(
            Path(state),
            base_url,
            tuple({hub.uri: hub for hub in known}.values()),
            options or Options(),
            callbacks.get("clock", system_clock),
            content=callbacks.get("content"),
            resources=callbacks.get("resources"),
            described_by=described_by,
        )
        self._lock = threading.Lock()
        self._pool = PublisherPool()
        self._started_in: int | None = None

    # Lifecycle

    def start(self) -> None:
        """Open the journal and start publishing. A second call does nothing.

        Raises:
            StorageError: The journal cannot be used.
            ConfigurationError: A folder is not writable, the journal belongs to another Source, or
                this process was forked from one in which the Publisher had started.
        """
        if self.is_running:
            return  # without the lock, because a callback may record while `close` holds it
        with self._lock:
            if self._started_in is None:
                self._start()
            elif self._started_in != os.getpid():
                raise ConfigurationError(
                    "this Publisher was started before the process was forked; "
                    "start it, or record the first change, after the fork"
                )

    def _start(self) -> None:
        self.source.check_folders()
        with self.source.open_journal() as journal, journal.transaction():
            journal.set_tracked(self.source.resources is None)
            # Hubs are added before the first change, so that a new hub receives it.
            for hub in self.source.hubs:
                journal.add_hub(hub.uri)
        self._pool.enter()
        try:
            contents, threads = self.source.contents, self._pool.threads
            read_contents = None if contents is None else contents.inline
            changes = ChangeStream(read_contents, self._pool.call, threads.readers.submit)
            self._recorder = Recorder(
                self.source.open_journal,
                on_recorded=changes.on_recorded,
                executor=threads.recorders,
                cache_size=self._pool.journal_cache,
                counters=self.source.counters,
            )
            self._recorder.start()
            self._election = LeaderElection(self.source, self._recorder, changes, self._pool)
            self._election.start()
        except BaseException:
            self._pool.leave()
            raise
        self._started_in = os.getpid()
        running.add(self)

    def close(self) -> None:
        """Send the remaining changes to the hubs for at most `Options.grace` seconds, then stop.

        Changes that a hub has not accepted by then stay in the journal.
        """
        with self._lock:
            if self.is_running:
                self._election.close()
                self._recorder.close()
                self._pool.leave()
                running.discard(self)
                self._started_in = None

    def wait_published(self, timeout: float | None = None) -> bool:
        """Wait until every document has been written, starting the Publisher if necessary.

        Args:
            timeout: Maximum number of seconds to wait.

        Returns:
            Whether every document has been written.

        Raises:
            RsnotifyError: See `start`.
        """
        self.start()
        published = self._election.published
        return published in concurrent.futures.wait([published], timeout).done

    @property
    def is_running(self) -> bool:
        """Whether the Publisher has started in this process and has not been closed."""
        return self._started_in == os.getpid()

    @property
    def is_published(self) -> bool:
        """Whether the Publisher is running and every document has been written."""
        return self.is_running and self._election.published.done()

    async def await_published(self, timeout: float | None = None) -> bool:
        """Wait in asyncio until every document has been written; see `wait_published`."""
        await asyncio.to_thread(self.start)
        published, loop = asyncio.Event(), asyncio.get_running_loop()

        def on_done(_: object) -> None:
            with suppress(RuntimeError):  # the loop has been closed, so nothing is waiting
                loop.call_soon_threadsafe(published.set)

        self._election.published.add_done_callback(on_done)
        return await wait_for_event(published, timeout)

    # The baseline

    def is_empty(self) -> bool:
        """Return whether nothing has ever been loaded or recorded.

        Raises:
            StorageError: The journal cannot be used.
        """
        with self.source.open_journal() as journal:
            return journal.is_empty()

    def load(self, resources: Iterable[Resource | Record]) -> int:
        """Record the existing resources as the baseline, before any changes.

        They appear in the Resource List, but not as changes. Either all are loaded, or none.

        Args:
            resources: The resources, with `lastmod` if it is known.

        Returns:
            The number of resources.

        Raises:
            ConfigurationError: A resource is unusable, the journal is not empty, or the Publisher
                has the callback `resources`.
            StorageError: The journal cannot be written.
        """
        if self.source.resources is not None:
            raise ConfigurationError(
                "the callback `resources` returns the set; there is nothing to load"
            )
        records = (each if isinstance(each, Record) else Record(each) for each in resources)
        with self.source.open_journal() as journal, journal.transaction():
            return journal.load(
                Record(check_resource(record.resource), record.validator) for record in records
            )

    # Recording

    def submit(
        self, changes: Iterable[Resource | Record]
    ) -> concurrent.futures.Future[list[Resource]]:
        """Record changes without waiting. Either all become durable together, or none.

        With `Options.change_dump`, pass the content of each change: if it is not passed, the
        process that writes the documents reads it a moment later, when the resource may have
        changed again.

        Args:
            changes: The changes in order, each with `change` set. The Publisher sets `datetime`.

        Returns:
            A future with the changes and their datetimes, done when they are durable.

        Raises:
            ConfigurationError: A change is unusable. None of them is recorded.
            StorageError: The journal cannot be used.
        """
        operation = self._recording(changes)  # this may start the recorder
        return self._recorder.submit(operation)

    def _recording(
        self, changes: Iterable[Resource | Record]
    ) -> Callable[[Journal], list[Resource]]:
        """Check changes, and return the operation that records them. Start the Publisher."""
        records = [check_record(change) for change in changes]
        self.start()
        captured = self.source.captured

        def record(journal: Journal) -> list[Resource]:
            recorded = journal.record(records)
            if captured is not None:
                # In the transaction: after it, another process may already pack the change.
                for change, record in zip(recorded, records, strict=True):
                    if record.content is not None:
                        captured.put(change, record.content)
            return recorded

        return record

    def record(self, changes: Iterable[Resource | Record]) -> list[Resource]:
        """Record changes, and wait until they are durable.

        The arguments and errors are the same as for `submit`. With `Options.change_dump`, this also
        keeps the content of the changes before it returns.
        """
        operation = self._recording(changes)
        recorded = self._recorder.run(operation)
        if self.source.captured is not None:
            self.source.captured.keep(recorded)
        return recorded

    def created(
        self, uri: str, *, content: bytes | None = None, **metadata: Unpack[Metadata]
    ) -> Resource:
        """Record that a resource was created, and wait until the change is durable.

        Args:
            uri: The URI of the resource.
            content: The new content of the resource, whose hash and length are added to the change.
                Small content is sent inside the fragment. A Change Dump contains exactly this
                content, even if the resource changes again at once.
            metadata: See `Metadata`.

        Returns:
            The change with its datetime.

        Raises:
            ConfigurationError: The URI or the metadata is unusable. Nothing is recorded.
            StorageError: The change could not be made durable.
        """
        return self.record([change_record(uri, ChangeType.CREATED, metadata, content)])[0]

    def updated(
        self, uri: str, *, content: bytes | None = None, **metadata: Unpack[Metadata]
    ) -> Resource:
        """Record that a resource changed. See `created`."""
        return self.record([change_record(uri, ChangeType.UPDATED, metadata, content)])[0]

    def deleted(self, uri: str, **metadata: Unpack[Metadata]) -> Resource:
        """Record that a resource was deleted. See `created`."""
        return self.record([change_record(uri, ChangeType.DELETED, metadata)])[0]

    async def arecord(self, changes: Iterable[Resource | Record]) -> list[Resource]:
        """Record changes in asyncio; see `record`."""
        operation = self._recording(changes)
        recorded = await self._recorder.arun(operation)
        if self.source.captured is not None:
            await asyncio.to_thread(self.source.captured.keep, recorded)
        return recorded

    async def acreated(
        self, uri: str, *, content: bytes | None = None, **metadata: Unpack[Metadata]
    ) -> Resource:
        """Record in asyncio that a resource was created; see `created`."""
        return (await self.arecord([change_record(uri, ChangeType.CREATED, metadata, content)]))[0]

    async def aupdated(
        self, uri: str, *, content: bytes | None = None, **metadata: Unpack[Metadata]
    ) -> Resource:
        """Record in asyncio that a resource changed; see `created`."""
        return (await self.arecord([change_record(uri, ChangeType.UPDATED, metadata, content)]))[0]

    async def adeleted(self, uri: str, **metadata: Unpack[Metadata]) -> Resource:
        """Record in asyncio that a resource was deleted; see `created`."""
        return (await self.arecord([change_record(uri, ChangeType.DELETED, metadata)]))[0]


def join_source(publisher: Publisher, description: str, pool: PublisherPool) -> None:
    """Make a set part of a Source with several sets, which share the threads of a pool.

    The set's Capability List points up to the Source Description at the URI `description`.

    Raises:
        ConfigurationError: The Publisher has started, and may have written another link.
    """
    if publisher._started_in is not None:
        raise ConfigurationError(
            f"the Publisher for {publisher.source.base_url} is already running; pass it to the "
            "SourceDescription before you start it"
        )
    publisher.source.documents.description_uri = description
    publisher._pool = pool


def transact(publisher: Publisher, work: Callable[[Journal], T]) -> concurrent.futures.Future[T]:
    """Run `work` in the journal's next transaction.

    If the transaction fails because of another caller, `work` runs again.
    """
    publisher.start()
    return publisher._recorder.submit(work)
