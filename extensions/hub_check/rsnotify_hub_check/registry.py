"""The registered checks."""

from __future__ import annotations

from collections.abc import Callable, Coroutine

from rsnotify_hub_check.hub_under_test import HubUnderTest
from rsnotify_hub_check.outcomes import Requirement, RequirementLevel

Run = Callable[[HubUnderTest], Coroutine[None, None, None]]


class ConformanceCheck(Requirement, frozen=True):
    """A requirement, and the coroutine that checks it.

    The coroutine raises `RequirementBroken` or `Inconclusive`.
    """

    run: Run


#: All checks by name, registered by the modules of `checks`.
CHECKS: dict[str, ConformanceCheck] = {}


def check(
    section: str, level: RequirementLevel, *rocks: int, name: str = "", title: str = ""
) -> Callable[[Run], Run]:
    """Register a coroutine as a check, by default with its own name and docstring."""

    def register(run: Run) -> Run:
        key = (name or run.__name__).replace("_", "-")
        assert key not in CHECKS, key
        rule = title or (run.__doc__ or "").partition("\n")[0]
        CHECKS[key] = ConformanceCheck(key, section, level, rocks, rule, run)
        return run

    return register
