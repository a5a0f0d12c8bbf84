"""The status of each of many Sources, and their totals."""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum

from msgspec import Struct

from rsnotify_subscriber.status import PushState, Status


class Phase(StrEnum):
    """Whether a Source waits to start, is followed, has failed and will be retried, or has ended.

    A Source that is followed may not answer: then `Status.error` has the reason.
    """

    WAITING = "waiting"
    FOLLOWED = "followed"
    FAILED = "failed"
    ENDED = "ended"


class FollowedSourceStatus(Struct, frozen=True):
    """The status of one Source.

    Args:
        phase: The phase.
        status: The status of its subscriber.
        error: In a sentence, what is wrong; None if nothing is.
    """

    phase: Phase
    status: Status
    error: str | None = None


class FleetTotals(Struct, frozen=True):
    """The totals of all Sources.

    Args:
        sources: How many there are.
        level: How many are in step.
        pushed: How many push their changes.
        wrong: How many have an error.
        resources: How many resources are held.
        applied: Changes applied since the start.
        pending: Resources with changes that are known and not yet applied.
    """

    sources: int
    level: int
    pushed: int
    wrong: int
    resources: int
    applied: int
    pending: int


def totals(sources: Mapping[str, FollowedSourceStatus]) -> FleetTotals:
    each = [one.status for one in sources.values()]
    return FleetTotals(
        sources=len(each),
        level=sum(status.level for status in each),
        pushed=sum(status.push is PushState.UP for status in each),
        wrong=sum(one.error is not None for one in sources.values()),
        resources=sum(status.resources for status in each),
        applied=sum(status.applied for status in each),
        pending=sum(status.pending for status in each),
    )
