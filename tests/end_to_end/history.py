"""A history of a folder: read from a file, or made up, small and nasty."""

from __future__ import annotations

import json
import lzma
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from random import Random

#: Names that a Source of files meets sooner or later.
NAMES = [
    "plain.ttl", "with space.ttl", "per%20cent.ttl", "ümläut/été.nt", "hash#mark.ttl",
    "a?b=c&d.ttl", "deep/er/and/deeper.jsonld", "deep/er/sibling.ttl", "CASE.ttl", "case.ttl",
    "plus+and~tilde.rdf", "semi;colon,comma.ttl", "quote'd.ttl", "[brackets].ttl", "no-suffix",
    "empty.ttl",
]  # fmt: skip


@dataclass(frozen=True)
class Step:
    """One change of a file: its new content, or None when it is deleted."""

    path: str
    content: bytes | None


def read(path: Path) -> Iterator[Step]:
    """Read a history: one JSON object a line, perhaps compressed with xz."""
    opener = lzma.open if path.suffix == ".xz" else open
    with opener(path, "rt", encoding="utf-8") as lines:
        for line in lines:
            change = json.loads(line)
            deleted = change["change"] == "deleted"
            yield Step(change["path"], None if deleted else change["content"].encode())


def make_up(count: int, seed: int = 1) -> Iterator[Step]:
    """Make up a history with bursts, renames, empty and large files, and ones that come back."""
    random = Random(seed)
    present: dict[str, bytes] = {}
    for number in range(count):
        name = random.choice(NAMES)
        if random.random() < 0.3:
            name = f"bulk/{random.randrange(40)}.ttl"
        if name in present and random.random() < 0.3:
            content = present.pop(name)
            yield Step(name, None)
            if random.random() < 0.3:  # a rename is a deletion and a creation
                present["renamed/" + name] = content
                yield Step("renamed/" + name, content)
            continue
        size = random.choice([0, 10, 200, 3_000, 40_000]) if name != "empty.ttl" else 0
        present[name] = (f"# {number}\n".encode() * (size // 4 + 1))[:size]
        yield Step(name, present[name])


def apply(steps: Iterable[Step], folder: Path, rate: float | None = None) -> None:
    """Do to a folder what a history says."""
    began = time.monotonic()
    for number, step in enumerate(steps):
        if rate is not None:
            time.sleep(max(0.0, began + number / rate - time.monotonic()))
        path = folder / step.path
        if step.content is not None:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(step.content)
        elif path.exists():
            path.unlink()
            remove_empty(path.parent, folder)


def remove_empty(folder: Path, root: Path) -> None:
    """Remove folders that hold nothing any more, up to the root."""
    while folder != root and not any(folder.iterdir()):
        folder.rmdir()
        folder = folder.parent
