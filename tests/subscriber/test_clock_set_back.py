"""The measurements of a subscriber whose clock is set back."""

from __future__ import annotations

from contextlib import closing
from datetime import UTC, datetime, timedelta

import pytest
from msgspec.structs import replace

from rsnotify.format.coverage import Change
from rsnotify.format.model import ChangeType, Resource
from rsnotify_subscriber import default_state, status
from rsnotify_subscriber.events import Announcer
from rsnotify_subscriber.status import FollowCounters, StatusCounters
from rsnotify_subscriber.storage.destination_state import DestinationState
from tests.subscriber.destination import PACE, Destination
from tests.subscriber.source import SmallSource


class SetClock:
    """Stands for `datetime` in a module."""

    def __init__(self) -> None:
        self.ahead = timedelta()

    def now(self, zone: object) -> datetime:
        return datetime.now(UTC) + self.ahead


def test_lags_are_not_kept_until_a_clock_that_was_set_back_is_there_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    clock = SetClock()
    monkeypatch.setattr(status, "datetime", clock)
    seconds = 0.0
    monkeypatch.setattr(status, "monotonic", lambda: seconds, raising=False)
    counters = StatusCounters(FollowCounters())
    change = Change(
        "a", ChangeType.UPDATED, datetime.now(UTC), Resource("a", change=ChangeType.UPDATED)
    )
    counters.count([change], is_current=True)
    clock.ahead = timedelta(days=-1)
    for _ in range(3_600):  # an hour with a change each second
        clock.ahead += timedelta(seconds=1)
        seconds += 1.001
        counters.count([change], is_current=True)
    assert len(counters._lags) < 10


async def test_a_comparison_dated_by_a_clock_that_was_ahead_does_not_postpone_the_next(
    source: SmallSource, destination: Destination
) -> None:
    source.put_some()
    await destination.catch_up()
    with closing(DestinationState(default_state(destination.folder))) as state:
        state.store_compared(datetime.now(UTC) + timedelta(days=1))
    await destination.catch_up(pace=replace(PACE, compare=3_600))
    compared = destination.current.status.compared
    assert compared is not None
    assert compared <= datetime.now(UTC)


def test_how_long_a_copy_is_behind_counts_again_after_the_clock_was_set_back() -> None:
    announce = Announcer(None)
    announce.behind_since = datetime.now(UTC) + timedelta(days=1)
    announce.set_behind()
    assert announce.behind_since <= datetime.now(UTC)
