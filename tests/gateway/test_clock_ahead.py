"""Activities that were dated by a clock that was ahead for a while."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from rsnotify.format.datetimes import from_microseconds
from rsnotify_gateway.adapters import event_streams
from rsnotify_gateway.adapters.event_streams import EventsAdapter, StatedChange
from tests.gateway.checking import Checking, origin
from tests.gateway.generators import Activities
from tests.gateway.origin_server import SITE, Site
from tests.gateway.test_events import FIELDS

A, B, C, D = (SITE + name for name in "abcd")


async def test_an_activity_dated_by_a_clock_that_was_ahead_hides_no_later_ones(
    site: Site, tmp_path: Path
):
    now = datetime.now(UTC).replace(microsecond=0)
    stream = Activities(site)
    async with Checking(tmp_path, origin("iiif", stream.url())) as checking:
        stream.put("a", now - timedelta(hours=2))
        stream.put("b", now + timedelta(hours=12))  # the origin's clock is ahead
        assert await checking.check() == {A: "created", B: "created"}
        # It was corrected. The collection is in the order of its datetimes, as it must be.
        stream.put("c", now)
        stream.items.sort(key=lambda item: item["endTime"])
        stream.write()
        assert await checking.check() == {C: "created"}
        stream.delete("a", now + timedelta(seconds=1))
        stream.items.sort(key=lambda item: item["endTime"])
        stream.write()
        assert await checking.check() == {A: "deleted"}


async def test_a_collection_is_not_read_completely_at_each_check_after_a_clock_was_ahead(
    site: Site, tmp_path: Path
):
    now = datetime.now(UTC).replace(microsecond=0)
    stream = Activities(site)
    async with Checking(tmp_path, origin("iiif", stream.url())) as checking:
        for number in range(100):
            stream.put(f"r{number}", now - timedelta(days=200 - number))
        stream.put("b", now + timedelta(hours=12))  # the origin's clock is ahead
        await checking.check()
        stream.put("c", now)  # it was corrected, and the collection is in the order of arrival
        assert await checking.check() == {C: "created"}
        before = site.requests.total()
        stream.put("d", now + timedelta(seconds=1))
        assert await checking.check() == {D: "created"}
        assert site.requests.total() - before < 10


def test_an_event_dated_by_a_clock_that_was_ahead_does_not_stop_the_claims(
    monkeypatch: pytest.MonkeyPatch,
):
    adapter = EventsAdapter(SITE, None, FIELDS)  # type: ignore[arg-type]
    now = datetime.now(UTC).replace(microsecond=0)

    def checked(when: datetime) -> datetime:
        through = adapter._checked([StatedChange(A, when, False, "")])
        assert through is not None
        return from_microseconds(through)

    checked(now - timedelta(seconds=1))
    checked(now + timedelta(hours=12))
    for minutes in range(120):
        later = now + timedelta(minutes=minutes)
        monkeypatch.setattr(event_streams.time, "time", later.timestamp)
        through = checked(later)
    assert through >= later - timedelta(minutes=2)
