"""What a check finds, as values."""

from __future__ import annotations

from enum import StrEnum

from msgspec import Struct

from rsnotify.errors import RsnotifyError


class RequirementLevel(StrEnum):
    """How strongly the REC asks for something (RFC 2119)."""

    MUST = "MUST"
    SHOULD = "SHOULD"
    MAY = "MAY"


class CheckVerdict(StrEnum):
    """What a check found."""

    PASSED = "passed"
    FAILED = "failed"
    UNTOLD = "untold"


class CheckResult(Struct, frozen=True, kw_only=True):
    """One check's result.

    Args:
        name: The check.
        section: The section of the REC that it is about.
        level: How strongly the REC asks for it.
        rocks: The numbers of the websub.rocks tests that look at the same.
        title: The rule, in a sentence.
        verdict: What was found.
        reason: Why it failed, or why it could not be told.
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
    """The hub breaks the rule; the message says how."""


class Inconclusive(RsnotifyError):
    """This hub gives no occasion to tell; the message says why."""


def expect(holds: object, otherwise: str) -> None:
    """Go on if something holds.

    Raises:
        Broken: It does not.
    """
    if not holds:
        raise RequirementBroken(otherwise)
