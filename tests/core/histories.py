"""Random histories of a Source, its hub and a Destination: steps for `play`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from random import Random

#: Steps that call a method of the Source.
_PUBLISHED = ("list_resources", "dump_resources", "rotate", "pack", "archive")


def history(random: Random, weights: Mapping[str, float], length: int) -> Iterator[tuple]:
    """Yield random steps, each as often as its weight says."""
    for step in random.choices(list(weights), list(weights.values()), k=length):
        match step:
            case "change":
                yield step, random.choice("abcde"), random.random() < 0.3, random.random() < 0.3
            case "emit":
                yield step, random.randint(1, 2)
            case "deliver" | "double" | "lose":
                yield step, random.randrange(6) if random.random() < 0.3 else 0
            case "work":
                yield step, random.randint(1, 4)
            case "wait":
                yield step, random.choice([0.05, 0.3, 2.0])
            case _ if step in _PUBLISHED:
                yield "publish", step
            case _:
                yield (step,)
