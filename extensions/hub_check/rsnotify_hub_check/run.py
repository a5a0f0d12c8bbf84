"""Runs checks against a hub."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterable

import aiohttp

from rsnotify_hub_check.endpoints import SimulatedEndpoints
from rsnotify_hub_check.hub_under_test import HubUnderTest
from rsnotify_hub_check.outcomes import CheckResult, CheckVerdict, Inconclusive, RequirementBroken
from rsnotify_hub_check.registry import ConformanceCheck
from rsnotify_hub_check.settings import CheckSettings


async def run_check(check: ConformanceCheck, hub: HubUnderTest) -> CheckResult:
    loop = asyncio.get_running_loop()
    begin = loop.time()
    verdict, reason = CheckVerdict.PASSED, ""
    try:
        await check.run(hub)
    except RequirementBroken as broken:
        verdict, reason = CheckVerdict.FAILED, str(broken)
    except Inconclusive as inconclusive:
        verdict, reason = CheckVerdict.INCONCLUSIVE, str(inconclusive)
    except Exception as error:  # an unexpected one must not prevent the other results
        verdict = CheckVerdict.FAILED
        reason = f"the check ended with an error: {type(error).__name__}: {error}"
    seconds = loop.time() - begin
    return CheckResult(
        check.name, check.section, check.level, check.rocks, check.title, verdict, reason, seconds
    )


async def run_checks(
    checks: Iterable[ConformanceCheck],
    settings: CheckSettings,
    endpoints: SimulatedEndpoints,
    *,
    at_once: int,
) -> AsyncIterator[CheckResult]:
    """Run checks, each with topics and callbacks of its own; yield the results in their order.

    Raises:
        RequirementBroken: The hub cannot be reached, or accepts no publications.
    """
    limit = asyncio.Semaphore(at_once)
    async with aiohttp.ClientSession() as session:
        hub = HubUnderTest(settings, endpoints, session)
        await hub.check_reachable()

        async def run(check: ConformanceCheck) -> CheckResult:
            async with limit:
                return await run_check(check, hub)

        async with asyncio.TaskGroup() as group:
            for task in [group.create_task(run(check)) for check in checks]:
                yield await task
        await hub.unsubscribe_all()
