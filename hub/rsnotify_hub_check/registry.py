"""The registered checks."""

from __future__ import annotations

from collections.abc import Callable, Coroutine

from msgspec import Struct

from rsnotify_hub_check.hub_under_test import HubUnderTest
from rsnotify_hub_check.outcomes import RequirementLevel

Run = Callable[[HubUnderTest], Coroutine[None, None, None]]


class ConformanceCheck(Struct, frozen=True):
    """A requirement, and the coroutine that checks it.

    Args:
        name: The name of the check.
        section: The section of the Recommendation.
        level: The requirement level.
        rocks: The numbers of the websub.rocks tests of the same requirement.
        title: The requirement, as a sentence.
        run: Checks it; raises `RequirementBroken` or `Inconclusive`.
    """

    name: str
    section: str
    level: RequirementLevel
    rocks: tuple[int, ...]
    title: str
    run: Run


#: All checks by name, registered by the modules of `checks`.
CHECKS: dict[str, ConformanceCheck] = {}


def check(section: str, level: RequirementLevel, *rocks: int) -> Callable[[Run], Run]:
    """Register a coroutine as a check, with its name, and its docstring as the requirement."""

    def register(run: Run) -> Run:
        name = run.__name__.replace("_", "-")
        assert name not in CHECKS, name
        title = (run.__doc__ or "").partition("\n")[0]
        CHECKS[name] = ConformanceCheck(name, section, level, rocks, title, run)
        return run

    return register
