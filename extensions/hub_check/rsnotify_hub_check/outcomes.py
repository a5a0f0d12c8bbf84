"""The requirements that are checked, and the results of the checks."""

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
    #: The value has not changed since the first release.
    INCONCLUSIVE = "untold"


class Requirement(Struct, frozen=True):
    """A requirement of the Recommendation, with the name of its check.

    Args:
        rocks: The numbers of the websub.rocks tests for the same requirement.
        title: The requirement as a sentence.
    """

    name: str
    section: str
    level: RequirementLevel
    rocks: tuple[int, ...]
    title: str


class CheckResult(Requirement, frozen=True):
    """The result of a check. `reason` states why it failed or is inconclusive."""

    verdict: CheckVerdict
    reason: str
    seconds: float


class RequirementBroken(RsnotifyError):
    """The hub breaks a requirement. The message states how."""


class Inconclusive(RsnotifyError):
    """The check cannot be decided for this hub. The message states why."""


def expect(holds: object, otherwise: str) -> None:
    if not holds:
        raise RequirementBroken(otherwise)
