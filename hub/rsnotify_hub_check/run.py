"""Runs checks against a hub."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterable

import aiohttp

from rsnotify_hub_check.checks import ALL
from rsnotify_hub_check.endpoints import SimulatedEndpoints
from rsnotify_hub_check.hub_under_test import HubUnderTest
from rsnotify_hub_check.outcomes import CheckResult, CheckVerdict, Inconclusive, RequirementBroken
from rsnotify_hub_check.registry import ConformanceCheck
from rsnotify_hub_check.settings import CheckSettings

__all__ = ["ALL", "ConformanceCheck", "run_check", "run_checks"]


async def run_check(check: ConformanceCheck, bench: HubUnderTest) -> CheckResult:
    """Run one check.

    Args:
        check: The rule.
        bench: The hub under test.
    """
    loop = asyncio.get_running_loop()
    begin = loop.time()
    verdict, reason = CheckVerdict.PASSED, ""
    try:
        await check.run(bench)
    except RequirementBroken as broken:
        verdict, reason = CheckVerdict.FAILED, str(broken)
    except Inconclusive as untold:
        verdict, reason = CheckVerdict.UNTOLD, str(untold)
    except Exception as error:
        # What one hub does that nobody thought of must not take the other results away.
        verdict, reason = (
            CheckVerdict.FAILED,
            f"the check broke off: {type(error).__name__}: {error}",
        )
    return CheckResult(
        name=check.name,
        section=check.section,
        level=check.level,
        rocks=check.rocks,
        title=check.title,
        verdict=verdict,
        reason=reason,
        seconds=loop.time() - begin,
    )


async def run_checks(
    checks: Iterable[ConformanceCheck],
    settings: CheckSettings,
    ends: SimulatedEndpoints,
    *,
    at_once: int,
) -> AsyncIterator[CheckResult]:
    """Run checks, each with topics and callbacks of its own.

    Args:
        checks: The rules.
        settings: How to ask the hub, and how long to wait.
        ends: Serves topics and callbacks.
        at_once: How many run at the same time.

    Returns:
        Their results, in the order of the checks.

    Raises:
        Broken: The hub cannot be reached, or not be published to.
    """
    room = asyncio.Semaphore(at_once)
    async with aiohttp.ClientSession() as session:
        bench = HubUnderTest(settings, ends, session)
        await bench.reach()

        async def run(check: ConformanceCheck) -> CheckResult:
            async with room:
                return await run_check(check, bench)

        async with asyncio.TaskGroup() as group:
            for task in [group.create_task(run(check)) for check in checks]:
                yield await task
        await bench.leave()
