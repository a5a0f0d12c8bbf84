"""`rsnotify hub` conforms to WebSub, or the hub whose URL is in RSNOTIFY_HUB_UNDER_TEST.

All checks run at the same time, on one hub; each is a test.
"""

from __future__ import annotations

import asyncio
import os
from pathlib import Path
from typing import Any

import pytest

from rsnotify_hub.application import serve
from rsnotify_hub.config.loading import load_configuration
from rsnotify_hub_check.hub_under_test import CheckSettings, ConformanceCheck
from rsnotify_hub_check.outcomes import CheckResult, CheckVerdict, RequirementLevel
from rsnotify_hub_check.run import ALL, run_checks
from rsnotify_hub_check.simulated_endpoints import SimulatedEndpoints, serve_endpoints
from tests.waiting import PATIENCE

OTHER = os.environ.get("RSNOTIFY_HUB_UNDER_TEST")

#: The check for a hub that serves only some topics.
DENIAL = "a-denial-is-told"

Results = dict[str, CheckResult]


async def check_hub(data: Path, **options: Any) -> Results:
    """Run the checks on `rsnotify hub`."""
    configuration = load_configuration(
        None,
        port=0,
        data=str(data),
        allow_private_addresses=True,
        retry_seconds=0.01,
        subscriptions_per_host=1000,
        min_lease_seconds=1,
        **options,
    )
    async with serve(configuration) as url:
        hub = url + "websub"
        settings = CheckSettings(
            hub=hub, patience=PATIENCE, quiet=0.3, settle=PATIENCE, retry=PATIENCE
        )
        return await results_of([check for check in ALL if check.name != DENIAL], settings)


async def check_denial(data: Path, token: str) -> Results:
    """Run the check for a hub that does not serve every topic."""
    async with serve_endpoints("https://hub.example/") as endpoints:
        publishers = [{"token": token, "topics": [endpoints.base]}]
        configuration = load_configuration(
            None, port=0, data=str(data), allow_private_addresses=True, publishers=publishers
        )
        async with serve(configuration) as url:
            settings = CheckSettings(
                hub=url + "websub",
                patience=PATIENCE,
                token=token,
                denied_topic="https://other.test/",
            )
            denial = [check for check in ALL if check.name == DENIAL]
            return await collect(denial, settings, endpoints)


async def results_of(checks: list[ConformanceCheck], settings: CheckSettings) -> Results:
    async with serve_endpoints(settings.hub) as endpoints:
        return await collect(checks, settings, endpoints)


async def collect(
    checks: list[ConformanceCheck], settings: CheckSettings, endpoints: SimulatedEndpoints
) -> Results:
    found = run_checks(checks, settings, endpoints, at_once=4 if OTHER else 16)
    return {result.name: result async for result in found}


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> Results:
    if OTHER:
        return asyncio.run(results_of(list(ALL), CheckSettings(hub=OTHER)))
    data = tmp_path_factory.mktemp("conformance")
    found = asyncio.run(check_hub(data / "open"))
    return found | asyncio.run(check_denial(data / "granted", "a token of this test"))


@pytest.mark.parametrize("check", ALL, ids=lambda check: f"{check.section}-{check.name}")
def test_the_hub_conforms(check: ConformanceCheck, results: Results) -> None:
    result = results[check.name]
    if OTHER and result.verdict is CheckVerdict.INCONCLUSIVE:
        pytest.skip(result.reason)
    if OTHER and check.level is RequirementLevel.MAY and result.verdict is CheckVerdict.FAILED:
        pytest.skip(f"the hub need not: {result.reason}")
    assert result.verdict is CheckVerdict.PASSED, f"{check.title} {result.reason}"
