"""`Subscriber`, which keeps a copy of a Source in sync through the application's handler."""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Executor, ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from random import Random
from time import monotonic
from typing import Self

from msgspec.structs import replace

from rsnotify.errors import ConfigurationError, RsnotifyError, without_credentials
from rsnotify.format.coverage import Change
from rsnotify.format.offer import Offer
from rsnotify.runtime.arguments import require, require_function
from rsnotify.runtime.state_folders import is_disk_fault
from rsnotify.runtime.tasks import call_in, running, wait_for_event
from rsnotify.selection import push_selection_for
from rsnotify_subscriber.discovery.descriptions import DescriptionReader
from rsnotify_subscriber.discovery.discovery import OfferDiscovery, SourceIdentification
from rsnotify_subscriber.events import Announcer, Event
from rsnotify_subscriber.fetching.credentials import without_login
from rsnotify_subscriber.fetching.fetcher import Fetcher
from rsnotify_subscriber.fetching.sessions import Sessions
from rsnotify_subscriber.following.copy_check import (
    apply_unfinished,
    check_folder,
    check_location,
    check_place,
    watch_place,
)
from rsnotify_subscriber.following.following import Following
from rsnotify_subscriber.following.push_monitor import RunContext
from rsnotify_subscriber.handlers import AnyHandler, LocatedHandler, PreparedHandler, as_handler
from rsnotify_subscriber.mirror.folder_mirror import FolderMirror
from rsnotify_subscriber.options import DEFAULT_OPTIONS, FollowOptions
from rsnotify_subscriber.pool import SubscriberPool
from rsnotify_subscriber.push.endpoints import EndpointFactory
from rsnotify_subscriber.push_options import Via, protocol_of
from rsnotify_subscriber.status import ActivityKind, FollowCounters, Status, SyncActivity
from rsnotify_subscriber.storage.destination_state import DestinationState, open_state
from rsnotify_subscriber.storage.state_database import StateLocation

logger = logging.getLogger("rsnotify.subscriber")


class Subscriber:
    """Follows one set of resources of a Source.

    Call `run` or `catch_up`, or use the subscriber as an async context manager: it then follows in
    the background.

    Args:
        url: The Source: the URL of a site, a well-known URI, a Capability List, a Change List or
            another of its documents. A user and password in the URL are used like
            `Credentials.login`.
        handler: Applies changes: an object with `apply` or `apply_within`, or a function of one
            change. A plain `def` is called in a thread.
        state: The folder of the state, created if it does not exist, or another `StateLocation`.
            Only one subscriber at a time can use it, always for the same Source.
        options: How to follow the Source.
        on_committed: Called with changes once they and T are durable.
        on_event: Called with each event (`rsnotify_subscriber.events`), on the event loop.
        shared: `Fleet.shared`, if the subscriber is part of a fleet.

    Raises:
        ConfigurationError: WebSub is requested without callbacks, the state of a `FolderMirror` is
            not in a folder, or an argument has the wrong type.
    """

    def __init__(
        self,
        url: str,
        handler: AnyHandler,
        *,
        state: str | os.PathLike[str] | StateLocation,
        options: FollowOptions = DEFAULT_OPTIONS,
        on_committed: Callable[[Sequence[Change]], None] | None = None,
        on_event: Callable[[Event], None] | None = None,
        shared: SubscriberPool | None = None,
    ) -> None:
        require("url", url, str, "the URL of a Source as a str")
        require("state", state, str | os.PathLike | StateLocation, "the path of a folder")
        require("options", options, FollowOptions, "FollowOptions")
        require("shared", shared, SubscriberPool | None, "Fleet.shared")
        require_function("on_committed", on_committed)
        require_function("on_event", on_event)
        if str(state).startswith(("postgresql:/", "postgres:/")):  # a Path has one slash
            reason = "a URL is not a folder; for a database, pass PostgreSQLState(…)"
            raise ConfigurationError(f"state: {reason}")
        if options.via is Via.WEBSUB and options.callbacks is None:
            raise ConfigurationError("WebSub requires a callback URL")
        self._url = without_login(url)
        self._handler = as_handler(handler)
        # Check for a path first: it has a method `open`, like a StateLocation.
        self._location = Path(state).absolute() if isinstance(state, str | os.PathLike) else state
        if isinstance(handler, FolderMirror) and not isinstance(self._location, Path):
            # A lease would not keep a suspended process from writing files later; a file lock does.
            raise ConfigurationError("the state of a mirror must be in a folder")
        self._options = options
        self._shared = shared
        #: Read by `FollowMetrics`.
        self.counters = FollowCounters() if shared is None else shared.counters
        self._announcer = Announcer(on_event, self.counters)
        self._on_committed = on_committed
        self._sessions = Sessions(
            url,
            credentials=options.credentials,
            allow_private_addresses=options.allow_private_addresses,
            per_host=options.per_host,
            shared=shared.connections if shared is not None else None,
        )
        self.connections = self._sessions.connections
        self._endpoints = EndpointFactory(
            options.via,
            self._sessions,
            options.callbacks,
            options.mqtt,
            options.logins,
            push_selection_for(options.selection),
            shared.websockets if shared is not None else None,
        )
        #: The event loop of the last run.
        self.loop: asyncio.AbstractEventLoop | None = None
        self._stopping = asyncio.Event()
        self._moved = asyncio.Event()
        self._over = False
        self._following: Following | None = None
        #: The last run, whose handler may still be running after its end.
        self._followed: Following | None = None
        self._last = Status()
        #: The state of the current run, and the executor for blocking calls to it.
        self._open: tuple[DestinationState, Executor] | None = None
        self._task: asyncio.Task[None] | None = None

    @property
    def status(self) -> Status:
        """The current status, or the one at the end of the last run."""
        if self._following is not None:
            return self._following.status
        return replace(self._last, behind_since=self._announcer.behind_since)

    @property
    def url(self) -> str:
        """The URL of the Source, without credentials."""
        return without_credentials(self._url)

    @property
    def in_handler(self) -> list[str]:
        """The Source's URL while its handler is running, or else an empty list."""
        is_in_handler = self._followed is not None and self._followed.is_in_handler
        return [self.url] if is_in_handler else []

    async def until(self, condition: Callable[[Status], bool]) -> bool:
        """Wait until the status meets a condition, such as `lambda status: status.level`.

        Returns:
            True, or False if the subscriber ended before the condition was met.
        """
        while not condition(self.status):
            if self._over:
                return False
            await self._moved.wait()
        return True

    async def wait(self) -> None:
        """Wait until the subscriber has ended."""
        await self.until(lambda status: False)

    def _wake(self) -> None:
        self._moved.set()  # wakes only the current waiters
        self._moved.clear()
        if self._shared is not None:
            self._shared.wake()

    async def run(self) -> None:
        """Follow until `stop` is called.

        If the disk is full or fails, the subscriber waits, and then continues from the last commit.

        Raises:
            RsnotifyError: The subscriber cannot start, or cannot continue.
        """
        failures = 0
        retry = self._options.pace.retry
        with self._in_progress():
            while True:
                begun = monotonic()
                try:
                    return await self._run(once=False)
                except RsnotifyError as error:
                    if not is_disk_fault(error):
                        raise
                    logger.warning("waiting for the disk: %s", error)
                failures = 1 if monotonic() - begun > retry.most else failures + 1
                if await wait_for_event(self._stopping, retry.delay(failures, Random())):
                    return None

    async def catch_up(self) -> None:
        """Follow until the copy is level with the Source's lists.

        Raises:
            RsnotifyError: The copy could not become level. The error names the resources that could
                not be fetched.
        """
        with self._in_progress():
            await self._run(once=True)

    async def verify(self, uris: Iterable[str] | None = None) -> int:
        """Mark the given resources, or all resources, as lost, so that they are refetched.

        The marks are durable: the resources are refetched by the current run, or by the next one.
        Until then, the copy is not level. The handler receives each resource as an update, or as a
        deletion if the Source no longer has it. URIs that are not in the copy are ignored.

        Returns:
            The number of resources to refetch, including those marked by earlier calls.

        Raises:
            StorageError: The state cannot be read or written.
            ConfigurationError: Another process uses this state.
        """
        if isinstance(uris, str):
            raise ConfigurationError("verify requires a list of URIs, not a single one")
        given = None if uris is None else list(uris)
        if self._open is not None:
            state, worker = self._open
            lost = await call_in(worker, state.lose, given)
            if self._following is not None:
                self._following.find_lost()
            return lost
        with ThreadPoolExecutor(1, "rsnotify-state") as own:
            async with open_state(self._location, own) as state:
                return await call_in(own, state.lose, given)

    def stop(self) -> None:
        """End `run` or `catch_up` gracefully, after completing a commit in progress."""
        self._stopping.set()
        if self._following is not None:
            self._following.stop()

    async def __aenter__(self) -> Self:
        self._task = asyncio.create_task(self.run())
        return self

    async def __aexit__(self, *_: object) -> None:
        self.stop()
        if self._task is not None:
            await self._task

    @contextmanager
    def _in_progress(self) -> Iterator[None]:
        self.loop = asyncio.get_running_loop()
        self._over = False
        self._last = Status()
        try:
            yield
        finally:
            self._over = True
            self._wake()

    # One run, from opening the state to closing it

    async def _run(self, *, once: bool) -> None:
        shared = self._shared
        # Runs blocking calls one at a time.
        with shared.worker() if shared else ThreadPoolExecutor(1, "rsnotify-state") as worker:
            async with open_state(self._location, worker) as state, self._sessions:
                incoming = await call_in(worker, state.make_incoming)
                self._last = await call_in(worker, _status_of, state)
                failure = ""
                self._open = state, worker
                try:
                    await self._follow(state, worker, incoming, once=once)
                except RsnotifyError as error:
                    failure = str(error)
                    self._announcer.set_behind()
                    raise
                finally:
                    self._open = None
                    last = replace(self.status, activity=None)
                    self._last = replace(last, level=False, error=failure) if failure else last
                    self._following = None
                    self._wake()

    async def _follow(
        self, state: DestinationState, worker: Executor, incoming: Path, *, once: bool
    ) -> None:
        cache = self._shared.documents if self._shared is not None else None
        options = self._options
        fetcher = Fetcher(self._sessions, incoming, options.largest, cache, options.pace.rate)
        known = await call_in(worker, state.identity)
        handler = self._handler
        folder = self._location if isinstance(self._location, Path) else incoming
        await call_in(worker, check_location, handler, state)
        if known is not None and state.contents.unfinished:
            if isinstance(handler, PreparedHandler):
                handler.prepare(known.base, folder)
            await call_in(worker, apply_unfinished, handler, state, incoming)
        memory = known.memory if known is not None else None
        offers = OfferDiscovery(DescriptionReader(fetcher, memory), self._url)
        identifying = SourceIdentification(
            self._url,
            self._location,
            offers,
            self._stopping,
            self._report_waiting,
            self._has_transport,
        )
        identity = await identifying.identify(known, patient=not once)
        if identity is None:
            return
        if isinstance(handler, PreparedHandler):
            handler.prepare(identity.base, folder)
        await call_in(worker, check_folder, handler, state, identity, options.adopt)
        identity = replace(
            identity,
            selection=options.selection,
            prefer=tuple(options.prefer),
            place=handler.place if isinstance(handler, LocatedHandler) else "",
        )
        if identity != known:
            await call_in(worker, state.store_identity, identity)
        if not self._has_transport(identity.offer):
            name = protocol_of(options.via)
            raise ConfigurationError(f"{self.url} offers no hub that supports {name}")
        context = RunContext(
            once=once,
            identity=identity,
            offer_checked=identifying.checked,
            state=state,
            worker=worker,
            fetcher=fetcher,
            offers=offers,
            endpoints=self._endpoints,
            handler=handler,
            options=options,
            announce=self._announcer,
            on_status_changed=self._wake,
            on_committed=self._on_committed,
        )
        self._following = self._followed = Following(context)
        if self._stopping.is_set():
            return
        async with running(watch_place(context, self._following.stop)):
            await self._following.run()
            await check_place(context)

    def _has_transport(self, offer: Offer) -> bool:
        return protocol_of(self._options.via) is None or bool(
            self._endpoints.change_endpoints(offer)
        )

    def _report_waiting(self, reason: str) -> None:
        self._last = replace(self._last, error=reason)
        self._wake()


def _status_of(state: DestinationState) -> Status:
    """Return the status as of the last commit, before the Source is reached."""
    progress = state.progress()
    through = progress.through if progress is not None else None
    return Status(
        resources=state.resources,
        through=through,
        compared=state.compared(),
        activity=SyncActivity(ActivityKind.FINDING),
    )
