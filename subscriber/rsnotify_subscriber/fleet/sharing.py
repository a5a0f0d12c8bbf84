"""Follows the Sources of a configuration file, and shares some of them with other processes.

`ConfigurationWatcher` rereads the file when it changes, and `FleetReloader` then restarts only the
Sources that changed. A Source whose state is in a database is followed by the process that holds
its lease.

The leases of all Sources in one database are renewed together. A process that cannot renew them
follows no Source, and reports all as failing. Every process reports the Sources that nobody
follows.
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
from rsnotify_subscriber.events import Status
from rsnotify_subscriber.fleet.configuration import SCHEMA, FleetConfiguration, FollowedSource
from rsnotify_subscriber.fleet.fleet import Fleet, FollowedSourceStatus, Phase
from rsnotify_subscriber.fleet.leases import BEAT, HOLD, FleetShare
from rsnotify_subscriber.storage.state_database import StateLocation
from rsnotify_subscriber.subscriber import Subscriber

logger = logging.getLogger("rsnotify.subscriber.fleet")

#: Seconds between two renewals while the Sources are ending, so that others follow them soon.
_ENDING_BEAT = 0.3
#: Maximum number of leases handed over in one transaction, which must not take long.
_AT_ONCE = 1_000
#: Seconds for which handlers are created before the leases are renewed again.
_BUILD_PATIENCE = 1.0
#: Seconds that a database may take to release the leases at the end.
_RELEASE_PATIENCE = 3.0
#: Seconds that a Source may take to end before the next change of the file is applied.
_LEAVE_PATIENCE = 30.0


class SharedDatabase:
    """The leases and connections for the Sources of one database.

    Attributes:
        sources: The listed Sources, by the schemas of their states.
        share: The leases.
        wake: Set when there is work before the next renewal.
    """

    def __init__(self, conninfo: str, *, shares: bool) -> None:
        try:
            from rsnotify_subscriber.fleet.lease_tables import PostgreSQLLeases
            from rsnotify_subscriber.storage.postgresql import StatePool
        except ImportError:
            raise missing_package("a state in PostgreSQL", "postgresql") from None
        # Unlike a process number, it is never reused.
        session = f"rsnotify {token_hex(8)}"
        self._pool = StatePool(conninfo, session)
        self._table = PostgreSQLLeases(conninfo, f"{gethostname()}:{os.getpid()}", session)
        self._worker = ThreadPoolExecutor(1, "rsnotify-leases")
        self._error = ""
        self.share = FleetShare(self._table, shares=shares)
        self.sources: dict[str, FollowedSource] = {}
        self.wake = asyncio.Event()

    def location(self, source: FollowedSource) -> StateLocation:
        from rsnotify_subscriber.storage.postgresql import LeasedState

        return LeasedState(self._pool, schema_of(source), self.share)

    @property
    def seconds_left(self) -> float:
        """Seconds until the leases must be checked again if they are not renewed."""
        left = self.share.seconds_left
        return left if left > 0 else HOLD

    def fences(self) -> dict[str, int]:
        """Return the fence of each Source that this process should follow, by its schema."""
        share = self.share
        if not share.is_valid:
            return {}
        requested = set(share.requested)
        return {schema: one for schema, one in share.held.items() if schema not in requested}

    def unleased(self, wrong: Mapping[str, str]) -> dict[str, FollowedSourceStatus]:
        """Return the statuses of Sources that no other process follows.

        They apply to Sources that are not in the fleet. `wrong` has the reasons why some Sources
        cannot be followed here, by name.
        """
        share, is_valid = self.share, self.share.is_valid
        found = {}
        for schema, source in self.sources.items():
            if is_valid and schema in share.leases and schema not in share.held:
                continue  # another process follows it
            error = wrong.get(source.title)
            if not is_valid and self._error:
                error = f"its lease is not renewed: {self._error}"
            phase = Phase.WAITING if error is None else Phase.FAILED
            found[source.title] = FollowedSourceStatus(phase, Status(), error, source.url)
        return found

    def submit(self, work: Callable[..., None], *arguments: object) -> asyncio.Future[None]:
        return asyncio.get_running_loop().run_in_executor(self._worker, work, *arguments)

    def renew(self, ended: Collection[str] = ()) -> None:
        """Hand over some leases, renew the others, and log a repeated error only once."""
        try:
            self.share.hand_over(ended)
            self.share.beat()
            self._error = ""
        except RsnotifyError as error:
            if str(error) != self._error:
                logger.warning("leases are not renewed: %s", error)
            self._error = str(error)
        except Exception as error:
            logger.exception("leases are not renewed")
            self._error = f"{type(error).__name__}: {error}"

    async def end(self, *, leave: bool) -> None:
        """Close all connections. With `leave`, release the leases for others to follow at once."""
        ending = self.submit(self._end, leave)
        self._worker.shutdown(wait=False)
        await asyncio.wait({ending}, timeout=_RELEASE_PATIENCE)

    def _end(self, leave: bool) -> None:
        try:
            if leave:
                self.share.leave()
        except RsnotifyError as error:
            logger.warning("leases were not released, and end in some seconds: %s", error)
        self._table.close()
        self._pool.close()


def schema_of(source: FollowedSource) -> str:
    return source.schema or SCHEMA


def configuration_change(
    before: Iterable[FollowedSource], now: Iterable[FollowedSource]
) -> tuple[list[str], list[FollowedSource]]:
    """Return the names of removed or changed Sources, and the new or changed Sources."""
    old = {source.title: source for source in before}
    new = {source.title: source for source in now}
    return (
        [name for name, source in old.items() if new.get(name) != source],
        [source for name, source in new.items() if old.get(name) != source],
    )


class FleetReloader:
    """Makes a fleet follow the Sources of a configuration.

    Sources whose states are in folders are followed without a lease. Those whose states are in a
    database are shared, and followed while this process holds their leases.

    `build` returns the subscriber of a Source, with its state in a folder or at a location. With
    `once`, the fleet only catches up: it has all Sources, acquires each free lease, and reports the
    others as followed by another process.
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
        #: The settings of each shared Source in the fleet, and the fence of its lease, by name.
        self._followed: dict[str, tuple[FollowedSource, int]] = {}
        #: The shared Sources being removed from the fleet, by name.
        self._ending: dict[str, asyncio.Task[None]] = {}
        #: The other Sources being removed from the fleet.
        self._leaving: set[asyncio.Task[None]] = set()
        #: Subscribers that were built to check their settings, and have not been used yet.
        self._prepared: dict[str, Subscriber] = {}
        #: The reasons why Sources with a lease cannot be followed here, by name.
        self._wrong: dict[str, str] = {}
        #: The tasks that renew leases, or None while leases are not being shared.
        self._tasks: dict[str, asyncio.Task[None]] | None = None
        for name, subscriber in self._built(configuration, _own(configuration)).items():
            fleet.add(name, subscriber)
        self._assign(self._built(configuration, _shared(configuration)))
        fleet.elsewhere = self._elsewhere
        if not once:
            fleet.unleased = self._unleased

    async def apply(self, configuration: FleetConfiguration) -> None:
        """Follow the Sources of another configuration, without restarting unchanged ones.

        If a setting cannot work, nothing changes.
        """
        before = self.configuration
        _, shared = configuration_change(_shared(before), _shared(configuration))
        gone, new = configuration_change(_own(before), _own(configuration))
        # Modules may take a while to import, and certificates to read.
        prepared = await asyncio.to_thread(self._built, configuration, shared)
        built = await asyncio.to_thread(self._built, configuration, new)
        self.configuration = configuration
        names = dict.fromkeys((*built, *gone))
        await asyncio.gather(*(self._replace(name, built.get(name)) for name in names))
        if gone or new:
            logger.info("%d Sources are new or changed, %d gone", len(built), len(gone))
        if (before.limits, before.websub) != (configuration.limits, configuration.websub):
            logger.warning("[limits] and [websub] are read only when the command starts")
        self._assign(prepared)
        if shared:
            logger.info("%d shared Sources are new or changed", len(shared))

    async def _replace(self, name: str, subscriber: Subscriber | None) -> None:
        if name in self._fleet and name in self._followed:
            await self._end(name, self._database(self._followed[name][0]))
        elif name in self._fleet:
            await self._remove(name)
        if subscriber is not None:
            self._fleet.add(name, subscriber)

    async def _remove(self, name: str) -> None:
        """Remove a Source, without blocking the others if its handler does not return."""
        leaving = asyncio.create_task(self._fleet.remove(name))
        self._leaving.add(leaving)
        leaving.add_done_callback(self._leaving.discard)
        if not (await asyncio.wait({leaving}, timeout=_LEAVE_PATIENCE))[0]:
            logger.warning("%s has not ended yet, and its state is still in use", name)

    def _built(
        self, configuration: FleetConfiguration, sources: Iterable[FollowedSource]
    ) -> dict[str, Subscriber]:
        return {source.title: self._subscriber(configuration, source) for source in sources}

    def _subscriber(self, configuration: FleetConfiguration, source: FollowedSource) -> Subscriber:
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
        """Share the Sources of the configuration."""
        listed: dict[str, dict[str, FollowedSource]] = defaultdict(dict)
        for source in _shared(self.configuration):
            assert source.postgresql is not None
            listed[source.postgresql][schema_of(source)] = source
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
            self._begin(self._tasks)

    def _unleased(self) -> dict[str, FollowedSourceStatus]:
        return {
            name: status
            for database in self._databases.values()
            for name, status in database.unleased(self._wrong).items()
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
        """Renew the leases and follow accordingly. Release the leases when the context ends."""
        tasks = self._tasks = {}
        self._begin(tasks)
        # Keep the leases after an error, because a handler may still be running.
        leave = False
        try:
            yield
            leave = True
        finally:
            self._tasks = None
            await cancel(tasks.values())
            for database in self._databases.values():
                await database.end(leave=leave)

    def _begin(self, tasks: dict[str, asyncio.Task[None]]) -> None:
        for conninfo, database in self._databases.items():
            if conninfo not in tasks:
                tasks[conninfo] = asyncio.create_task(self._keep(database))

    async def _keep(self, database: SharedDatabase) -> None:
        while True:
            if self._fleet.is_stopping:
                database.share.stop_sharing()
            database.wake.clear()
            ended = self._ended(database)
            work = database.submit(database.renew, ended[:_AT_ONCE])
            if ended[_AT_ONCE:]:
                database.wake.set()
            while not (await asyncio.wait({work}, timeout=database.seconds_left))[0]:
                await self._reconcile(database)  # the leases have expired
            await self._reconcile(database)
            pause = _ENDING_BEAT if self._fleet.is_stopping else BEAT
            await wait_for_event(database.wake, min(pause, database.seconds_left))

    def _ended(self, database: SharedDatabase) -> list[str]:
        """Return the schemas of Sources that others should follow and that have ended here."""
        share = database.share
        leaving = {*share.requested, *share.superfluous} & share.held.keys()
        if not leaving or self._once:
            return []
        over = self._fleet.ended
        followed = self._followed_in(database)
        busy = {schema_of(source) for title, source, _ in followed if title not in over}
        return sorted(leaving - busy)

    def _followed_in(self, database: SharedDatabase) -> Iterator[tuple[str, FollowedSource, int]]:
        for title, (source, fence) in self._followed.items():
            if self._database(source) is database:
                yield title, source, fence

    async def _reconcile(self, database: SharedDatabase) -> None:
        """Follow the Sources with a valid lease, and no others."""
        self._fleet.shared.wake()
        if self._once or self._fleet.is_stopping:
            return
        fences = database.fences()
        for title, source, fence in self._followed_in(database):
            schema = schema_of(source)
            if database.sources.get(schema) != source or fences.get(schema) != fence:
                self._end(title, database)
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
        prepared |= await asyncio.to_thread(self._prepare_sound, self.configuration, missing)
        fences = database.fences()
        for source in new:
            schema = schema_of(source)
            # The configuration or the leases may have changed in the meantime.
            is_current = database.sources.get(schema) == source and schema in fences
            if is_current and source.title in prepared:
                if source.title not in self._fleet and not self._fleet.is_stopping:
                    self._followed[source.title] = source, fences[schema]
                    self._fleet.add(source.title, prepared[source.title])
            elif source.title not in self._wrong:
                database.wake.set()  # continue with the next ones after renewing the leases

    def _prepare_sound(
        self, configuration: FleetConfiguration, sources: list[FollowedSource]
    ) -> dict[str, Subscriber]:
        """Return the subscribers of Sources with working handlers. Stop early if it takes long."""
        prepared: dict[str, Subscriber] = {}
        began = monotonic()
        for source in sources:
            if monotonic() - began > _BUILD_PATIENCE:
                break
            try:
                prepared[source.title] = self._subscriber(configuration, source)
                self._wrong.pop(source.title, None)
            except Exception as error:
                # The handler is the user's code, and other Sources still need their leases renewed.
                unexpected = not isinstance(error, RsnotifyError)
                if self._wrong.get(source.title) != str(error):
                    logger.error("%s: %s", source.title, error, exc_info=unexpected)
                self._wrong[source.title] = str(error)
        return prepared

    def _end(self, title: str, database: SharedDatabase) -> asyncio.Task[None]:
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
    """Rereads the configuration when its files change, or on request."""

    def __init__(self, reloader: FleetReloader, load: Callable[[], FleetConfiguration]) -> None:
        self._reloader = reloader
        self._load = load
        self._requested = asyncio.Event()
        self._files = FileWatch(reloader.configuration.files)

    def reload(self) -> None:
        """Read the configuration soon, whether or not a file has changed."""
        self._requested.set()

    async def run(self) -> None:
        while True:
            async with first_completed(self._requested.wait(), self._files.changed()):
                self._requested.clear()
            try:
                await self._reloader.apply(await asyncio.to_thread(self._load))
            except ConfigurationError as error:
                logger.error("nothing was changed: %s", error)
            except Exception:
                logger.exception("nothing was changed")
            self._files.watch(self._reloader.configuration.files)
