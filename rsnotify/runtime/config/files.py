"""Files of settings: reading them, and seeing that they have changed."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import msgspec

from rsnotify.errors import ConfigurationError

#: How often it is looked whether a file has changed, in seconds.
_LOOK_SECONDS = 0.5

_State = tuple[tuple[int, int, int] | None, ...]


def read_text(path: str | Path) -> str:
    """Read a file.

    Raises:
        ConfigurationError: It cannot be read.
    """
    try:
        return Path(path).read_text("utf-8")
    except OSError as error:
        raise ConfigurationError(f"cannot read {path}: {error.strerror}") from None
    except UnicodeDecodeError:
        raise ConfigurationError(f"cannot read {path}: it is not UTF-8") from None


def decode_settings(path: str | Path, text: str) -> dict[str, Any]:
    """Decode what a file of settings says.

    Args:
        path: The file, for its name: what ends in .json is JSON, all else TOML.
        text: What is in it.

    Raises:
        ConfigurationError: It is neither.
    """
    decode = msgspec.json.decode if str(path).endswith(".json") else msgspec.toml.decode
    try:
        return decode(text, type=dict[str, Any])
    except RecursionError:
        raise ConfigurationError(f"cannot read {path}: it is nested too deeply") from None
    except ValueError as error:  # a `DecodeError` is one, and what is said of too long a number
        raise ConfigurationError(f"cannot read {path}: {error}") from None


class FileWatch:
    """Sees that files have changed.

    Looking is surer than being told: files are mounted into containers, and replaced by links.

    Args:
        files: The files.
    """

    def __init__(self, files: Sequence[str]) -> None:
        self.files = files
        # Not known: a file may have changed since it was read.
        self._read: _State | None = None

    async def changed(self) -> None:
        """Wait until a file is another than when this returned the last time, if it did."""
        before: _State | None = None
        while True:
            await asyncio.sleep(_LOOK_SECONDS)
            now = _state(self.files)
            # A file that is still being written may say something that was never meant.
            if now != self._read and now == before:
                self._read = now
                return
            before = now

    def look_at(self, files: Sequence[str]) -> None:
        """Look at other files from now on, if they are others."""
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
