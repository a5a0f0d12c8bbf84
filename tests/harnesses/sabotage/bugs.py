"""The planted bugs: data in `*.toml` beside this file, one entry for each bug."""

from __future__ import annotations

import tomllib
from collections.abc import Iterator
from hashlib import sha256
from pathlib import Path

from msgspec import Struct, convert, json

ROOT = Path(__file__).resolve().parents[3]


class Bug(Struct, frozen=True, forbid_unknown_fields=True):
    """A change of the program that a test has to find.

    Attributes:
        name: What goes wrong, as a sentence.
        file: The module, relative to the project.
        old: Text that occurs once in it.
        new: What stands there instead.
        tests: The tests that are run, as arguments of pytest; at least one of them has to fail.
        left_to: What finds the bug instead of these tests; only if `tests` is empty.
    """

    name: str
    file: str
    old: str
    new: str
    tests: list[str] = []
    left_to: str = ""

    def planted(self, project: Path = ROOT) -> str:
        """Return the module with the bug.

        Raises:
            ValueError: The old text does not occur exactly once.
        """
        text = (project / self.file).read_text()
        if (found := text.count(self.old)) != 1:
            raise ValueError(f"{self.name}: the old text occurs {found} times in {self.file}")
        return text.replace(self.old, self.new)

    def version(self, project: Path = ROOT) -> str:
        """Return a hash of the entry, its module and its tests."""
        files = sorted({self.file, *(test.partition("::")[0] for test in self.tests)})
        digest = sha256(json.encode(self))
        for file in files:
            digest.update((project / file).read_bytes())
        return digest.hexdigest()[:16]


def bugs() -> Iterator[Bug]:
    """Yield all bugs in the order of their files."""
    for path in sorted(Path(__file__).parent.glob("*.toml")):
        yield from convert(tomllib.loads(path.read_text())["bug"], list[Bug])
