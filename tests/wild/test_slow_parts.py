"""Threads, disks and servers that are slow now and then: no order of answers makes a copy wrong.

What is compared, fetched, stored and discovered at once ends in another order in each run.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any

import pytest

from tests.examples_count import part
from tests.subscriber.destination import files_of
from tests.wild.running import follow_once
from tests.wild.source import Answer, Request, Source
from tests.wild.test_damaged_folder import SHAPES, Shape, copied

#: Seconds for which something may be slow.
PAUSES = (0.01, 0.03, 0.06, 0.12)


class Pauses:
    """Decides what is slow, and for how long."""

    def __init__(self, seed: int) -> None:
        self._random = Random(seed)
        self._share = self._random.choice([0.1, 0.3, 0.6])

    def next(self) -> float:
        is_slow = self._random.random() < self._share
        return self._random.choice(PAUSES) if is_slow else 0.0

    def slow_threads(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """Delay calls that this event loop runs in threads."""
        loop = asyncio.get_running_loop()
        run = loop.run_in_executor

        def run_late(executor: Any, call: Callable[..., Any], *arguments: Any) -> Any:
            pause = self.next()

            def late(*arguments: Any) -> Any:
                time.sleep(pause)
                return call(*arguments)

            return run(executor, late, *arguments)

        monkeypatch.setattr(loop, "run_in_executor", run_late)

    def slow_answers(self, source: Source) -> None:
        """Delay the answers of the Source."""
        for path, given in list(source.answers.items()):

            def answer(request: Request, given: Any = given) -> Answer:
                one = given if isinstance(given, Answer) else Answer(given)
                return Answer(**{**vars(one), "delay": self.next()})

            source.answers[path] = answer


OFFERED = [offered for offered, announced in SHAPES if announced == "hashes"]


def lose(shape: Shape, folder: Path) -> None:
    (folder / "a").unlink()


def lose_what_is_gone(shape: Shape, folder: Path) -> None:
    (folder / "a").unlink()
    shape.source.put("a", b"", status=404)


def lose_and_show_a_login(shape: Shape, folder: Path) -> None:
    (folder / "a").unlink()
    shape.source.put("a", b"please log in")


def change_and_lose(shape: Shape, folder: Path) -> None:
    (folder / "a").unlink()
    shape.change("a", 60)
    shape.change("b", 60)


TROUBLES = [lose, lose_what_is_gone, lose_and_show_a_login, change_and_lose]
#: With this one, much is slow.
SEED = 5
CASES = [
    *((offered, one, SEED) for n, offered in enumerate(OFFERED) for one in part(TROUBLES, n, 2)),
    *(
        pytest.param(offered, trouble, seed, marks=pytest.mark.slow)
        for seed in range(6, 30)
        for offered in OFFERED
        for trouble in TROUBLES
    ),
]


@pytest.mark.parametrize(("offered", "trouble", "seed"), CASES)
async def test_a_slow_run_ends_with_a_right_copy_or_says_that_it_may_not_be(
    offered: str,
    trouble: Callable[[Shape, Path], None],
    seed: int,
    source: Source,
    folder: Path,
    monkeypatch: pytest.MonkeyPatch,
):
    shape = Shape(source, offered, "hashes")
    await copied(shape, folder)
    trouble(shape, folder)
    pauses = Pauses(seed)
    pauses.slow_threads(monkeypatch)
    pauses.slow_answers(source)
    outcome = await follow_once(source, folder)
    is_right = files_of(folder) == source.resources
    assert is_right or not outcome.claims, outcome
    assert outcome.claims or trouble not in (lose, change_and_lose), outcome
