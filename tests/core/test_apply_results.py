"""What follows from changes that were applied, or could not be."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from random import Random

import pytest
from msgspec.structs import replace

from rsnotify.errors import ContentMismatch, NotFound, RsnotifyError, StorageError, Unavailable
from rsnotify.format.coverage import EARLIEST, Change, CheckMethod
from rsnotify.format.datetimes import LATEST, Instant
from rsnotify.format.model import ChangeType, Resource
from rsnotify.format.offer import Offer
from rsnotify.sync import follower as apply_results
from rsnotify.sync.actions import LogNote
from rsnotify.sync.catch_up import CatchUp
from rsnotify.sync.doubts import ContinuousAudit
from rsnotify.sync.follower import ApplyResults
from rsnotify.sync.pace import Pace
from rsnotify.sync.pending_changes import UNWAITED
from rsnotify.sync.progress import MissingResource, Progress
from rsnotify.sync.retry import Retry
from rsnotify.sync.sync_state import SyncState
from rsnotify.sync.unconfirmed_changes import verification

NOW = datetime(2026, 1, 1, tzinfo=UTC)
PACE = Pace(gone_after=100, give_up=3, compare=5_000, repair=500, retry=Retry(1, 1))
OFFER = Offer(change_list="http://a.example/changes.xml", resource_list="http://a.example/list.xml")
MISSING, BROKEN = NotFound("http://a.example/a", "404"), Unavailable("http://a.example/a", "off")
UPDATED = ChangeType.UPDATED
PUSHED = Resource("a", change=UPDATED, datetime=NOW, hash="md5:1")
MISMATCH = ContentMismatch("http://a.example/a", "not what was announced")


def listed(name: str, seconds: int = 1) -> Change:
    """Return an entry of a Resource List, whose content a package has."""
    at = NOW + timedelta(seconds=seconds)
    return Change(name, ChangeType.UPDATED, at, Resource(name), package="http://a.example/1.zip")


class Copy:
    def __init__(self, *missing: MissingResource) -> None:
        self.state = SyncState(Progress(NOW, NOW), PACE, Random(1))
        self.catch_up = CatchUp(OFFER, self.state, compared=0)
        self.audit = ContinuousAudit(PACE, self.state.actions)
        self.results = ApplyResults(self.state, self.catch_up, self.audit, missing)

    def dispatch(self, now: float) -> Change:
        (change,) = self.state.pending.dispatch(9, now)
        return change

    def fail(self, now: float, error: RsnotifyError = MISSING) -> None:
        self.results.failed(self.dispatch(now), error, now)

    def notes(self) -> list[bool]:
        """Return which of the notes since the last call are warnings."""
        warnings = [note.warning for note in self.state.actions if isinstance(note, LogNote)]
        self.state.actions.clear()
        return warnings


def synced(*missing: MissingResource) -> Progress:
    return Progress(NOW, NOW, missing=missing)


@pytest.fixture
def copy() -> Copy:
    copy = Copy()
    copy.state.pending.add(listed("a"), since=EARLIEST)
    return copy


@pytest.mark.parametrize(
    ("missing", "expected"),
    [
        (
            MissingResource("a"),
            Change("a", UPDATED, EARLIEST, Resource("a", change=UPDATED), check=CheckMethod.FETCH),
        ),
        (
            MissingResource("a", NOW),
            Change("a", UPDATED, NOW, replace(PUSHED, hash=None), check=CheckMethod.FETCH),
        ),
        (
            MissingResource("a", NOW, PUSHED, NOW),
            Change("a", UPDATED, NOW, PUSHED, check=CheckMethod.COMPARE),
        ),
    ],
    ids=["only pushed", "verified", "listed"],
)
def test_what_was_missing_in_the_last_run_is_fetched_and_stays_a_doubt(
    missing: MissingResource, expected: Change
) -> None:
    copy = Copy(missing)
    copy.results.start()
    assert copy.results.progress() == synced(missing), "and T does not wait for it"
    assert copy.catch_up.comparisons.is_due(500) is (missing.announced == EARLIEST)
    fetched = copy.dispatch(7)
    assert fetched == expected
    copy.results.applied([fetched], 8)
    assert copy.results.progress() == synced()


def test_a_missing_resource_counts_as_announced_as_soon_as_a_list_confirms_the_push(
    copy: Copy,
) -> None:
    announced = listed("a")
    copy.state.unconfirmed.add([announced], 0)
    for now in (1, 10, 20):
        copy.fail(now)
    assert copy.results.progress() == Progress(NOW, NOW, missing=(MissingResource("a"),))
    copy.state.unconfirmed.remove_compared(announced.at)
    missing = MissingResource("a", announced.at, announced.resource, announced.at)
    assert copy.results.progress() == synced(missing)


@pytest.mark.parametrize("is_only_pushed", [True, False])
def test_an_unavailable_resource_that_only_push_announced_is_looked_for_in_the_lists_soon(
    is_only_pushed: bool,
) -> None:
    copy = Copy()
    entry = Resource("a", change=ChangeType.UPDATED, datetime=NOW)
    announced = Change("a", ChangeType.UPDATED, NOW, entry)
    copy.state.pending.add(verification(announced, NOW) if is_only_pushed else announced)
    for now in (1, 10, 20):
        copy.fail(now, MISMATCH)
    assert copy.catch_up.comparisons.is_due(500) is is_only_pushed


def test_a_resource_that_is_missing_for_long_is_removed_and_fetched_again(copy: Copy) -> None:
    missing = MissingResource("a", listed("a").at)
    copy.fail(10)
    assert copy.notes() == [False]
    copy.fail(109.9)
    assert copy.notes() == [False]
    assert not copy.catch_up.comparisons.is_due(500)
    copy.fail(111)
    assert copy.notes() == [True]
    assert copy.catch_up.comparisons.is_due(500), "it shows whether the resource is still listed"
    assert not copy.catch_up.comparisons.is_due(499)
    removal = copy.dispatch(111)
    assert removal == replace(listed("a"), change=ChangeType.DELETED, package=None)
    assert copy.results.progress() == synced(), "it is not removed yet"
    assert copy.results.progress_after([removal]) == synced(missing)
    copy.results.applied([removal], 112)
    assert copy.results.progress() == synced(missing)
    assert copy.state.pending.dispatch(9, 211.9) == []
    fetched = copy.dispatch(212)
    assert fetched == replace(listed("a"), check=CheckMethod.FETCH)
    copy.results.failed(fetched, MISSING, 213)
    assert copy.notes() == [], "that is no news"
    assert copy.state.pending.dispatch(9, 312.9) == []
    assert copy.dispatch(313) == fetched


def test_a_change_that_came_meanwhile_shows_whether_a_resource_exists(copy: Copy) -> None:
    copy.fail(0)
    copy.fail(100)
    removal = copy.dispatch(100)
    copy.state.pending.add(listed("a", 9))
    copy.results.applied([removal], 101)
    assert copy.state.pending.watched == ()
    latest = copy.dispatch(101)
    assert latest == listed("a", 9)
    assert copy.results.progress_after([latest]) == synced()


def test_only_a_resource_that_is_missing_all_the_time_is_gone(copy: Copy) -> None:
    for now, error in ((0, MISSING), (50, BROKEN), (101, MISSING), (150, MISSING)):
        copy.fail(now, error)
    assert copy.dispatch(199).change is ChangeType.UPDATED


@pytest.mark.parametrize(
    ("repairing", "kind", "error", "gone"),
    [
        (True, None, MISSING, True),
        (True, None, BROKEN, False),
        (True, ChangeType.UPDATED, MISSING, False),
        (False, None, MISSING, False),
    ],
)
def test_a_listed_resource_need_not_hold_up_the_repair_of_a_difference(
    repairing: bool, kind: ChangeType | None, error: RsnotifyError, gone: bool
) -> None:
    copy = Copy()
    copy.audit.repairing = repairing
    copy.state.pending.add(replace(listed("a"), resource=Resource("a", change=kind)))
    copy.fail(0, error)
    copy.fail(2, error)
    assert copy.notes() == [False, False]
    copy.fail(4, error)
    assert copy.notes() == [True]
    assert (copy.dispatch(9).change is ChangeType.DELETED) is gone


def test_after_a_failure_the_lists_are_read_as_they_may_say_more(copy: Copy) -> None:
    copy.fail(10, Unavailable("http://a.example/a", "busy", retry_after=30))
    assert copy.state.pending.wakeup() == 40
    assert copy.state.schedule.due is not None
    assert 10.5 <= copy.state.schedule.due <= 11
    change = copy.dispatch(40)
    copy.state.pending.add(replace(listed("a", 5), resource=Resource("a", hash="md5:2")))
    copy.state.schedule.begin()
    copy.notes()
    copy.results.failed(change, BROKEN, 40)
    assert copy.notes() == [], "another change has taken its place"
    assert copy.state.schedule.due is None


def test_of_very_many_missing_resources_some_are_stored_and_t_waits_for_the_others(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(apply_results, "_MAX_MISSING", 2)
    copy = Copy()
    for name in "abc":
        copy.state.pending.add(listed(name), since=EARLIEST)
    for now in (0, 2, 4):
        for change in copy.state.pending.dispatch(9, now):
            copy.results.failed(change, MISSING, now)
    assert len(copy.state.pending.watched) == 2
    assert copy.state.pending.low_water() == EARLIEST, "T waits for the third"


def test_a_server_that_is_away_is_one_warning_for_all_resources() -> None:
    """Its log would have one for each of hundreds of requests that were under way."""
    copy = Copy()
    off, busy = Unavailable("http://a.example/1", "off"), Unavailable("http://a.example/1", "busy")
    gone = NotFound("http://a.example/1", "404")
    warned = []
    for number, (now, error) in enumerate(
        [(0, off), (1, off), (2, busy), (3, busy), (50, gone), (51, gone), (62, busy), (63, busy)]
    ):
        change = listed(f"http://a.example/{number}")
        copy.state.pending.add(change)
        for _ in range(3):
            copy.state.pending.dispatch(9, now + 1_000)
            copy.results.failed(change, error, now)
        warned.append(any(copy.notes()))
        copy.state.pending.applied(change)
    assert warned == [True, False, True, False, True, True, True, False]


def test_an_unavailable_resource_is_fetched_ever_less_often_but_a_missing_one_regularly() -> None:
    copy = Copy(MissingResource("a", NOW))
    copy.results.start()
    now, waits = 0.0, []
    for error in (*[BROKEN] * 8, MISSING):
        copy.fail(now, error)
        wakeup = copy.state.pending.wakeup()
        assert wakeup is not None
        waits.append(wakeup - now)
        now = wakeup
    assert waits == [2, 4, 8, 16, 32, 64, 128, 256, PACE.gone_after]


@pytest.mark.parametrize("since", [LATEST, UNWAITED], ids=["watched", "lost"])
def test_t_waits_for_the_removal_of_no_resource_for_which_it_did_not_wait(since: Instant) -> None:
    copy = Copy()
    copy.state.pending.add(listed("a"), since)
    copy.fail(0)
    copy.fail(PACE.gone_after)
    assert copy.dispatch(PACE.gone_after).change is ChangeType.DELETED
    latest = NOW + timedelta(seconds=5)
    copy.state.frontiers.advance(latest)
    progress = copy.results.progress()
    assert progress is not None
    assert progress.through == latest


@pytest.mark.parametrize(
    ("error", "passed"), [(MISMATCH, True), (StorageError("the disk is full"), False)]
)
def test_t_does_not_pass_a_change_that_a_local_fault_prevents(
    copy: Copy, error: RsnotifyError, passed: bool
) -> None:
    for now in (0, 2, 4):
        copy.fail(now, error)
    assert copy.state.pending.all_given_up
    assert bool(copy.state.pending.watched) is passed


@pytest.mark.parametrize(
    ("wait", "expected"), [(PACE.patience - 0.1, False), (PACE.patience, True)]
)
def test_a_change_is_given_up_if_its_server_asks_for_a_longer_wait_than_patience_allows(
    copy: Copy, wait: float, expected: bool
) -> None:
    copy.fail(0, Unavailable("http://a.example/a", "busy", retry_after=wait))
    assert copy.state.pending.all_given_up is expected


@pytest.mark.parametrize("has_failed", [True, False])
def test_the_lists_are_read_again_unless_they_were_requested_after_the_first_failure(
    copy: Copy, has_failed: bool
) -> None:
    if has_failed:
        copy.fail(8)
    copy.catch_up.begin(10)
    copy.fail(10)
    assert (copy.state.schedule.due is None) is has_failed
