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
    PASSED = "passed"
    FAILED = "failed"
    #: The value is that of the first release.
    INCONCLUSIVE = "untold"


class Requirement(Struct, frozen=True):
    """A requirement of the Recommendation.

    Args:
        name: The name of its check.
        section: The section of the Recommendation.
        level: The requirement level.
        rocks: The numbers of the websub.rocks tests of the same requirement.
        title: The requirement, as a sentence.
    """

    name: str
    section: str
    level: RequirementLevel
    rocks: tuple[int, ...]
    title: str


class CheckResult(Requirement, frozen=True):
    """The result of one check; `reason` says why it failed, or is inconclusive."""

    verdict: CheckVerdict
    reason: str
    seconds: float


class RequirementBroken(RsnotifyError):
    """The hub breaks the requirement; the message says how."""


class Inconclusive(RsnotifyError):
    """The check cannot decide for this hub; the message says why."""


def expect(holds: object, otherwise: str) -> None:
    if not holds:
        raise RequirementBroken(otherwise)
