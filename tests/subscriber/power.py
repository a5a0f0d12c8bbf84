"""A disk that loses what was not flushed, as in a power failure."""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from random import Random

import pytest

from rsnotify.runtime import state_folders as disk
from rsnotify_subscriber.mirror import folder_mirror


class Disk:
    """Notes what a mirror flushes, and returns what a power failure leaves of it.

    The worst case: of everything that was not flushed, any part may be there or not, entry by
    entry, and a file may be empty or half written.
    """

    def __init__(self, root: Path, patch: pytest.MonkeyPatch) -> None:
        self._root = root
        self._contents: dict[int, bytes] = {}
        self._entries: dict[int, dict[str, int]] = {}
        self._kept: list[int] = []  # descriptors, so that no inode is used twice
        self.flushes_to_fail = 0
        patch.setattr(folder_mirror, "flush", self._flush)
        self._note(root)

    def close(self) -> None:
        for descriptor in self._kept:
            os.close(descriptor)

    def _flush(self, path: str | Path) -> None:
        if self.flushes_to_fail:
            self.flushes_to_fail -= 1
            raise OSError(5, "Input/output error", str(path))
        disk.flush(path)
        self._note(Path(path))

    def _note(self, path: Path) -> None:
        self._kept.append(os.open(path, os.O_RDONLY))
        number = path.stat().st_ino
        if path.is_dir():
            self._entries[number] = {entry.name: entry.inode() for entry in os.scandir(path)}
        else:
            self._contents[number] = path.read_bytes()

    def after_failure(self, to: Path, random: Random) -> None:
        """Write to a folder what is left after a failure now."""
        found = {path.stat().st_ino: path for path in self._root.rglob("*")}
        self._write(self._root.stat().st_ino, to, found, random)

    def _write(self, number: int, to: Path, found: dict[int, Path], random: Random) -> None:
        path = self._root if number == self._root.stat().st_ino else found.get(number)
        is_folder = number in self._entries or (path is not None and path.is_dir())
        if not is_folder:
            written = path.read_bytes() if path is not None else b""
            flushed = self._contents.get(number)
            if flushed is None:  # never flushed, or replaced: no content changes in place
                flushed = random.choice([written, b"", written[: len(written) // 2]])
            to.write_bytes(flushed)
            return
        to.mkdir()
        durable = self._entries.get(number, {})
        current = {entry.name: entry.inode() for entry in os.scandir(path)} if path else {}
        for name in sorted(durable.keys() | current.keys()):
            chosen = random.choice([durable, current]).get(name)
            if chosen is not None:
                self._write(chosen, to / name, found, random)

    def fail(self, to: Path, state: Path, random: Random) -> None:
        """Copy all that survives a failure now: the mirror, and the folder of its state beside."""
        self.after_failure(to / "mirror", random)
        shutil.copytree(state, to / "state", ignore=shutil.ignore_patterns("incoming", "lock"))
