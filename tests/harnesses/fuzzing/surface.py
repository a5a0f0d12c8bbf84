"""What a surface is: a function that takes bytes from outside, and what may come of them."""

from __future__ import annotations

import random
import re
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property

from rsnotify.errors import RsnotifyError


@dataclass(frozen=True)
class Surface:
    """A function that takes bytes from outside.

    Args:
        read: The function. It raises AssertionError if what it finds is wrong.
        seeds: Valid input, whose parts are repeated and changed.
        errors: The declared exceptions.
        most: The bytes that its caller passes on at most.
    """

    read: Callable[[bytes], object]
    seeds: tuple[bytes, ...]
    errors: tuple[type[Exception], ...] = (RsnotifyError,)
    most: int = 1_000_000

    def attempt(self, data: bytes) -> None:
        """Pass input to the function, which may refuse it with a declared exception."""
        with suppress(*self.errors):
            self.read(data[: self.most])

    @cached_property
    def shapes(self) -> tuple[Shape, ...]:
        """Ways to make input long: one for each general unit, and some for parts of seeds."""
        chosen = random.Random(0)
        found = [_shape(unit, chosen.choice(self.seeds), chosen) for unit in UNITS]
        for seed in self.seeds[:_SEEDS]:
            found.append(Shape(b"", seed, b""))
            found += [_shape(_part(seed, chosen), seed, chosen) for _ in range(4)]
        return tuple(found)

    @property
    def long_values(self) -> Iterator[Shape]:
        """Seeds with a long value in each place, one after another."""
        for seed in self.seeds[:_SEEDS]:
            for found in re.finditer(rb"\w\b", seed):
                yield Shape(seed[: found.end()], b"a", seed[found.end() :])


@dataclass(frozen=True)
class Shape:
    """How input begins, what is repeated, and how it ends."""

    before: bytes
    repeated: bytes
    after: bytes

    def of(self, size: int) -> bytes:
        return self.before + self.repeated * (size // len(self.repeated)) + self.after


#: The seeds whose parts are repeated.
_SEEDS = 3
#: What may stand many times in any kind of input.
UNITS = (
    b" ", b"\n    ", b"a", b"0", b"\\", b'"', b"<", b"<a>", b"[", b'{"a":', b"&amp;", b",", b";a=b",
    b"=", b"\xff", b"\x00", b"%41", b"/", b"<!-- -->", b"<i:i xmlns:i='urn:i'>a</i:i>",
)  # fmt: skip


def _shape(unit: bytes, seed: bytes, chosen: random.Random) -> Shape:
    at = chosen.randrange(len(seed) + 1)
    return Shape(seed[:at], unit, seed[at:])


def _part(seed: bytes, chosen: random.Random) -> bytes:
    begin = chosen.randrange(len(seed))
    return seed[begin : begin + chosen.choice((1, 5, 20, 80))]
