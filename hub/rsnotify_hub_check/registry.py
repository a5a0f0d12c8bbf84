"""The rules that were written down as checks."""

from __future__ import annotations

from collections.abc import Callable, Coroutine

from msgspec import Struct

from rsnotify_hub_check.hub_under_test import HubUnderTest
from rsnotify_hub_check.outcomes import RequirementLevel

Run = Callable[[HubUnderTest], Coroutine[None, None, None]]


class ConformanceCheck(Struct, frozen=True):
    """A rule, and how to try it.

    Args:
        name: What to call it by.
        section: The section of the REC.
        level: How strongly the REC asks for it.
        rocks: The numbers of the websub.rocks tests that look at the same.
        title: The rule, in a sentence.
        run: Tries it; raises `Broken` or `Untold`.
    """

    name: str
    section: str
    level: RequirementLevel
    rocks: tuple[int, ...]
    title: str
    run: Run


#: Every check by its name. Filled by the modules of `checks`.
CHECKS: dict[str, ConformanceCheck] = {}


def check(section: str, level: RequirementLevel, *rocks: int) -> Callable[[Run], Run]:
    """Register a coroutine as a check: its name is the check's, its docstring the rule."""

    def register(run: Run) -> Run:
        name = run.__name__.replace("_", "-")
        assert name not in CHECKS, name
        title = (run.__doc__ or "").partition("\n")[0]
        CHECKS[name] = ConformanceCheck(name, section, level, rocks, title, run)
        return run

    return register
