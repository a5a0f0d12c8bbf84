"""The library a Source embeds: it is told of changes, and does the rest.

    publisher = Publisher("state", "https://source.example/data/", hubs=["https://hub.example"])
    with publisher:
        publisher.updated("https://source.example/data/res1", length=8876)

Every method for plain threads has a twin for asyncio, named with an `a` in front as Django
names them: `updated` blocks until the change is durable, `await aupdated` waits for it.
"""

from __future__ import annotations

import asyncio
import atexit
import concurrent.futures.thread
import os
import threading
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Unpack

from rsnotify.errors import ConfigurationError
from rsnotify.format.model import Resource
from rsnotify.format.vocabulary import ChangeType
from rsnotify.runtime.arguments import require, require_function
from rsnotify_publisher.background.election import LeaderElection
from rsnotify_publisher.background.leader import Leader
from rsnotify_publisher.background.pool import PublisherPool
from rsnotify_publisher.changes import (
    Metadata,
    Record,
    check_record,
    check_resource,
    describe,
    describe_record,
)
from rsnotify_publisher.contents import ContentCallback
from rsnotify_publisher.hubs import Hub, parse_hub
from rsnotify_publisher.journal import Recorder, system_clock
from rsnotify_publisher.options import Options
from rsnotify_publisher.source_context import ResourceCallback, SourceContext
from rsnotify_publisher.startable import Startable


class Publisher(Startable):
    """Records changes durably, tells the hubs, and keeps the documents.

    It starts with the first change, or by `start()`, `with` or `async with`. Any number of
    threads may use one Publisher, and any number of processes may have one on the same folder:
    one of them feeds the hubs and writes the documents, and another takes over if it dies.

    Args:
        folder: Where the state is kept; the documents stand in its folder `documents`.
        base_url: Below which the documents are served.
        hubs: URLs of hubs, or `Hub`s made by `parse_hub` where each has its own token.
        token: The bearer token for hubs given as URLs.
        content: Returns what a resource holds now: bytes, or the path of a file that holds it,
            or None if it is gone. If given, small content travels inside the fragments, and
            there can be dumps. Called in threads.
        resources: Returns the current set of resources, from a database of the Source's own
            say; any iterable, which is not held in memory. Without it, the set is kept in the
            journal. Called in a thread, at every writing of a Resource List or Resource Dump.
        described_by: A document about this set of resources, for whoever wants to know more.
        options: Tuning.
        clock: Tells the time in microseconds since 1970.

    Raises:
        ConfigurationError: A URL or an option is unusable, or an argument has a wrong type.
    """

    def __init__(
        self,
        folder: str | os.PathLike[str],
        base_url: str,
        *,
        hubs: Sequence[str | Hub] = (),
        token: str | None = None,
        content: ContentCallback | None = None,
        resources: ResourceCallback | None = None,
        described_by: str | None = None,
        options: Options | None = None,
        clock: Callable[[], int] = system_clock,
    ) -> None:
        require("folder", folder, str | os.PathLike, "the path of a folder")
        require("base_url", base_url, str, "a URL as a str")
        if isinstance(hubs, str):
            raise ConfigurationError("hubs is of type str; give a list of URLs")
        for hub in hubs:
            require("a hub", hub, str | Hub, "a URL as a str, or a Hub")
        require("options", options, Options | None, "Options")
        for name, function in (("content", content), ("resources", resources), ("clock", clock)):
            require_function(name, function)
        known = tuple(hub if isinstance(hub, Hub) else parse_hub(hub, token) for hub in hubs)
        distinct = tuple({hub.uri: hub for hub in known}.values())
        self.source = SourceContext(
            Path(folder),
            base_url,
            distinct,
            options or Options(),
            clock,
            content=content,
            resources=resources,
            described_by=described_by,
        )
        self._lock = threading.Lock()
        self._shared = PublisherPool()
        self._started_in: int | None = None

    def belong_to(self, description: str, shared: PublisherPool) -> None:
        """Let the Capability List point up to the Source Description of several sets.

        Args:
            description: Its URI.
            shared: What the sets share.

        Raises:
            ConfigurationError: The Publisher has started, and may have said otherwise.
        """
        if self._started_in is not None:
            raise ConfigurationError(
                f"the Publisher of {self.source.base_url} runs already; give it to the "
                "SourceDescription before it starts"
            )
        self.source.documents.description_uri = description
        self._shared = shared

    # Starting and ending

    def start(self) -> None:
        """Open the journal and begin to publish; once is enough.

        Raises:
            StorageError: The journal cannot be used.
            ConfigurationError: A folder cannot be written, the journal belongs to another
                Source, or this process was forked from one in which the Publisher had started.
        """
        if self._started_in == os.getpid():
            return  # without the lock: what is called back while `close` holds it may record
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
            journal.track(self.source.resources is None)
            # Before the first change, so that a new hub is sent it.
            for hub in self.source.hubs:
                journal.add_hub(hub.uri)
                journal.add_listener(hub.uri)
        self._shared.enter()
        try:
            self._begin()
        except BaseException:
            self._shared.leave()
            raise
        self._started_in = os.getpid()
        _running.add(self)

    def _begin(self) -> None:
        self._background = LeaderElection(self.source, self._leader, self._shared)
        self._recorder = Recorder(
            self.source.open_journal,
            self._background.wake,
            self._shared.recorder(),
            memory=self._shared.memory,
        )
        self._recorder.start()
        self._background.start()

    def _leader(self) -> Leader:
        published = self._background.note_published
        return Leader(self.source, self._recorder, published, self._shared)

    def stop(self) -> None:
        """Begin to end, so that several do at the same time; `close` waits for it."""
        with self._lock:
            if self._started_in == os.getpid():
                self._background.stop()

    def close(self) -> None:
        """Give the hubs a moment to take what is left, and end; what they miss stays recorded."""
        with self._lock:
            if self._started_in == os.getpid():
                self._background.close()
                self._recorder.close()
                self._shared.leave()
                _running.discard(self)
                self._started_in = None

    def wait_published(self, timeout: float | None = None) -> bool:
        """Wait until every document is in the folder.

        Args:
            timeout: Seconds to wait at most.

        Returns:
            Whether they are there.

        Raises:
            RsnotifyError: As `start` does.
        """
        self.start()
        published = self._background.published
        return published in concurrent.futures.wait([published], timeout).done

    async def await_published(self, timeout: float | None = None) -> bool:
        """Do as `wait_published` does, in asyncio."""
        await asyncio.to_thread(self.start)
        there, loop = asyncio.Event(), asyncio.get_running_loop()

        def tell(_: object) -> None:
            with suppress(RuntimeError):  # nobody waits any more, and the loop was closed
                loop.call_soon_threadsafe(there.set)

        self._background.published.add_done_callback(tell)
        with suppress(TimeoutError):
            async with asyncio.timeout(timeout):
                await there.wait()
        return there.is_set()

    # The baseline

    def is_empty(self) -> bool:
        """Whether nothing was ever loaded or recorded.

        Raises:
            StorageError: The journal cannot be used.
        """
        with self.source.open_journal() as journal:
            return journal.is_empty()

    def load(self, resources: Iterable[Resource | Record]) -> int:
        """Take the resources that exist already as the baseline, before anything else.

        They appear in the Resource List, but not as changes. All are loaded, or none.

        Args:
            resources: With `lastmod`, if that is known.

        Returns:
            How many there were.

        Raises:
            ConfigurationError: A resource is unusable, the journal is not empty, or the
                Publisher was given `resources`.
            StorageError: The journal cannot be written.
        """
        if self.source.resources is not None:
            raise ConfigurationError("`resources` gives the set; there is nothing to load")
        records = map(_as_record, resources)
        with self.source.open_journal() as journal, journal.transaction():
            return journal.load(
                Record(check_resource(record.resource), record.validator) for record in records
            )

    # Recording

    def submit(
        self, changes: Iterable[Resource | Record]
    ) -> concurrent.futures.Future[list[Resource]]:
        """Hand changes over without waiting; all become durable together, or none.

        Args:
            changes: In order, each with `change` set; their `datetime` is given here.

        Returns:
            A future of the changes with their datetimes, once they are durable.

        Raises:
            ConfigurationError: A change is unusable; none of them is recorded.
            StorageError: The journal cannot be used.
        """
        records = [check_record(_as_record(change)) for change in changes]
        self.start()
        return self._recorder.submit(lambda journal: self.source.record(journal, records))

    def record(self, changes: Iterable[Resource | Record]) -> list[Resource]:
        """Record a batch and wait until it is durable; arguments and errors as in `submit`.

        With `Options.change_dump`, the content of the changes is kept when this returns.
        """
        recorded = self.submit(changes).result()
        if self.source.captured is not None:
            self.source.captured.keep(recorded)
        return recorded

    def created(
        self, uri: str, *, content: bytes | None = None, **metadata: Unpack[Metadata]
    ) -> Resource:
        """Record that a resource came into being, and wait until that is durable.

        Args:
            uri: The resource.
            content: What it holds now. Its hash and length become those of the change, and a Change
                Dump has this very content, even if the resource changes again at once.
            metadata: What is known of it; see `Metadata`.

        Returns:
            The change with its datetime.

        Raises:
            ConfigurationError: The URI or the metadata is unusable; nothing is recorded.
            StorageError: It could not be made durable.
        """
        return self.record([describe_record(uri, ChangeType.CREATED, content, metadata)])[0]

    def updated(
        self, uri: str, *, content: bytes | None = None, **metadata: Unpack[Metadata]
    ) -> Resource:
        """Record that a resource changed; otherwise as `created`."""
        return self.record([describe_record(uri, ChangeType.UPDATED, content, metadata)])[0]

    def deleted(self, uri: str, **metadata: Unpack[Metadata]) -> Resource:
        """Record that a resource is gone; otherwise as `created`."""
        return self.record([describe(uri, ChangeType.DELETED, metadata)])[0]

    async def arecord(self, changes: Iterable[Resource | Record]) -> list[Resource]:
        """Do as `record` does, in asyncio."""
        recorded = await asyncio.wrap_future(self.submit(changes))
        if self.source.captured is not None:
            await asyncio.to_thread(self.source.captured.keep, recorded)
        return recorded

    async def acreated(
        self, uri: str, *, content: bytes | None = None, **metadata: Unpack[Metadata]
    ) -> Resource:
        """Do as `created` does, in asyncio."""
        created = describe_record(uri, ChangeType.CREATED, content, metadata)
        return (await self.arecord([created]))[0]

    async def aupdated(
        self, uri: str, *, content: bytes | None = None, **metadata: Unpack[Metadata]
    ) -> Resource:
        """Do as `updated` does, in asyncio."""
        updated = describe_record(uri, ChangeType.UPDATED, content, metadata)
        return (await self.arecord([updated]))[0]

    async def adeleted(self, uri: str, **metadata: Unpack[Metadata]) -> Resource:
        """Do as `deleted` does, in asyncio."""
        return (await self.arecord([describe(uri, ChangeType.DELETED, metadata)]))[0]


def close_all(publishers: Iterable[Publisher]) -> None:
    """Close several at the same time, each in its order."""
    publishers = list(publishers)
    for publisher in publishers:
        publisher.stop()
    for publisher in publishers:
        publisher.close()


_running: set[Publisher] = set()


def _close_all() -> None:
    """Close what a program that ends has left running."""
    close_all(_running)


# Not by `atexit`, which comes only after the executors have ended that closing needs. What is
# registered last is called first, so this comes before `concurrent.futures`, imported above.
# The hook that `concurrent.futures` itself uses has no public name; without it `atexit` must do.
getattr(threading, "_register_atexit", atexit.register)(_close_all)


def _as_record(change: Resource | Record) -> Record:
    return change if isinstance(change, Record) else Record(change)
