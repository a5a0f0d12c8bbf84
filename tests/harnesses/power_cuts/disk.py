"""A virtual disk: what a power cut may leave of the writes and names that were not flushed.

What it assumes, which is less than any file system in use promises:

- A flush of a file (fsync, fdatasync) makes its content and size durable, and not its name.
- A flush of a folder makes the names in it durable, and neither those of its own parents nor the
  content of its files. A folder that was made is lost, with all below it, unless the folder that
  contains it was flushed.
- Everything else is kept or lost in any order, each name and each write by itself. A write may be
  torn at any multiple of 512 bytes, and a file may have its new length and zeros in it.
- A rename within a folder happens as a whole or not at all. One between two folders may leave both
  names, but never neither.
- A flush covers what had ended before it began. What it covers survives.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from random import Random

SECTOR = 512


@dataclass(eq=False)
class Write:
    """A change of a file: bytes at an offset, or a length if `data` is None."""

    number: int
    at: int
    data: bytes | None


@dataclass(eq=False)
class File:
    durable: bytearray = field(default_factory=bytearray)
    size: int = 0
    pending: list[Write] = field(default_factory=list)


@dataclass(eq=False)
class Folder:
    entries: dict[str, Node] = field(default_factory=dict)
    durable: dict[str, Node] = field(default_factory=dict)


Node = File | Folder
#: A name in a folder, and what has it now.
Step = tuple[Folder, str, Node | None]


@dataclass(eq=False)
class Naming:
    """A change of names: the new one comes before the one that is removed."""

    number: int
    steps: list[Step]


class Disk:
    """The files and folders below a root, which is durable and empty at first."""

    def __init__(self) -> None:
        self.root = Folder()
        self._namings: list[Naming] = []
        self._number = 0

    # What programs do

    def find(self, path: Sequence[str]) -> Node | None:
        node: Node | None = self.root
        for name in path:
            node = node.entries.get(name) if isinstance(node, Folder) else None
        return node

    def folder(self, path: Sequence[str]) -> Folder:
        node = self.find(path)
        assert isinstance(node, Folder), f"{path} is not a folder"
        return node

    def read(self, path: Sequence[str]) -> bytes:
        node = self.find(path)
        content = bytearray(node.durable) if isinstance(node, File) else bytearray()
        for write in node.pending if isinstance(node, File) else ():
            _apply(content, write)
        return bytes(content)

    def name(self, *names: tuple[Sequence[str], Node | None]) -> None:
        """Change what names stand for, all at once; None removes a name."""
        steps = [(self.folder(path[:-1]), path[-1], node) for path, node in names]
        for folder, name, node in steps:
            _enter(folder.entries, name, node)
        self._namings.append(Naming(self.tick(), steps))

    def write(self, file: File, at: int, data: bytes) -> None:
        file.pending.append(Write(self.tick(), at, data))
        file.size = max(file.size, at + len(data))

    def resize(self, file: File, size: int) -> None:
        file.pending.append(Write(self.tick(), size, None))
        file.size = size

    def tick(self) -> int:
        """Return a number greater than all before, of a change or of the begin of a flush."""
        self._number += 1
        return self._number

    def flush(self, node: Node, before: int) -> None:
        """Make what changed before a number durable, of a file or of the names in a folder."""
        if isinstance(node, File):
            covered = [write for write in node.pending if write.number < before]
            node.pending = [write for write in node.pending if write.number >= before]
            for write in covered:
                _apply(node.durable, write)
            return
        for naming in self._namings:
            if naming.number < before:
                self._flush_naming(naming, node)
        self._namings = [naming for naming in self._namings if naming.steps]

    def _flush_naming(self, naming: Naming, node: Folder) -> None:
        if any(folder is node and new is None for folder, _, new in naming.steps):
            done = naming.steps  # a rename never leaves neither name
        else:
            done = [step for step in naming.steps if step[0] is node]
        for folder, name, new in done:
            _enter(folder.durable, name, new)
        naming.steps = [step for step in naming.steps if step not in done]

    # The power cut

    def write_what_is_left(self, to: Path, random: Random | None) -> None:
        """Write what a power cut may leave into a new folder; without `random`, the least."""
        keeps = _NOTHING if random is None else random.choice(_STYLES)(random, self._number)
        entries: defaultdict[Folder, dict[str, Node]] = defaultdict(dict)

        def of(folder: Folder) -> dict[str, Node]:
            if folder not in entries:
                entries[folder] = dict(folder.durable)
            return entries[folder]

        for naming in self._namings:
            is_kept = True
            before: Folder | None = None
            for folder, name, node in naming.steps:
                if folder is not before:  # in one folder, all or nothing
                    is_kept = is_kept and keeps.name(naming.number)
                if is_kept:
                    _enter(of(folder), name, node)
                before = folder
        _write_folder(self.root, to, of, keeps)


@dataclass
class Survival:
    """Which changes survive a power cut: the number of each is passed."""

    name: Callable[[int], bool]
    #: Of a write, its number and its sectors: which of them are on the disk.
    sectors: Callable[[int, int], Sequence[bool]]
    #: Whether a write that is lost has left its length.
    length: Callable[[], bool]


def _all(is_kept: bool) -> Callable[[int, int], Sequence[bool]]:
    return lambda _, count: [is_kept] * count


_NOTHING = Survival(lambda _: False, _all(False), lambda: False)


def _nothing(random: Random, number: int) -> Survival:
    return _NOTHING


def _everything(random: Random, number: int) -> Survival:
    return Survival(lambda _: True, _all(True), lambda: True)


def _names(random: Random, number: int) -> Survival:
    """Names without contents, as of files that are renamed before they are flushed."""
    length = random.random() < 0.5
    return Survival(lambda _: True, _all(False), lambda: length)


def _contents(random: Random, number: int) -> Survival:
    return Survival(lambda _: False, _all(True), lambda: True)


def _until(random: Random, number: int) -> Survival:
    """Everything until an instant, and nothing after it; most often one that is not long ago."""
    last = number - int(random.expovariate(1 / 20))
    return Survival(lambda it: it <= last, lambda it, count: [it <= last] * count, lambda: False)


def _some(random: Random, number: int) -> Survival:
    """Any part, sector by sector."""
    share = random.choice([0.1, 0.5, 0.9])

    def sectors(_: int, count: int) -> Sequence[bool]:
        how = random.random()
        if how < 0.4:
            return [random.random() < share] * count
        if how < 0.7:  # torn
            kept = random.randrange(count + 1)
            return [index < kept for index in range(count)]
        return [random.random() < share for _ in range(count)]

    return Survival(lambda _: random.random() < share, sectors, lambda: random.random() < 0.5)


_STYLES = (_nothing, _everything, _names, _contents, _until, _until, _some, _some, _some)


def _enter(entries: dict[str, Node], name: str, node: Node | None) -> None:
    if node is None:
        entries.pop(name, None)
    else:
        entries[name] = node


def _apply(content: bytearray, write: Write) -> None:
    if write.data is None:
        del content[write.at :]
        content.extend(bytes(write.at - len(content)))
        return
    if write.at > len(content):
        content.extend(bytes(write.at - len(content)))
    content[write.at : write.at + len(write.data)] = write.data


def _write_folder(
    folder: Folder, to: Path, of: Callable[[Folder], dict[str, Node]], keeps: Survival
) -> None:
    to.mkdir()
    for name, node in of(folder).items():
        if isinstance(node, Folder):
            _write_folder(node, to / name, of, keeps)
        elif not name.endswith("-shm"):  # the shared memory of SQLite
            (to / name).write_bytes(_left_of(node, keeps))


def _left_of(file: File, keeps: Survival) -> bytes:
    content = bytearray(file.durable)
    for write in file.pending:
        if write.data is None:
            if keeps.sectors(write.number, 1)[0]:
                _apply(content, write)
            continue
        first = write.at // SECTOR
        kept = keeps.sectors(write.number, (write.at + len(write.data) - 1) // SECTOR - first + 1)
        if keeps.length():
            content.extend(bytes(max(0, write.at + len(write.data) - len(content))))
        if all(kept):
            _apply(content, write)
            continue
        for index, is_kept in enumerate(kept):
            if is_kept:
                begin = max((first + index) * SECTOR, write.at)
                end = (first + index + 1) * SECTOR - write.at
                _apply(content, Write(0, begin, write.data[begin - write.at : end]))
    return bytes(content)
