"""New grants without a restart: files of settings are read again when they change."""

from __future__ import annotations

import asyncio
import logging

from rsnotify.errors import ConfigurationError
from rsnotify.runtime.config.files import FileWatch
from rsnotify_hub.access.gate import Gate
from rsnotify_hub.access.grants import grants_of
from rsnotify_hub.configuration import Configuration
from rsnotify_hub.settings.loading import ConfigurationSource

log = logging.getLogger("rsnotify.hub.access")


class Rotation:
    """Looks after the files, and gives the gate new grants.

    Args:
        gate: Whose grants they are.
        source: Where the settings come from.
        configuration: What was read from there at the start.
    """

    def __init__(
        self, gate: Gate, source: ConfigurationSource, configuration: Configuration
    ) -> None:
        self._gate = gate
        self._source = source
        self._configuration = configuration
        self._looking = FileWatch(source.files(configuration))

    async def run(self) -> None:
        """Look until cancelled."""
        while self._looking.files:
            await self._looking.changed()
            await self._take_up()

    async def _take_up(self) -> None:
        try:
            configuration = await asyncio.to_thread(self._source.load)
        except ConfigurationError as error:
            log.error("the grants stay as they are: %s", error)
            return
        except Exception:
            log.exception("the grants stay as they are")
            return
        if configuration != self._configuration:
            self._give(configuration)

    def _give(self, configuration: Configuration) -> None:
        self._configuration = configuration
        # Whoever took the last token away did not mean to let everybody in.
        anonymous = self._gate.grants.anonymous
        self._gate.grants = grants_of(configuration, anonymous=anonymous)
        self._looking.watch(self._source.files(configuration))
        log.info("the grants were read anew")
