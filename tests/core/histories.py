"""Histories of a Source, its hub and a Destination: random steps, and what each does."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from random import Random

from rsnotify.format.model import Document
from tests.core.world import Destination, Source

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


def play(step: tuple, source: Source, destination: Destination, wire: list[Document]) -> None:
    """Carry out one step. `wire` has the fragments that were sent and have not arrived."""
    match step:
        case "change", name, deleted, same_instant:
            source.change(name, deleted, same_instant)
        case "emit", size:
            wire.append(source.fragment(size))
        case "deliver", place if wire:
            destination.push(wire.pop(place % len(wire)))
        case "double", place if wire:
            destination.push(wire[place % len(wire)])
        case "lose", place if wire:
            wire.pop(place % len(wire))
        case "publish", what:
            getattr(source, what)()
        case "work", count:
            for _ in range(count):
                destination.step()
        case "wait", seconds:
            destination.tick(seconds)
        case ("poll",):
            for _ in range(30):
                destination.tick()
                while destination.pending:
                    destination.step()
        case ("crash",):
            destination.restart()
