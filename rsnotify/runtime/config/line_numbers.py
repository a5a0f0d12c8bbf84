"""The lines of settings in a TOML or JSON file."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

#: The path to a setting: names of tables and keys, and positions in arrays.
SettingPath = Sequence[str | int]

_ARRAY_TABLE = re.compile(r"\s*\[\[\s*([\w-]+)\s*\]\]")
_TABLE = re.compile(r"\s*\[\s*([\w-]+(?:\s*\.\s*[\w-]+)*)\s*\]\s*(#|$)")
_KEY = re.compile(r"""\s*+[{,]?\s*+["']?([\w-]++)["']?\s*+[=:]""")


def line_of(text: str, path: SettingPath) -> int | None:
    """Return the number of the line where a setting begins.

    A setting in an inline table has the line of the innermost key that begins a line.
    """
    lines = _lines(text)
    prefixes = (tuple(path[:length]) for length in range(len(path), 0, -1))
    return next((lines[prefix] for prefix in prefixes if prefix in lines), None)


def place_of(file: object, text: str, path: SettingPath) -> str:
    """Return the file, and the line if it is known, where a setting begins."""
    line = line_of(text, path)
    return str(file) if line is None else f"{file}, line {line}"


def _lines(text: str) -> dict[tuple[str | int, ...], int]:
    found: dict[tuple[str | int, ...], int] = {}
    counts: dict[str, int] = {}
    table: tuple[str | int, ...] = ()
    for number, line in enumerate(text.splitlines(), 1):
        if match := _ARRAY_TABLE.match(line):
            name = match.group(1)
            table = (name, counts.get(name, 0))
            counts[name] = counts.get(name, 0) + 1
        elif match := _TABLE.match(line):
            table = _table([name.strip() for name in match.group(1).split(".")], counts)
        elif match := _KEY.match(line):
            found.setdefault((*table, match.group(1)), number)
            continue
        else:
            continue
        found.setdefault(table[:1], number)
        found.setdefault(table, number)
    return found


def _table(names: Sequence[str], counts: Mapping[str, int]) -> tuple[str | int, ...]:
    """Return the path to a table; one in an array of tables belongs to the last of them."""
    first, *rest = names
    return (first, counts[first] - 1, *rest) if first in counts else tuple(names)
