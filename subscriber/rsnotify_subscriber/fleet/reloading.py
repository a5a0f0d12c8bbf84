"""Makes a fleet follow the Sources of a configuration file, and applies changes of the file.

`ConfigurationWatcher` rereads the file when it changes, and `FleetReloader` then restarts only the
Sources that changed. A Source whose state is in a `SharedDatabase` is followed by the process that
holds its lease.
"""

from __future__ import annotations

import asyncio
import logging
import os
from collections import defaultdict
from collections.abc import AsyncIterator, Callable, Collection, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from secrets import token_hex
from socket import gethostname
from time import monotonic

from rsnotify.errors import ConfigurationError, RsnotifyError
from rsnotify.runtime.extensions import missing_package
from rsnotify.runtime.settings import FileWatch
from rsnotify.runtime.tasks import cancel, first_completed, wait_for_event
from rsnotify_subscriber.fleet.configuration import (
    DEFAULT_SCHEMA,
    FleetConfiguration,
    FollowedSource,
)
from rsnotify_subscriber.fleet.fleet import Fleet, FollowedSourceStatus, Phase
from rsnotify_subscriber.fleet.leases import RENEWAL_INTERVAL, RENEWAL_VALIDITY, FleetShare
from rsnotify_subscriber.status import Status
from rsnotify_subscriber.storage.state_database import StateLocation
from rsnotify_subscriber.subscriber import Subscriber

logger = logging.getLogger("rsnotify.subscriber.fleet")

#: Seconds between renewals while the Sources are ending, so that others can follow them soon.
_ENDING_RENEWAL_INTERVAL = 0.3
#: Maximum number of leases to hand over in one transaction, so that it does not take long.
_MAX_HANDED_OVER = 1_000
#: Seconds for creating handlers before the leases are renewed again.
_BUILD_TIME = 1.0
#: Seconds for a Source to end before the next change of the file is applied.
_REMOVE_TIMEOUT = 30.0
#: Seconds for a database to release the leases at the end.
_RELEASE_TIMEOUT = 3.0


def configuration_change(
    before: Iterable[FollowedSource], now: Iterable[FollowedSource]
) -> tuple[list[str], list[FollowedSource]]:
    """Return the names of the removed or changed Sources, and the new or changed Sources."""
    old = {source.title: source for source in before}
    new = {source.title: source for source in now}
    return (
        [name for name, source in old.items() if new.get(name) != source],
        [source for name, source in new.items() if old.get(name) != source],
    )


class SharedDatabase:
    """The connections to a database with the states of Sources, and this process's leases there.

    The leases of all these Sources are renewed together. A process that cannot renew them follows
    none of the Sources, and reports them as failing. Every process reports the Sources that no
    process follows.

    Attributes:
        sources: The listed Sources, by the schemas of their states.
        share: The leases.
        wake: Set when there is work to do before the next renewal.
    """

    def __init__(self, conninfo: str, *, shares: bool) -> None:
        try:
            from rsnotify_subscriber.fleet.lease_tables import PostgreSQLLeases
            from rsnotify_subscriber.storage.postgresql import StatePool
        except ImportError:
            raise missing_package("a state in PostgreSQL", "postgresql") from None
        session = f"rsnotify {token_hex(8)}"  # unlike a process number, never reused
        self._pool = StatePool(conninfo, session)
        self._table = PostgreSQLLeases(conninfo, f"{gethostname()}:{os.getpid()}", session)
        self._worker = ThreadPoolExecutor(1, "rsnotify-leases")
        self._error = ""
        self.share = FleetShare(self._table, shares=shares)
        self.sources: dict[str, FollowedSource] = {}
        self.wake = asyncio.Event()

    def location(self, source: FollowedSource) -> StateLocation:
        from rsnotify_subscriber.storage.postgresql import LeasedState

        return LeasedState(self._pool, _schema_of(source), self.share)

    @property
    def seconds_left(self) -> float:
        """Seconds until the leases must be checked again unless they are renewed."""
        left = self.share.seconds_left
        return left if left > 0 else RENEWAL_VALIDITY

    def fences(self) -> dict[str, int]:
        """Return the fence of each Source that this process should follow, by schema."""
        share = self.share
        if not share.is_valid:
            return {}
        requested = set(share.requested)
        return {schema: one for schema, one in share.held.items() if schema not in requested}

    def unleased(self, wrong: Mapping[str, str]) -> dict[str, FollowedSourceStatus]:
        """Return the statuses of the Sources that no other process follows, by name.

        A Source in the fleet has its own status instead. `wrong` maps the names of Sources to the
        reasons why this process cannot follow them.
        """
        share, is_valid = self.share, self.share.is_valid
        found = {}
        for schema, source in self.sources.items():
            if is_valid and schema in share.leases and schema not in share.held:
                continue  # another process follows it
            error = wrong.get(source.title)
            if not is_valid and self._error:
                error = f"its lease cannot be renewed: {self._error}"
            phase = Phase.WAITING if error is None else Phase.FAILED
            found[source.title] = FollowedSourceStatus(phase, Status(), error, source.url)
        return found

    def submit(self, work: Callable[..., None], *arguments: object) -> asyncio.Future[None]:
        return asyncio.get_running_loop().run_in_executor(self._worker, work, *arguments)

    def renew(self, ended: Collection[str] = ()) -> None:
        """Hand over the ended leases, and renew the others. A repeated error is logged once."""
        try:
            self.share.hand_over(ended)
            self.share.beat()
            self._error = ""
        except RsnotifyError as error:
            if str(error) != self._error:
                logger.warning("cannot renew leases: %s", error)
            self._error = str(error)
        except Exception as error:
            logger.exception("cannot renew leases")
            self._error = f"{type(error).__name__}: {error}"

    async def end(self, *, leave: bool) -> None:
        """Close all connections. With `leave`, release the leases first."""
        ending = self.submit(self._end, leave)
        self._worker.shutdown(wait=False)
        await asyncio.wait({ending}, timeout=_RELEASE_TIMEOUT)

    def _end(self, leave: bool) -> None:
        try:
            if leave:
                self.share.leave()
        except RsnotifyError as error:
            logger.warning("cannot release leases, which end in a few seconds: %s", error)
        self._table.close()
        self._pool.close()


def _schema_of(source: FollowedSource) -> str:
    return source.schema or DEFAULT_SCHEMA


class FleetReloader:
    """Makes a fleet follow the Sources of a configuration.

    Sources whose states are in folders are followed without leases. Sources whose states are in a
    database are shared: this process follows them while it holds their leases.

    Args:
        fleet: The fleet.
        build: Returns the subscriber of a Source, with its state in a folder or at a location.
        configuration: The Sources to follow first.
        once: Whether to only catch up: the fleet gets all Sources and acquires every free lease.
            The other Sources count as followed by another process.
    """

    def __init__(
        self,
        fleet: Fleet,
        build: Callable[..., Subscriber],
        configuration: FleetConfiguration,
        *,
        once: bool = False,
    ) -> None:
        self._fleet = fleet
        self._build = build
        self.configuration = configuration
        self._once = once
        self._databases: dict[str, SharedDatabase] = {}
        #: The shared Sources in the fleet: their settings and the fences of their leases, by name.
        self._followed: dict[str, tuple[FollowedSource, int]] = {}
        #: The shared Sources that are being removed from the fleet, by name.
        self._ending: dict[str, asyncio.Task[None]] = {}
        #: The other Sources that are being removed from the fleet.
        self._leaving: set[asyncio.Task[None]] = set()
        #: Unused subscribers, which were built to check their settings.
        self._prepared: dict[str, Subscriber] = {}
        #: Why leased Sources cannot be followed by this process, by name.
        self._errors: dict[str, str] = {}
        #: The tasks that renew leases, or None outside of `sharing`.
        self._tasks: dict[str, asyncio.Task[None]] | None = None
        for name, subscriber in self._build_subscribers(configuration, _own(configuration)).items():
            fleet.add(name, subscriber)
        self._assign(self._build_subscribers(configuration, _shared(configuration)))
        fleet.elsewhere = self._elsewhere
        if not once:
            fleet.unleased = self._unleased

    async def apply(self, configuration: FleetConfiguration) -> None:
        """Follow the Sources of another configuration, without restarting unchanged ones.

        If this raises an error, nothing has changed.
        """
        before = self.configuration
        _, shared = configuration_change(_shared(before), _shared(configuration))
        gone, new = configuration_change(_own(before), _own(configuration))
        # Modules may take a while to import, and certificates to read.
        prepared = await asyncio.to_thread(self._build_subscribers, configuration, shared)
        built = await asyncio.to_thread(self._build_subscribers, configuration, new)
        self.configuration = configuration
        names = dict.fromkeys((*built, *gone))
        await asyncio.gather(*(self._replace(name, built.get(name)) for name in names))
        if gone or new:
            removed = set(gone) - built.keys()
            logger.info("%d Sources are new or changed, %d removed", len(built), len(removed))
        if (before.limits, before.websub) != (configuration.limits, configuration.websub):
            logger.warning("[limits] and [websub] are read only when the command starts")
        self._assign(prepared)
        if shared:
            logger.info("%d shared Sources are new or changed", len(shared))

    async def _replace(self, name: str, subscriber: Subscriber | None) -> None:
        if name in self._fleet and name in self._followed:
            await self._end_following(name, self._database(self._followed[name][0]))
        elif name in self._fleet:
            await self._remove(name)
        if subscriber is not None:
            self._fleet.add(name, subscriber)

    async def _remove(self, name: str) -> None:
        """Remove a Source. Do not block the others if its handler does not return."""
        leaving = asyncio.create_task(self._fleet.remove(name))
        self._leaving.add(leaving)
        leaving.add_done_callback(self._leaving.discard)
        if not (await asyncio.wait({leaving}, timeout=_REMOVE_TIMEOUT))[0]:
            logger.warning("%s has not ended yet; its state is still in use", name)

    def _build_subscribers(
        self, configuration: FleetConfiguration, sources: Iterable[FollowedSource]
    ) -> dict[str, Subscriber]:
        return {source.title: self._build_subscriber(configuration, source) for source in sources}

    def _build_subscriber(
        self, configuration: FleetConfiguration, source: FollowedSource
    ) -> Subscriber:
        if source.postgresql is None:
            return self._build(configuration, source)
        return self._build(configuration, source, location=self._database(source).location(source))

    def _database(self, source: FollowedSource) -> SharedDatabase:
        assert source.postgresql is not None, "the state of a shared Source is in a database"
        if source.postgresql not in self._databases:
            found = SharedDatabase(source.postgresql, shares=not self._once)
            self._databases[source.postgresql] = found
        return self._databases[source.postgresql]

    def _assign(self, prepared: dict[str, Subscriber]) -> None:
        """Assign the shared Sources of the configuration to their databases."""
        listed: dict[str, dict[str, FollowedSource]] = defaultdict(dict)
        for source in _shared(self.configuration):
            assert source.postgresql is not None
            listed[source.postgresql][_schema_of(source)] = source
        for conninfo, database in list(self._databases.items()):
            database.sources = listed[conninfo]
            database.share.set_listed(database.sources)
            if self._once:
                database.renew()
            database.wake.set()
        if self._once:
            for title, subscriber in prepared.items():
                self._fleet.add(title, subscriber)
        else:
            self._prepared = prepared
        if self._tasks is not None:
            self._start_renewing(self._tasks)

    def _unleased(self) -> dict[str, FollowedSourceStatus]:
        return {
            name: status
            for database in self._databases.values()
            for name, status in database.unleased(self._errors).items()
        }

    def _elsewhere(self) -> dict[str, str]:
        return {
            source.title: owner
            for database in self._databases.values()
            for schema, source in database.sources.items()
            if schema not in database.share.held
            and (owner := database.share.owner_of(schema)) is not None
        }

    @asynccontextmanager
    async def sharing(self) -> AsyncIterator[None]:
        """Renew leases, and follow the leased Sources, while the context is active.

        Then release the leases, except after an error, because a handler may still be running.
        """
        tasks = self._tasks = {}
        self._start_renewing(tasks)
        leave = False
        try:
            yield
            leave = True
        finally:
            self._tasks = None
            await cancel(tasks.values())
            for database in self._databases.values():
                await database.end(leave=leave)

    def _start_renewing(self, tasks: dict[str, asyncio.Task[None]]) -> None:
        for conninfo, database in self._databases.items():
            if conninfo not in tasks:
                tasks[conninfo] = asyncio.create_task(self._keep_leases(database))

    async def _keep_leases(self, database: SharedDatabase) -> None:
        while True:
            if self._fleet.is_stopping:
                database.share.stop_sharing()
            database.wake.clear()
            ended = self._ended_schemas(database)
            work = database.submit(database.renew, ended[:_MAX_HANDED_OVER])
            if ended[_MAX_HANDED_OVER:]:
                database.wake.set()
            while not (await asyncio.wait({work}, timeout=database.seconds_left))[0]:
                await self._reconcile(database)  # the leases have expired
            await self._reconcile(database)
            pause = _ENDING_RENEWAL_INTERVAL if self._fleet.is_stopping else RENEWAL_INTERVAL
            await wait_for_event(database.wake, min(pause, database.seconds_left))

    def _ended_schemas(self, database: SharedDatabase) -> list[str]:
        """Return the schemas of Sources that have ended here and that others should follow."""
        share = database.share
        leaving = {*share.requested, *share.superfluous} & share.held.keys()
        if not leaving or self._once:
            return []
        over = self._fleet.ended
        followed = self._followed_in(database)
        busy = {_schema_of(source) for title, source, _ in followed if title not in over}
        return sorted(leaving - busy)

    def _followed_in(self, database: SharedDatabase) -> Iterator[tuple[str, FollowedSource, int]]:
        for title, (source, fence) in self._followed.items():
            if self._database(source) is database:
                yield title, source, fence

    async def _reconcile(self, database: SharedDatabase) -> None:
        """Follow exactly the Sources with a valid lease."""
        self._fleet.shared.wake()
        if self._once or self._fleet.is_stopping:
            return
        fences = database.fences()
        for title, source, fence in self._followed_in(database):
            schema = _schema_of(source)
            if database.sources.get(schema) != source or fences.get(schema) != fence:
                self._end_following(title, database)
        new = [
            source
            for schema, source in database.sources.items()
            if schema in fences and source.title not in self._followed
        ]
        if new:
            await self._begin_to_follow(new, database)

    async def _begin_to_follow(self, new: list[FollowedSource], database: SharedDatabase) -> None:
        missing = [one for one in new if one.title not in self._prepared]
        prepared = self._prepared
        self._prepared = {}
        prepared |= await asyncio.to_thread(self._prepare, self.configuration, missing)
        fences = database.fences()
        for source in new:
            schema = _schema_of(source)
            # The configuration or the leases may have changed in the meantime.
            is_current = database.sources.get(schema) == source and schema in fences
            if is_current and source.title in prepared:
                if source.title not in self._fleet and not self._fleet.is_stopping:
                    self._followed[source.title] = source, fences[schema]
                    self._fleet.add(source.title, prepared[source.title])
            elif source.title not in self._errors:
                database.wake.set()  # continue after renewing the leases

    def _prepare(
        self, configuration: FleetConfiguration, sources: list[FollowedSource]
    ) -> dict[str, Subscriber]:
        """Build the subscribers of Sources with working handlers, for at most `_BUILD_TIME`."""
        prepared: dict[str, Subscriber] = {}
        began = monotonic()
        for source in sources:
            if monotonic() - began > _BUILD_TIME:
                break
            try:
                prepared[source.title] = self._build_subscriber(configuration, source)
                self._errors.pop(source.title, None)
            except Exception as error:
                # An error in the user's handler must not stop the renewal of other leases.
                unexpected = not isinstance(error, RsnotifyError)
                if self._errors.get(source.title) != str(error):
                    logger.error("%s: %s", source.title, error, exc_info=unexpected)
                self._errors[source.title] = str(error)
        return prepared

    def _end_following(self, title: str, database: SharedDatabase) -> asyncio.Task[None]:
        async def end() -> None:
            await self._fleet.remove(title)
            del self._followed[title], self._ending[title]
            database.wake.set()

        if title not in self._ending:
            self._ending[title] = asyncio.create_task(end())
        return self._ending[title]


def _own(configuration: FleetConfiguration) -> list[FollowedSource]:
    return [one for one in configuration.sources if one.postgresql is None]


def _shared(configuration: FleetConfiguration) -> list[FollowedSource]:
    return [one for one in configuration.sources if one.postgresql is not None]


class ConfigurationWatcher:
    """Applies the configuration again when its files change, or on request."""

    def __init__(self, reloader: FleetReloader, load: Callable[[], FleetConfiguration]) -> None:
        self._reloader = reloader
        self._load = load
        self._requested = asyncio.Event()
        self._files = FileWatch(reloader.configuration.files)

    def reload(self) -> None:
        """Make `run` reread the configuration, whether or not a file has changed."""
        self._requested.set()

    async def run(self) -> None:
        while True:
            async with first_completed(self._requested.wait(), self._files.changed()):
                self._requested.clear()
            try:
                await self._reloader.apply(await asyncio.to_thread(self._load))
            except ConfigurationError as error:
                logger.error("the configuration is unchanged: %s", error)
            except Exception:
                logger.exception("the configuration is unchanged")
            self._files.watch(self._reloader.configuration.files)
