"""How many examples the longest tests try: `make slow` and `make mutants` set a factor."""

from __future__ import annotations

import os
from collections.abc import Iterable
from itertools import islice
from typing import TypeVar

T = TypeVar("T")

FACTOR = float(os.environ.get("RSNOTIFY_EXAMPLES", "1"))


def examples(number: int) -> int:
    return max(1, round(number * FACTOR))


def part(cases: Iterable[T], number: int, parts: int) -> list[T]:
    """Return one part of some cases; all of them where more examples than usual are tried."""
    return list(cases if FACTOR > 1 else islice(cases, number % parts, None, parts))
