"""Results as lines of text, and as JSON."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from rsnotify import __version__
from rsnotify_hub_check.outcomes import CheckResult, CheckVerdict, RequirementLevel

_MARKS = {CheckVerdict.PASSED: "ok", CheckVerdict.FAILED: "FAILED", CheckVerdict.INCONCLUSIVE: "?"}


def conforms(results: Sequence[CheckResult], *, strict: bool = False) -> bool:
    """Return whether a hub meets all requirements of the level MUST, or if `strict` also SHOULD."""
    levels = {RequirementLevel.MUST, RequirementLevel.SHOULD} if strict else {RequirementLevel.MUST}
    return not any(each.verdict is CheckVerdict.FAILED and each.level in levels for each in results)


def line(result: CheckResult) -> str:
    mark = _MARKS[result.verdict]
    if result.level is RequirementLevel.MAY and result.verdict is CheckVerdict.FAILED:
        mark = "no"
    rocks = f" [{', '.join(map(str, result.rocks))}]" if result.rocks else ""
    text = f"{mark:6}  {result.level:6}  §{result.section:5}  {result.name}{rocks}: {result.title}"
    return f"{text}\n        {result.reason}" if result.reason else text


def summary(results: Sequence[CheckResult]) -> str:
    """Return how many checks of each level have passed, as text."""
    parts = []
    for level in RequirementLevel:
        these = [each for each in results if each.level is level]
        passed = sum(each.verdict is CheckVerdict.PASSED for each in these)
        parts.append(f"{level} {passed} of {len(these)}")
    inconclusive = sum(each.verdict is CheckVerdict.INCONCLUSIVE for each in results)
    return ", ".join(parts) + (f"; {inconclusive} inconclusive" if inconclusive else "")


def as_json(hub: str, results: Sequence[CheckResult], *, strict: bool) -> bytes:
    report = {
        "suite": f"rsnotify {__version__}",
        "hub": hub,
        "conforms": conforms(results, strict=strict),
        "checks": results,
    }
    return msgspec.json.format(msgspec.json.encode(report), indent=2)
