"""What was acknowledged survives a power cut at any instant, and T covers nothing that is gone.

`make power-cuts` does the same at thousands of instants.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.harnesses.power_cuts.__main__ import EXPERIMENTS, MEMORY
from tests.harnesses.power_cuts.trace import why_untraceable

_CUTS = {"source": 100, "hub": 60, "destination": 60}


@pytest.fixture
def disk() -> Iterator[Path]:
    if (reason := why_untraceable()) is not None:
        pytest.skip(reason)
    with tempfile.TemporaryDirectory(prefix="rsnotify-power-cuts-", dir=MEMORY) as folder:
        yield Path(folder)


@pytest.mark.parametrize("name", EXPERIMENTS)
async def test_nothing_that_was_acknowledged_is_lost_by_a_power_cut(name: str, disk: Path):
    async with EXPERIMENTS[name](disk) as experiment:
        findings = await experiment.run(_CUTS[name], seed=0)
    assert findings.cuts >= _CUTS[name]
    assert findings.wrong == []
