"""How each of many Sources is doing, and all of them together."""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum

from msgspec import Struct

from rsnotify_subscriber.status import PushState, Status


class Phase(StrEnum):
    """Where a Source is: it waits for its turn, is followed, failed and is tried again, or ended.

    One that is followed may be away: then its lists cannot be read, and `Status.error` says why.
    """

    WAITING = "waiting"
    FOLLOWED = "followed"
    FAILED = "failed"
    ENDED = "ended"


class FollowedSourceStatus(Struct, frozen=True):
    """How one Source is doing.

    Args:
        phase: Where it is.
        status: The status of its subscriber.
        error: In a sentence, what is wrong; None if nothing is.
    """

    phase: Phase
    status: Status
    error: str | None = None


class FleetTotals(Struct, frozen=True):
    """How all of them are doing.

    Args:
        sources: How many there are.
        level: How many are in step.
        pushed: To how many changes are pushed.
        wrong: With how many something is wrong.
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
    """Add them up."""
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
