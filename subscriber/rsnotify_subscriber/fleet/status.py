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
    """The status of one Source, and in a sentence, what is wrong, if anything is."""

    phase: Phase
    status: Status
    error: str | None = None


class FleetTotals(Struct, frozen=True):
    """The numbers of Sources, of those in step, pushing and failing, and sums over all of them."""

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
