"""The results of checks, as values."""

from __future__ import annotations

from enum import StrEnum

from msgspec import Struct

from rsnotify.errors import RsnotifyError


class RequirementLevel(StrEnum):
    """The requirement level in the Recommendation (RFC 2119)."""

    MUST = "MUST"
    SHOULD = "SHOULD"
    MAY = "MAY"


class CheckVerdict(StrEnum):
    """The verdict of a check."""

    PASSED = "passed"
    FAILED = "failed"
    #: The value is that of the first release.
    INCONCLUSIVE = "untold"


class CheckResult(Struct, frozen=True, kw_only=True):
    """The result of one check.

    Args:
        name: The name of the check.
        section: The section of the Recommendation with the requirement.
        level: The requirement level.
        rocks: The numbers of the websub.rocks tests of the same requirement.
        title: The requirement, as a sentence.
        verdict: The verdict.
        reason: Why the check failed, or is inconclusive.
        seconds: How long it took.
    """

    name: str
    section: str
    level: RequirementLevel
    rocks: tuple[int, ...]
    title: str
    verdict: CheckVerdict
    reason: str
    seconds: float


class RequirementBroken(RsnotifyError):
    """The hub breaks the requirement; the message says how."""


class Inconclusive(RsnotifyError):
    """The check cannot decide for this hub; the message says why."""


def expect(holds: object, otherwise: str) -> None:
    """Raise an error unless a condition holds.

    Raises:
        RequirementBroken: It does not hold.
    """
    if not holds:
        raise RequirementBroken(otherwise)
