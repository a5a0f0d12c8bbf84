"""Power cuts at instants of a traced run, and what is left of its disk after each."""

from __future__ import annotations

import shutil
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from random import Random
from typing import NamedTuple, Protocol

from tests.power_cuts.machine import Machine
from tests.power_cuts.trace import Call


#: How much more often the power is cut when something was just sent, and at the end.
_AFTER_SENT, _AT_END = 4, 40


class Witness(Protocol):
    """Those outside, who remember what they received."""

    def sent(self, stream: str, data: bytes) -> None:
        """Receive what the program begins to send; see `Machine`."""


class PowerCut(NamedTuple):
    """A power cut.

    Attributes:
        instant: After how many changes of the disk and messages it comes.
        of: How many instants there are.
        variant: Which of several possible remains this is.
        remains: The folder with what is left.
    """

    instant: int
    of: int
    variant: int
    remains: Path


class Loss(AssertionError):
    """Something is wrong after a power cut."""


def cut_power(
    root: Path,
    calls: Sequence[Call],
    witness: Witness,
    folder: Path,
    *,
    count: int,
    seed: int,
) -> Iterator[PowerCut]:
    """Yield power cuts in the order of their instants, each with what others know by then.

    Args:
        root: The folder in which the program worked.
        calls: What it did.
        witness: Is sent what the program sent until the instant.
        folder: For what is left, which is deleted afterwards.
        count: How many power cuts there are.
        seed: Chooses the instants, and what is left.
    """
    weights = [_AFTER_SENT if is_sent else 1 for is_sent in Machine(root, calls, _ignore).run()]
    of = len(weights)
    weights[-1] = _AT_END
    chosen = Counter(Random(seed).choices(range(of), weights, k=count))
    remains = folder / "remains"
    machine = Machine(root, calls, witness.sent)
    for instant, _ in enumerate(machine.run()):
        for variant in range(chosen[instant]):
            machine.disk.write_what_is_left(remains, Random(f"{seed} {instant} {variant}"))
            yield PowerCut(instant, of, variant, remains)
            shutil.rmtree(remains)


def check_all(
    cuts: Iterator[PowerCut], check: Callable[[PowerCut], None], *, most: int = 1
) -> tuple[int, list[str]]:
    """Return the number of power cuts, and what was wrong after them, until so many were wrong."""
    wrong = []
    number = 0
    for number, cut in enumerate(cuts, 1):
        try:
            check(cut)
        except Exception as error:
            wrong.append(f"instant {cut.instant} of {cut.of}, variant {cut.variant}: {error!r}")
            if len(wrong) >= most:
                break
    return number, wrong


def _ignore(stream: str, data: bytes) -> None: ...
