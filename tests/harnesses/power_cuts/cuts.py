"""Power cuts at instants of a traced run, and what is left of its disk after each."""

from __future__ import annotations

import shutil
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator, Sequence
from pathlib import Path
from random import Random
from typing import NamedTuple, Protocol

from tests.harnesses.power_cuts.disk import Disk
from tests.harnesses.power_cuts.machine import Machine
from tests.harnesses.power_cuts.trace import Call

#: How much more often the power is cut after a message, and at the end.
_AFTER_MESSAGE, _AT_END = 4, 40


class Witness(Protocol):
    """Those outside, who remember what they received."""

    def sent(self, stream: str, data: bytes) -> None:
        """Receive what the program begins to send; see `Machine`."""


class PowerCut(NamedTuple):
    """A power cut.

    Attributes:
        instant: After how many changes of the disk and messages it comes.
        of: How many instants there are.
        variant: Which of several possible remains this is; 0 has nothing but what was flushed.
        time: The time of the last call before it, in microseconds.
        remains: The folder with what is left.
        disk: The disk as it was before it.
    """

    instant: int
    of: int
    variant: int
    time: int
    remains: Path
    disk: Disk


class Loss(AssertionError):
    """Something is wrong after a power cut."""


class Experiment(NamedTuple):
    """A traced run, and how to check what a power cut has left of it.

    Attributes:
        folder: Where it ran; its disk was the folder `disk` there.
        calls: What it did.
        witness: Is sent what the program sent until each instant.
        check: Raises an exception, `Loss` for example, if something is wrong after a power cut.
    """

    folder: Path
    calls: Sequence[Call]
    witness: Witness
    check: Callable[[PowerCut], Awaitable[None]]

    def cut_power(self, count: int, seed: int) -> Iterator[PowerCut]:
        """Yield so many power cuts at random instants, and one after each message.

        They come in the order of their instants. After a message, nothing survives that was not
        flushed.
        """
        root, remains = self.folder / "disk", self.folder / "remains"
        moments = list(Machine(root, self.calls, _ignore).run())
        weights = [1 if moment.is_end else _AFTER_MESSAGE for moment in moments]
        weights[-1] = _AT_END
        chosen = Counter(Random(seed).choices(range(len(moments)), weights, k=count))
        machine = Machine(root, self.calls, self.witness.sent)
        for instant, moment in enumerate(machine.run()):
            for variant in range(moment.is_end, chosen[instant] + 1):
                random = Random(f"{seed} {instant} {variant}") if variant else None
                machine.disk.write_what_is_left(remains, random)
                time = moment.call.time
                yield PowerCut(instant, len(moments), variant, time, remains, machine.disk)
                shutil.rmtree(remains)

    async def run(self, count: int, seed: int, *, most: int = 1) -> Findings:
        """Check power cuts as of `cut_power`, until so many have shown something wrong."""
        findings = Findings(0, [])
        for cut in self.cut_power(count, seed):
            findings = Findings(findings.cuts + 1, findings.wrong)
            try:
                await self.check(cut)
            except Exception as error:
                where = f"instant {cut.instant} of {cut.of}, variant {cut.variant}"
                findings.wrong.append(f"{where}, seed {seed}: {error!r}")
                if len(findings.wrong) >= most:
                    break
        return findings


class Findings(NamedTuple):
    """How often the power was cut, and what was wrong then."""

    cuts: int
    wrong: list[str]


def _ignore(stream: str, data: bytes) -> None: ...
