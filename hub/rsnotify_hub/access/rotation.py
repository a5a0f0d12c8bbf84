"""New grants without a restart: files of settings are read again when they change."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable
from pathlib import Path

from rsnotify.errors import ConfigurationError
from rsnotify_hub.access.gate import Gate
from rsnotify_hub.access.grants import grants_of
from rsnotify_hub.configuration import Configuration, ConfigurationSource

log = logging.getLogger("rsnotify.hub.access")

#: How often it is looked whether a file has changed, in seconds.
_LOOK_SECONDS = 0.5

_State = tuple[tuple[int, int, int] | None, ...]


class Rotation:
    """Looks after the files, and gives the gate new grants.

    Looking is surer than being told: files are mounted into containers, and replaced by links.

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
        self._files = source.files(configuration)
        # Not known: a file may have changed since it was read.
        self._read: _State | None = None

    async def run(self) -> None:
        """Look until cancelled."""
        before: _State | None = None
        while self._files:
            await asyncio.sleep(_LOOK_SECONDS)
            now = _state(self._files)
            # A file that is still being written may say something that was never meant.
            if now != self._read and now == before:
                self._read = now
                await self._take_up()
            before = now

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
        files = self._source.files(configuration)
        if files != self._files:
            self._files, self._read = files, None
        log.info("the grants were read anew")


def _state(files: Iterable[str]) -> _State:
    return tuple(_state_of(Path(file)) for file in files)


def _state_of(file: Path) -> tuple[int, int, int] | None:
    try:
        found = file.stat()
    except OSError:
        return None
    return found.st_mtime_ns, found.st_size, found.st_ino
