"""Applying changes of its file to a fleet; only the Sources that changed are restarted."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable

from rsnotify.errors import ConfigurationError
from rsnotify.runtime.config.files import FileWatch
from rsnotify.runtime.tasks import first_completed
from rsnotify_subscriber.fleet.configuration import FleetConfiguration, FollowedSource
from rsnotify_subscriber.fleet.fleet import Fleet
from rsnotify_subscriber.subscriber import Subscriber

logger = logging.getLogger("rsnotify.subscriber.fleet")

#: The seconds that a Source may take to end, before the next change of the file is applied.
_LEAVE_PATIENCE = 30.0


def configuration_change(
    before: Iterable[FollowedSource], now: Iterable[FollowedSource]
) -> tuple[list[str], list[FollowedSource]]:
    """Return the names of Sources that are gone or changed, and the new and changed Sources."""
    old = {source.title: source for source in before}
    new = {source.title: source for source in now}
    return (
        [name for name, source in old.items() if new.get(name) != source],
        [source for name, source in new.items() if old.get(name) != source],
    )


class FleetReloader:
    """Makes a fleet follow the Sources of a configuration."""

    def __init__(
        self,
        fleet: Fleet,
        build: Callable[[FleetConfiguration, FollowedSource], Subscriber],
        configuration: FleetConfiguration,
    ) -> None:
        self._fleet = fleet
        self._build = build
        self._leaving: set[asyncio.Task[None]] = set()
        self.configuration = configuration
        for name, subscriber in self._built(configuration, configuration.sources).items():
            fleet.add(name, subscriber)

    async def apply(self, configuration: FleetConfiguration) -> None:
        """Follow the Sources of another configuration; those without a change are not restarted.

        If a setting cannot work, nothing changes.
        """
        before = self.configuration
        gone, new = configuration_change(before.sources, configuration.sources)
        # Modules may take a while to import, and certificates to read.
        built = await asyncio.to_thread(self._built, configuration, new)
        self.configuration = configuration
        names = dict.fromkeys((*built, *gone))
        await asyncio.gather(*(self._replace(name, built.get(name)) for name in names))
        if gone or new:
            logger.info("%d Sources are new or changed, %d gone", len(built), len(gone))
        if (before.limits, before.websub) != (configuration.limits, configuration.websub):
            logger.warning("[limits] and [websub] are read only when the command starts")

    async def _replace(self, name: str, subscriber: Subscriber | None) -> None:
        if name in self._fleet:
            await self._remove(name)
        if subscriber is not None:
            self._fleet.add(name, subscriber)

    async def _remove(self, name: str) -> None:
        """Remove a Source; one whose handler does not return does not block the others."""
        leaving = asyncio.create_task(self._fleet.remove(name))
        self._leaving.add(leaving)
        leaving.add_done_callback(self._leaving.discard)
        if not (await asyncio.wait({leaving}, timeout=_LEAVE_PATIENCE))[0]:
            logger.warning("%s has not ended yet, and its state is still in use", name)

    def _built(
        self, configuration: FleetConfiguration, sources: Iterable[FollowedSource]
    ) -> dict[str, Subscriber]:
        return {source.title: self._build(configuration, source) for source in sources}


class ConfigurationWatcher:
    """Reads the configuration again when its files change, or on request."""

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
            await self._until_due()
            try:
                await self._reloader.apply(await asyncio.to_thread(self._load))
            except ConfigurationError as error:
                logger.error("nothing was changed: %s", error)
            except Exception:
                logger.exception("nothing was changed")
            self._files.watch(self._reloader.configuration.files)

    async def _until_due(self) -> None:
        async with first_completed(self._requested.wait(), self._files.changed()):
            self._requested.clear()
