"""Keeping a fleet as its file says, also when that changes: only what changed is touched."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable

from msgspec import Struct

from rsnotify.errors import ConfigurationError
from rsnotify.runtime.config.files import FileWatch
from rsnotify_subscriber.fleet.configuration import FleetConfiguration, FollowedSource
from rsnotify_subscriber.fleet.fleet import Fleet
from rsnotify_subscriber.subscriber import Subscriber

logger = logging.getLogger("rsnotify.subscriber.fleet")

#: How many seconds a Source may take to end, before the next change of the file is seen to.
_PATIENCE = 30.0


class ConfigurationChange(Struct, frozen=True):
    """What a new configuration changes.

    Args:
        gone: Names of Sources that are not followed any more, or not in this way.
        new: Sources that are followed from now on, or in another way.
    """

    gone: tuple[str, ...]
    new: tuple[FollowedSource, ...]


def configuration_change(
    before: Iterable[FollowedSource], now: Iterable[FollowedSource]
) -> ConfigurationChange:
    """Compare what was followed with what is to be followed."""
    old = {source.title: source for source in before}
    new = {source.title: source for source in now}
    return ConfigurationChange(
        tuple(name for name, source in old.items() if new.get(name) != source),
        tuple(source for name, source in new.items() if old.get(name) != source),
    )


class FleetReloader:
    """Has a fleet follow what a configuration says.

    Args:
        fleet: The fleet.
        build: Makes the subscriber of a Source of a configuration.
        configuration: What it says at first.

    Raises:
        ConfigurationError: Something cannot work.
    """

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

    async def take(self, configuration: FleetConfiguration) -> None:
        """Follow what it says now; who is followed as before is left alone.

        Raises:
            ConfigurationError: Something cannot work; all goes on as before then.
        """
        before = self.configuration
        changed = configuration_change(before.sources, configuration.sources)
        # Modules may take a while to import, and certificates to read.
        built = await asyncio.to_thread(self._built, configuration, changed.new)
        self.configuration = configuration
        names = dict.fromkeys((*built, *changed.gone))
        await asyncio.gather(*(self._replace(name, built.get(name)) for name in names))
        if changed.gone or changed.new:
            logger.info("%d Sources are new or changed, %d gone", len(built), len(changed.gone))
        if (before.limits, before.websub) != (configuration.limits, configuration.websub):
            logger.warning("[limits] and [websub] will hold when the command is started anew")

    async def _replace(self, name: str, subscriber: Subscriber | None) -> None:
        if name in self._fleet:
            await self._remove(name)
        if subscriber is not None:
            self._fleet.add(name, subscriber)

    async def _remove(self, name: str) -> None:
        """Follow a Source no longer; one whose handler does not return holds up no other."""
        leaving = asyncio.create_task(self._fleet.remove(name))
        self._leaving.add(leaving)
        leaving.add_done_callback(self._leaving.discard)
        if not (await asyncio.wait({leaving}, timeout=_PATIENCE))[0]:
            logger.warning("%s has not ended yet, and its state is still in use", name)

    def _built(
        self, configuration: FleetConfiguration, sources: Iterable[FollowedSource]
    ) -> dict[str, Subscriber]:
        return {source.title: self._build(configuration, source) for source in sources}


class ConfigurationWatcher:
    """Reads the configuration again when its files change, or when it is asked to.

    Args:
        keeper: Takes it.
        load: Reads it.
    """

    def __init__(self, keeper: FleetReloader, load: Callable[[], FleetConfiguration]) -> None:
        self._keeper = keeper
        self._load = load
        self._asked = asyncio.Event()
        self._looking = FileWatch(keeper.configuration.files)

    def reload(self) -> None:
        """Read the configuration soon, whether or not a file has changed."""
        self._asked.set()

    async def run(self) -> None:
        """Do so until cancelled."""
        while True:
            await self._until_due()
            await self._take_up()
            self._looking.look_at(self._keeper.configuration.files)

    async def _until_due(self) -> None:
        due = [
            asyncio.create_task(self._asked.wait()),
            asyncio.create_task(self._looking.changed()),
        ]
        try:
            await asyncio.wait(due, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for one in due:
                one.cancel()
        self._asked.clear()

    async def _take_up(self) -> None:
        try:
            await self._keeper.take(await asyncio.to_thread(self._load))
        except ConfigurationError as error:
            logger.error("all goes on as before: %s", error)
        except Exception:
            logger.exception("all goes on as before")
