"""This hub conforms to WebSub; or any other whose URL is in RSNOTIFY_HUB_UNDER_TEST."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator
from pathlib import Path

import aiohttp
import pytest

from rsnotify_hub.configuration import load_configuration
from rsnotify_hub.conformance.bench import Bench, Settings
from rsnotify_hub.conformance.ends import serve_ends
from rsnotify_hub.conformance.outcomes import Level, Verdict
from rsnotify_hub.conformance.run import ALL, Check, run_check
from rsnotify_hub.serving.application import serve
from tests.hub.helpers import PATIENCE

OTHER = os.environ.get("RSNOTIFY_HUB_UNDER_TEST")


@pytest.fixture
async def hub(tmp_path: Path) -> AsyncIterator[str]:
    if OTHER:
        yield OTHER
        return
    configuration = load_configuration(
        None,
        port=0,
        data=str(tmp_path / "hub"),
        allow_private_addresses=True,
        retry_seconds=0.01,
        min_lease_seconds=1,
    )
    async with serve(configuration) as url:
        yield url + "websub"


@pytest.fixture
async def bench(hub: str) -> AsyncIterator[Bench]:
    patient = Settings(hub=hub, patience=PATIENCE, quiet=0.2, settle=0.2, retry=PATIENCE)
    settings = Settings(hub=hub) if OTHER else patient
    async with serve_ends(hub) as ends, aiohttp.ClientSession() as session:
        yield Bench(settings, ends, session)


@pytest.mark.parametrize("check", ALL, ids=lambda check: f"{check.section}-{check.name}")
async def test_the_hub_conforms(check: Check, bench: Bench):
    result = await run_check(check, bench)
    if result.verdict is Verdict.UNTOLD:
        pytest.skip(result.reason)
    if OTHER and check.level is Level.MAY and result.verdict is Verdict.FAILED:
        pytest.skip(f"the hub need not: {result.reason}")
    assert result.verdict is Verdict.PASSED, f"{check.title} {result.reason}"
