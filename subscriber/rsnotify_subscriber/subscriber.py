"""The library: a Source's URL and a handler in, a Destination in step out."""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from concurrent.futures import Executor, ThreadPoolExecutor
from contextlib import contextmanager, suppress
from pathlib import Path
from random import Random
from time import monotonic

import msgspec

from rsnotify.errors import ConfigurationError, RsnotifyError, shown
from rsnotify.format.coverage import Change
from rsnotify.format.media_types import is_media_type
from rsnotify.runtime.arguments import require, require_function, require_struct
from rsnotify.selection.push_selection import asked_by
from rsnotify.selection.selection import Selection
from rsnotify.sync.pace import Pace
from rsnotify_subscriber.content.resolver import ContentPreferences
from rsnotify_subscriber.discovery.descriptions import DescriptionReader
from rsnotify_subscriber.discovery.identification import SourceIdentification
from rsnotify_subscriber.discovery.offers import OfferDiscovery
from rsnotify_subscriber.events import Announcer, Event
from rsnotify_subscriber.fetching.connections import PER_HOST
from rsnotify_subscriber.fetching.credentials import (
    NO_CREDENTIALS,
    Credentials,
    without_login,
)
from rsnotify_subscriber.fetching.fetcher import MOST_CONTENT_BYTES, Fetcher
from rsnotify_subscriber.fetching.sessions import Sessions
from rsnotify_subscriber.handlers import (
    Handler,
    PreparedHandler,
    Received,
    TransactionalHandler,
    as_handler,
)
from rsnotify_subscriber.mirror.folder import FolderMirror
from rsnotify_subscriber.patching import Patch
from rsnotify_subscriber.pool import SubscriberPool
from rsnotify_subscriber.push.endpoints import Transports
from rsnotify_subscriber.push.mqtt import DEFAULT_MQTT, MqttOptions
from rsnotify_subscriber.push.websub.callbacks import Callbacks
from rsnotify_subscriber.status import Status
from rsnotify_subscriber.storage.database import StateLocation
from rsnotify_subscriber.storage.disk_faults import is_disk_fault
from rsnotify_subscriber.storage.state import DestinationState, Identity, opened
from rsnotify_subscriber.sync.following import Following
from rsnotify_subscriber.sync.presence import LocatedHandler, PresenceCheck, check_held, check_there
from rsnotify_subscriber.via import NAMES, Via

logger = logging.getLogger("rsnotify.subscriber")


class Subscriber:
    """Follows one set of resources of a Source.

    Use `run`, or `catch_up`, or the subscriber as an async context manager, which follows in
    the background as long as it is open.

    Args:
        url: The Source: a site, a well-known URI, a Capability List, a Change List, ... A user and
            password in it are sent as `credentials.login` would be.
        handler: Applies changes: an object with `apply` or `apply_within`, or an async function
            of one change.
        state: The folder of the state, made if it is not there, or another place for it. One
            subscriber uses it at a time, always for the same Source.
        via: How changes are heard of.
        pace: How fast, and how much at once.
        selection: What of the set is followed. Where it is another than in the last run, the
            copy is compared with the Source anew.
        on_committed: Called with changes once they are durable, and T with them; for what
            follows from a change and must not be told too early.
        prefer: A media type, or several, the best first. Where the Source offers a
            representation of such a type, it is held instead of the one at the URI of the
            resource (core §14.3).
        exact: Whether of each change its own version is fetched, where the Source keeps
            versions (core §14.6), and not the one of now.
        patches: What applies patches, by their media type: a function of the content before
            and the patch, which returns the content after. JSON Patch, JSON Merge Patch and
            XML Patch are known already.
        per_host: Connections to one host at a time.
        largest: Bytes that are taken of a resource whose length is not announced.
        allow_private_addresses: Whether documents may name hosts at loopback and private
            addresses. The host of `url` may be at one from the start.
        credentials: What is sent to the origin of `url`, and to no other; without any, what the
            netrc file has for its host.
        callbacks: Where hubs reach us, for WebSub; any number of subscribers may share them.
        mqtt: How one hears of changes through MQTT brokers.
        hubs: How many ways to hear of changes are kept up at once, of the best that work.
        on_event: Called, on the event loop, when the state changes (`rsnotify_subscriber.events`).
        shared: What it shares with other subscribers of the process (`Fleet.shared`); then
            `per_host` is how many requests it makes at a time.

    Raises:
        ConfigurationError: `selection` or `prefer` can never match, WebSub is wanted without
            callbacks, `hubs` is less than 1, the state of a `FolderMirror` is not in a folder,
            or an argument has a wrong type.
    """

    def __init__(
        self,
        url: str,
        handler: Handler | TransactionalHandler | Callable[[Received], Awaitable[None]],
        *,
        state: str | os.PathLike[str] | StateLocation,
        via: Via = Via.AUTO,
        pace: Pace | None = None,
        selection: Selection | None = None,
        on_committed: Callable[[Sequence[Change]], None] | None = None,
        prefer: str | Sequence[str] = (),
        exact: bool = False,
        patches: Mapping[str, Patch] | None = None,
        per_host: int = PER_HOST,
        largest: int = MOST_CONTENT_BYTES,
        allow_private_addresses: bool = False,
        credentials: Credentials = NO_CREDENTIALS,
        callbacks: Callbacks | None = None,
        mqtt: MqttOptions = DEFAULT_MQTT,
        hubs: int = 1,
        on_event: Callable[[Event], None] | None = None,
        shared: SubscriberPool | None = None,
    ) -> None:
        require("url", url, str, "the URL of a Source as a str")
        require("state", state, str | os.PathLike | StateLocation, "the path of a folder")
        require("hubs", hubs, int, "a number")
        require("per_host", per_host, int, "a number")
        require("largest", largest, int, "a number of bytes")
        require("callbacks", callbacks, Callbacks | None, "Callbacks")
        require("mqtt", mqtt, MqttOptions, "a Brokered")
        require("credentials", credentials, Credentials, "Credentials")
        require("shared", shared, SubscriberPool | None, "what Fleet.shared returns")
        require("patches", patches, Mapping | None, "a dict from media types to functions")
        require("prefer", prefer, str | Sequence, "a media type, or a list of media types")
        require_function("on_committed", on_committed)
        require_function("on_event", on_event)
        self._url = without_login(url)
        self._handler = as_handler(handler)
        # A path is a Place too, as it has `open`.
        self._place = Path(state).absolute() if isinstance(state, str | os.PathLike) else state
        if isinstance(handler, FolderMirror) and not isinstance(self._place, Path):
            # Only a lock that ends with the process keeps a suspended one from writing files.
            raise ConfigurationError("the state of a mirror is kept in a folder; name one")
        self._via = via = _via(via)
        mqtt.check()
        if via is Via.WEBSUB and callbacks is None:
            raise ConfigurationError("WebSub needs a callback URL at which hubs reach us")
        if hubs < 1:
            raise ConfigurationError(f"{hubs} hubs at once bring nothing; name 1 or more")
        self._hubs = hubs
        self._announce = Announcer(on_event)
        self._pace = Pace() if pace is None else pace
        require_struct("pace", self._pace, Pace)
        self._selection = Selection() if selection is None else selection
        require_struct("selection", self._selection, Selection)
        self._selection.check()
        self._on_committed = on_committed
        prefer = (prefer,) if isinstance(prefer, str) else tuple(prefer)
        for one in prefer:
            if not is_media_type(one) or "*" in one:
                raise ConfigurationError(f"{one!r} is no media type; write it as text/turtle")
        self._wishes = ContentPreferences(prefer, exact, patches or {})
        self._largest = largest
        self._shared = shared
        self._sessions = Sessions(
            url,
            credentials=credentials,
            allow_private_addresses=allow_private_addresses,
            per_host=per_host,
            shared=shared.connections if shared is not None else None,
        )
        self._ways = Transports(via, self._sessions, callbacks, mqtt, asked_by(self._selection))
        self._stopping = asyncio.Event()
        self._moved = asyncio.Event()
        self._over = False
        self._following: Following | None = None
        self._followed: Following | None = None
        self._last = Status()
        self._task: asyncio.Task[None] | None = None

    @property
    def status(self) -> Status:
        """How it is going, or how it was at the end of the last run."""
        return self._following.status if self._following else self._last

    @property
    def in_handler(self) -> list[str]:
        """The Source, while its handler has been called and has not returned; else nothing."""
        followed = self._followed  # its handler may hang even when it is not waited for any more
        return [shown(self._url)] if followed and followed.is_in_handler else []

    async def until(self, condition: Callable[[Status], bool]) -> bool:
        """Wait until the status is such, as `until(lambda status: status.level)`.

        Returns:
            Whether it is; False if the subscriber ended before.
        """
        while not condition(self.status):
            if self._over:
                return False
            await self._moved.wait()
        return True

    def _tell(self) -> None:
        self._moved.set()  # who waits is woken, who comes later waits for the next time
        self._moved.clear()
        if self._shared is not None:
            self._shared.tell()

    async def run(self) -> None:
        """Follow until `stop` is called.

        A disk that is full, or fails to read or write, ends nothing: after a while everything is
        opened again, and goes on from what was committed.

        Raises:
            RsnotifyError: It cannot begin, or cannot go on.
        """
        failures = 0
        with self._under_way():
            while True:
                begun = monotonic()
                try:
                    return await self._run(once=False)
                except RsnotifyError as error:
                    if not is_disk_fault(error):
                        raise
                    logger.warning("waiting for the disk: %s", error)
                failures = 1 if monotonic() - begun > self._pace.retry.most else failures + 1
                with suppress(TimeoutError):
                    async with asyncio.timeout(self._pace.retry.delay(failures, Random())):
                        await self._stopping.wait()
                        return None

    async def catch_up(self) -> None:
        """Follow until level with the Source's lists.

        Raises:
            RsnotifyError: It could not become level; the error names what could not be had.
        """
        with self._under_way():
            await self._run(once=True)

    def stop(self) -> None:
        """Let `run` or `catch_up` end in order: what is being committed is committed."""
        self._stopping.set()
        if self._following is not None:
            self._following.stop()

    async def __aenter__(self) -> Subscriber:
        self._task = asyncio.create_task(self.run())
        return self

    async def __aexit__(self, *_: object) -> None:
        self.stop()
        if self._task is not None:
            await self._task

    @contextmanager
    def _under_way(self) -> Iterator[None]:
        self._over = False
        self._last = Status()
        try:
            yield
        finally:
            self._over = True
            self._tell()

    async def _run(self, *, once: bool) -> None:
        with self._working() as worker:
            async with opened(self._place, worker) as state, self._sessions:
                await self._run_with(state, worker, once=once)

    def _working(self) -> Executor:
        """Return what does all that blocks on the disk, one thing after another."""
        return self._shared.worker() if self._shared else ThreadPoolExecutor(1, "rsnotify-state")

    async def _run_with(self, state: DestinationState, worker: Executor, *, once: bool) -> None:
        incoming = await asyncio.get_running_loop().run_in_executor(worker, state.incoming)
        kept = self._shared.kept if self._shared is not None else None
        fetcher = Fetcher(self._sessions, incoming, self._largest, kept, self._pace.rate)
        failure = ""
        try:
            await self._identify_and_follow(state, fetcher, incoming, worker, once=once)
        except RsnotifyError as error:
            failure = str(error)
            raise
        finally:
            last = self.status
            if failure:
                last = msgspec.structs.replace(last, level=False, error=failure)
            self._last = last
            self._following = None
            self._tell()

    async def _identify_and_follow(
        self,
        state: DestinationState,
        fetcher: Fetcher,
        incoming: Path,
        worker: Executor,
        *,
        once: bool,
    ) -> None:
        loop = asyncio.get_running_loop()
        known = await loop.run_in_executor(worker, state.identity)
        memory = known.memory if known is not None else None
        offers = OfferDiscovery(DescriptionReader(fetcher, memory), self._url)
        identifying = SourceIdentification(
            self._url, self._place, offers, self._stopping, self._waiting
        )
        identity = await identifying.identify(known, patient=not once)
        if identity is None:
            return
        await loop.run_in_executor(worker, check_there, self._handler, state)
        self._prepare(identity, incoming)
        await loop.run_in_executor(worker, check_held, self._handler, state, identity)
        place = self._handler.place if isinstance(self._handler, LocatedHandler) else ""
        identity = msgspec.structs.replace(
            identity, selection=self._selection, prefer=self._wishes.prefer, place=place
        )
        if identity != known:
            await loop.run_in_executor(worker, state.keep_identity, identity)
        checked = identifying.checked
        await self._follow(identity, state, fetcher, offers, worker, checked=checked, once=once)

    def _prepare(self, identity: Identity, incoming: Path) -> None:
        if isinstance(self._handler, PreparedHandler):
            folder = self._place if isinstance(self._place, Path) else incoming
            self._handler.prepare(identity.base, folder)

    async def _follow(
        self,
        identity: Identity,
        state: DestinationState,
        fetcher: Fetcher,
        offers: OfferDiscovery,
        worker: Executor,
        *,
        checked: bool,
        once: bool,
    ) -> None:
        if self._via in NAMES and not self._ways.to_changes(identity.offer):
            wanted = NAMES[self._via]
            raise ConfigurationError(f"{shown(self._url)} offers no hub that speaks {wanted}")
        self._following = self._followed = Following(
            identity,
            state,
            fetcher,
            offers,
            self._handler,
            self._pace,
            self._ways,
            worker,
            self._tell,
            most=self._hubs,
            announce=self._announce,
            checked=checked,
            once=once,
            on_committed=self._on_committed,
            wishes=self._wishes,
        )
        if self._stopping.is_set():
            return
        watch = PresenceCheck(self._handler, worker)
        watching = asyncio.create_task(watch.run(self._following.stop))
        try:
            await self._following.run()
            await watch.check()
        finally:
            watching.cancel()

    def _waiting(self, reason: str) -> None:
        self._last = Status(error=reason)
        self._tell()


def _via(via: str) -> Via:
    try:
        return Via(via)
    except ValueError:
        raise ConfigurationError(f"via is {via!r}; give one of {', '.join(Via)}") from None
