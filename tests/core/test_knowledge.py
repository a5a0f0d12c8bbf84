"""How far a Destination may say that it is synced."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

from rsnotify.format.coverage import EARLIEST, change_list_coverage, fragment_coverage
from rsnotify.format.model import Document, Resource
from rsnotify.format.vocabulary import Capability, ChangeType
from rsnotify.sync.actions import Progress
from rsnotify.sync.frontiers import SyncFrontiers
from rsnotify.sync.reorder_buffer import ReorderBuffer

START = datetime(2026, 1, 1, tzinfo=UTC)
STEP = timedelta(microseconds=1)
LAST = (("http://a/3", "updated", ""),)


def at(seconds: int) -> datetime:
    return START + timedelta(seconds=seconds)


def listed(*seconds: int, from_: int = 0) -> Document:
    resources = tuple(
        Resource(f"http://a/{second}", change=ChangeType.UPDATED, datetime=at(second))
        for second in seconds
    )
    return Document(Capability.CHANGE_LIST, resources, from_=at(from_))


def knowing(second: int) -> SyncFrontiers:
    return SyncFrontiers(Progress(at(second), at(second)), hold=10)


def test_before_a_baseline_there_is_no_t() -> None:
    knowledge = SyncFrontiers(None, hold=10)
    assert knowledge.progress(None) is None
    knowledge.baseline(at(1))
    assert knowledge.progress(EARLIEST) is None
    assert knowledge.progress(None) == Progress(at(1), at(1))


def test_t_stands_just_before_the_earliest_change_that_is_owed() -> None:
    knowledge = knowing(0)
    knowledge.pull(change_list_coverage(listed(1, 2, 3)))
    progress = knowledge.progress(at(2))
    assert progress == Progress(at(2) - STEP, at(2) - STEP)
    assert knowledge.progress(None) == Progress(at(3), at(3), LAST, running=True)


def test_t_never_goes_back() -> None:
    knowledge = knowing(5)
    progress = knowledge.progress(at(3))
    assert progress is not None
    assert progress.through == at(5)


def test_what_only_push_has_told_is_not_confirmed() -> None:
    knowledge = knowing(0)
    assert len(knowledge.push(fragment_coverage(listed(1, 2)))) == 2
    assert knowledge.progress(None) == Progress(at(2), at(0))
    assert len(knowledge.pull(change_list_coverage(listed(1, 2)))) == 2


def test_what_a_hub_withheld_and_is_still_owed_is_read_again_after_a_crash() -> None:
    knowledge = knowing(0)
    knowledge.push(fragment_coverage(listed(3, from_=0)))
    assert knowledge.progress(None) == Progress(at(3), at(0))
    knowledge.pull(change_list_coverage(listed(1, 2, 3)))
    assert knowledge.progress(at(1)) == Progress(at(3), at(1) - STEP)
    assert knowledge.progress(EARLIEST) == Progress(at(3), at(1) - STEP)
    assert knowledge.progress(at(2)) == Progress(at(3), at(2) - STEP)
    assert knowledge.progress(None) == Progress(at(3), at(3), LAST, running=True)


def test_fragments_beyond_a_gap_are_taken_up_in_order_when_it_is_filled() -> None:
    knowledge = knowing(0)
    assert knowledge.push(fragment_coverage(listed(4, from_=3))) == []
    assert knowledge.push(fragment_coverage(listed(3, from_=2))) == []
    assert knowledge.gap
    fresh = knowledge.push(fragment_coverage(listed(1, 2)))
    assert [change.at for change in fresh] == [at(1), at(2), at(3), at(4)]
    assert not knowledge.gap


def test_too_many_fragments_beyond_a_gap_are_let_go_but_remembered_as_announced() -> None:
    knowledge = SyncFrontiers(Progress(at(0), at(0)), hold=1)
    knowledge.push(fragment_coverage(listed(4, from_=3)))
    knowledge.push(fragment_coverage(listed(5, from_=4)))
    knowledge.pull(change_list_coverage(listed(1, 2, 3)))
    assert len(knowledge.join_held()) == 1
    assert knowledge.known == at(4)
    assert knowledge.gap
    knowledge.pull(change_list_coverage(listed(1, 2, 3, 4, 5)))
    assert not knowledge.gap


def test_a_fragment_beyond_a_gap_that_comes_by_several_ways_is_held_once() -> None:
    knowledge = SyncFrontiers(Progress(at(0), at(0)), hold=2)
    for _ in range(3):
        knowledge.push(fragment_coverage(listed(4, from_=3)))
    knowledge.push(fragment_coverage(listed(5, from_=4)))
    knowledge.push(fragment_coverage(listed(1, 2, 3)))
    assert knowledge.known == at(5)
    assert not knowledge.gap


def test_beyond_a_gap_fragments_without_changes_are_not_kept_without_end() -> None:
    held = ReorderBuffer(limit=5)
    for begin in range(1, 20):
        held.hold(fragment_coverage(listed(from_=begin)))
    kept = 0
    while held.next(at(20)) is not None:
        kept += 1
    assert kept == 5
    assert not held.unexplained(at(0))
    held.hold(fragment_coverage(listed(from_=3)))
    assert held.unexplained(at(0)), "there is room again"


def test_t_waits_before_a_hole_until_a_younger_resource_list_was_compared() -> None:
    knowledge = knowing(1)
    knowledge.leave_open(at(5))
    knowledge.pull(change_list_coverage(listed(6, from_=5)))
    assert knowledge.known == at(6)
    assert knowledge.progress(None) == Progress(at(1), at(1))
    knowledge.baseline(at(4))
    assert knowledge.hole is not None
    knowledge.baseline(at(5))
    progress = knowledge.progress(None)
    assert progress is not None
    assert progress.through == at(6)
