"""Makes a fleet follow the Sources of a configuration file, and applies changes of the file.

`ConfigurationWatcher` rereads the file when it changes, and `FleetReloader` then restarts only the
Sources that changed. A Source whose state is in a database is followed by the process that holds
its lease.
"""

from __future__ import annotations

import asyncio
import logging
from collections import defaultdict
from collections.abc import AsyncIterator, Callable, Iterable, Iterator
from contextlib import asynccontextmanager
from time import monotonic

from rsnotify.errors import ConfigurationError, RsnotifyError
from rsnotify.runtime.settings import FileWatch
from rsnotify.runtime.tasks import cancel, first_completed, wait_for_event
from rsnotify_subscriber.fleet.configuration import FleetConfiguration, FollowedSource
from rsnotify_subscriber.fleet.fleet import Fleet, FollowedSourceStatus
from rsnotify_subscriber.fleet.leases import RENEWAL_INTERVAL
from rsnotify_subscriber.fleet.shared_database import SharedDatabase, schema_of
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
        busy = {schema_of(source) for title, source, _ in followed if title not in over}
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
            schema = schema_of(source)
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
            schema = schema_of(source)
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
