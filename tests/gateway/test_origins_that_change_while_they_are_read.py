from __future__ import annotations

from datetime import datetime
from pathlib import Path
from random import Random

import pytest

from rsnotify.errors import RsnotifyError
from tests.gateway.checking import Checking, origin
from tests.gateway.generators import Activities, EventStream, PullOnlySource, at
from tests.gateway.origin_server import SITE, Site

STEPS, NAMES, PER_SECOND = 80, 12, 3
RESTARTS, CHECKS = 4, 8
KINDS = ("resourcesync", "iiif", "ldes")


def generator(kind: str, site: Site) -> PullOnlySource | Activities | EventStream:
    match kind:
        case "resourcesync":
            return PullOnlySource(site, per_list=6, lists_every=13)
        case "iiif":
            return Activities(site, per_page=4)
    return EventStream(site, per_page=4)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("seed", [0, pytest.param(1, marks=pytest.mark.slow)])
async def test_the_last_check_has_the_last_state(kind: str, seed: int, tmp_path: Path):
    random = Random(seed)
    present: dict[str, datetime] = {}
    async with Site() as site:
        source = generator(kind, site)
        steps = iter(range(STEPS))

        def step(_: str = "") -> None:
            """Make a change; several have the datetime of one second."""
            number = next(steps, None)
            if number is None:
                return
            name, when = f"r{random.randrange(NAMES)}", at(number // PER_SECOND)
            if name in present and random.random() < 0.4:
                del present[name]
                source.delete(name, when)
            else:
                present[name] = when
                source.put(name, when)

        def maybe_step(path: str) -> None:
            if random.random() < 0.4:
                step(path)

        for _ in range(10):
            step()
        site.before = maybe_step
        for _ in range(RESTARTS):
            async with Checking(tmp_path, origin(kind, source.url())) as checking:
                await check_often(checking, random)
        site.before = lambda path: None
        async with Checking(tmp_path, origin(kind, source.url())) as checking:
            await checking.watch.check()
            found = {uri: one.lastmod for uri, one in checking.resources().items()}
            assert found == {SITE + name: when for name, when in present.items()}
            assert "missed" not in checking.limits


async def check_often(checking: Checking, random: Random) -> None:
    adapter = checking.watch.adapter
    for _ in range(CHECKS):
        if hasattr(adapter, "_compare"):
            adapter._compare = random.choice([1e-6, 1e6])
        try:
            await checking.watch.check()
        except RsnotifyError as error:
            assert "while" in str(error)  # noqa: PT017 - it may change all the time
