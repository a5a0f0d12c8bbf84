"""Configuration files: reading them, and noticing that they have changed."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import msgspec

from rsnotify.errors import ConfigurationError

#: How often the files are checked, in seconds.
_CHECK_SECONDS = 0.5

_State = tuple[tuple[int, int, int] | None, ...]


def read_text(path: str | Path) -> str:
    """Read a file, or raise ConfigurationError."""
    try:
        return Path(path).read_text("utf-8")
    except OSError as error:
        raise ConfigurationError(f"cannot read {path}: {error.strerror}") from None
    except UnicodeDecodeError:
        raise ConfigurationError(f"cannot read {path}: it is not UTF-8") from None


def decode_settings(path: str | Path, text: str) -> dict[str, Any]:
    """Decode a configuration file: JSON if its name ends in .json, else TOML."""
    decode = msgspec.json.decode if str(path).endswith(".json") else msgspec.toml.decode
    try:
        return decode(text, type=dict[str, Any])
    except RecursionError:
        raise ConfigurationError(f"cannot read {path}: it is nested too deeply") from None
    except ValueError as error:  # also raised for a number with too many digits
        raise ConfigurationError(f"cannot read {path}: {error}") from None


class FileWatch:
    """Notices that files have changed, by polling.

    Notifications of the system are less reliable: files are mounted into containers, and replaced
    by links.
    """

    def __init__(self, files: Sequence[str]) -> None:
        self.files = files
        # Unknown at first: a file may have changed since it was read.
        self._read: _State | None = None

    async def changed(self) -> None:
        """Wait until a file differs from its state when this returned last."""
        before: _State | None = None
        while True:
            await asyncio.sleep(_CHECK_SECONDS)
            now = _state(self.files)
            # A file that is still being written may be incomplete.
            if now != self._read and now == before:
                self._read = now
                return
            before = now

    def watch(self, files: Sequence[str]) -> None:
        if files != self.files:
            self.files, self._read = files, None


def _state(files: Iterable[str]) -> _State:
    return tuple(_state_of(Path(file)) for file in files)


def _state_of(file: Path) -> tuple[int, int, int] | None:
    try:
        found = file.stat()
    except OSError:
        return None
    return found.st_mtime_ns, found.st_size, found.st_ino
