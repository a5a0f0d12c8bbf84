"""The disk of a machine, whose power is cut: what was not flushed may be lost or torn.

The files are real. What would survive is noted at each flush: of a file its content, of a folder
its names. At a power cut, what differs from that is passed to the virtual disk of
`tests.harnesses.power_cuts`, which decides what is left. The power is cut between two callbacks, or
before or after any flush, so also within a transaction; what the code does in the rest of that
callback has no effect.
"""

from __future__ import annotations

import os
import shutil
import stat
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from random import Random

from tests.harnesses.power_cuts.disk import SECTOR, Disk, File, Folder, Node

#: Names in a folder: the number of the inode of each, and whether that is a folder.
_Names = dict[str, tuple[int, bool]]


class SimulatedDisk:
    """A folder, and what of it survives a power cut."""

    def __init__(
        self, folder: Path, random: Random, on_cut: Callable[[SimulatedDisk], None]
    ) -> None:
        self.folder = folder
        self._on_cut = on_cut
        #: After how many begins and ends of flushes the power is cut; None for never.
        self.steps: int | None = None
        self.is_cut = False
        self._random = random
        self._contents: dict[int, bytes] = {}
        self._names: dict[int, _Names] = {}
        folder.mkdir()
        self.settle()

    def settle(self) -> None:
        """Regard everything as flushed."""
        self._contents.clear()
        self._names.clear()
        for path in (self.folder, *self.folder.rglob("*")):
            self._note(str(path))

    def flush(self, path: str, *, with_name: bool = False) -> None:
        self._step()
        if not self.is_cut:
            self._note(path)
            if with_name:
                self._note(os.path.dirname(path))
        self._step()

    def _note(self, path: str) -> None:
        try:
            facts = os.stat(path)
        except FileNotFoundError:  # deleted, and still open
            return
        if stat.S_ISDIR(facts.st_mode):
            self._names[facts.st_ino] = _names_in(path)
        else:
            with open(path, "rb", buffering=0) as file:
                self._contents[facts.st_ino] = file.readall()

    def _step(self) -> None:
        if self.steps is not None and not self.is_cut:
            self.steps -= 1
            if self.steps < 0:
                self.cut()

    def cut(self) -> None:
        """Decide what is left; programs go on to see everything until `begin_again`."""
        self.is_cut, self.steps = True, None
        disk = Disk()
        nodes: dict[int, Node] = {}
        root = self._durable((self.folder.stat().st_ino, True), nodes)
        assert isinstance(root, Folder)
        disk.root = root
        self._compare(disk, (), nodes)
        disk.write_what_is_left(self.folder.with_name(f"{self.folder.name}.left"), self._random)
        self._on_cut(self)

    def begin_again(self) -> None:
        """Have what is left; no program runs."""
        self.is_cut = False
        shutil.rmtree(self.folder)
        self.folder.with_name(f"{self.folder.name}.left").rename(self.folder)
        now = time.time()
        for path in self.folder.rglob("*"):
            os.utime(path, (now, now))
        self.settle()

    def _durable(self, inode: tuple[int, bool], nodes: dict[int, Node]) -> Node:
        """Return the node of an inode with what was flushed of it, and below it."""
        number, is_folder = inode
        if number not in nodes and is_folder:
            nodes[number] = folder = Folder()
            for name, inner in self._names.get(number, {}).items():
                folder.durable[name] = folder.entries[name] = self._durable(inner, nodes)
        elif number not in nodes:
            content = self._contents.get(number, b"")
            nodes[number] = File(bytearray(content), len(content))
        return nodes[number]

    def _compare(self, disk: Disk, path: Sequence[str], nodes: dict[int, Node]) -> None:
        """Pass on what differs from what was flushed, in a folder and below it."""
        real = self.folder.joinpath(*path)
        names = _names_in(real)
        flushed = dict(disk.folder(path).entries)
        moved: dict[Node, str] = {node: name for name, node in flushed.items() if name not in names}
        for name, inode in names.items():
            node = self._durable(inode, nodes)
            if flushed.get(name) is not node:
                old = moved.pop(node, None)
                steps = [((*path, name), node)]
                disk.name(*steps, *([((*path, old), None)] if old else []))
            if isinstance(node, Folder):
                self._compare(disk, (*path, name), nodes)
            elif not node.pending:
                _write_differences(disk, node, (real / name).read_bytes())
        for name in moved.values():
            disk.name(((*path, name), None))


def _names_in(folder: str | Path) -> _Names:
    with os.scandir(folder) as entries:
        found = sorted(entries, key=lambda entry: entry.name)
        return {entry.name: (entry.inode(), entry.is_dir()) for entry in found}


def _write_differences(disk: Disk, file: File, content: bytes) -> None:
    durable = bytes(file.durable)
    for begin, end in _differences(durable, content):
        disk.write(file, begin, content[begin:end])
    if len(content) < len(durable):
        disk.resize(file, len(content))


def _differences(old: bytes, new: bytes) -> Iterator[tuple[int, int]]:
    """Yield the begin and the end of each part that is new, in whole sectors."""
    begin = None
    for at in range(0, len(new), SECTOR):
        is_same = new[at : at + SECTOR] == old[at : at + SECTOR]
        if begin is None and not is_same:
            begin = at
        elif begin is not None and is_same:
            yield begin, at
            begin = None
    if begin is not None:
        yield begin, len(new)
