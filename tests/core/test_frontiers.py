"""How far a Destination is synced."""

from __future__ import annotations

from datetime import timedelta

from msgspec.structs import replace

from rsnotify.format.coverage import EARLIEST, Frontier, change_list_coverage, fragment_coverage
from rsnotify.format.model import Capability, ChangeType, Document, Resource
from rsnotify.sync.closed_lists import KnownLists
from rsnotify.sync.frontiers import Gap, ReorderBuffer, SyncFrontiers
from rsnotify.sync.list_fingerprint import ListFingerprint
from rsnotify.sync.progress import ComparedList, Progress
from tests.core.source import at

STEP = timedelta(microseconds=1)
LAST = (("http://a/3", "updated", ""),)


def listed(*seconds: int, from_: int = 0) -> Document:
    resources = tuple(
        Resource(f"http://a/{second}", change=ChangeType.UPDATED, datetime=at(second))
        for second in seconds
    )
    return Document(Capability.CHANGE_LIST, resources, from_=at(from_))


def known_to(second: int) -> SyncFrontiers:
    return SyncFrontiers(Progress(at(second), at(second)), hold=10)


def test_before_a_baseline_there_is_no_t() -> None:
    frontiers = SyncFrontiers(None, hold=10)
    assert frontiers.progress(None) is None
    frontiers.baseline(at(1))
    assert frontiers.progress(EARLIEST) is None
    assert frontiers.progress(None) == Progress(at(1), at(1))


def test_the_next_run_knows_until_when_changes_had_a_coarse_datetime() -> None:
    frontiers = known_to(0)
    minute = Resource("http://a/1", change=ChangeType.UPDATED, datetime=at(60).replace(fold=1))
    document = Document(Capability.CHANGE_LIST, (minute,), from_=at(0), until=at(300))
    frontiers.pull(change_list_coverage(document))
    for low_water in (at(200), None):
        restarted = SyncFrontiers(frontiers.progress(low_water), hold=10)
        assert restarted.may_lack_known(at(119))
        assert not restarted.may_lack_known(at(120))


def test_a_run_that_ends_before_a_deletion_is_applied_leaves_the_rereading_to_the_next() -> None:
    stored = KnownLists(at(9), b"checksums")
    frontiers = SyncFrontiers(Progress(at(9), at(9), closed=stored), hold=10)
    frontiers.know_closed(KnownLists(at(3), b"more", compared=at(5)))
    progress = frontiers.progress(at(8))
    assert progress is not None
    assert progress.closed == KnownLists(at(3), b"checksums", compared=at(5))


def test_a_change_at_the_beginning_of_the_calendar_is_read_again() -> None:
    assert Frontier.at(EARLIEST, LAST).joint == EARLIEST
    assert Frontier.at(at(1), LAST).joint == at(1) - STEP


def test_t_is_just_before_the_earliest_pending_change() -> None:
    frontiers = known_to(0)
    frontiers.pull(change_list_coverage(listed(1, 2, 3)))
    progress = frontiers.progress(at(2))
    assert progress == Progress(at(2) - STEP, at(2) - STEP)
    assert frontiers.progress(None) == Progress(at(3), at(3), LAST, running=True)


def test_a_change_a_microsecond_after_t_is_new() -> None:
    late = Resource("http://a/late", change=ChangeType.UPDATED, datetime=at(1) + STEP)
    document = Document(Capability.CHANGE_LIST, (*listed(1).resources, late), from_=at(0))
    frontiers = SyncFrontiers(Progress(at(1), at(1)), hold=10)
    found = frontiers.push(fragment_coverage(replace(document, from_=at(1))))
    assert late.uri in [change.uri for change in found]
    assert late.uri in [change.uri for change in frontiers.pull(change_list_coverage(document))]


def test_only_what_describes_a_time_before_the_end_of_an_uncovered_gap_is_old() -> None:
    frontiers = known_to(0)
    frontiers.skip_gap(at(5))
    assert frontiers.covers(at(5) - STEP)
    assert not frontiers.covers(at(5))
    frontiers.baseline(at(5))
    assert frontiers.covers(at(5))


def test_t_never_goes_back() -> None:
    frontiers = known_to(5)
    progress = frontiers.progress(at(3))
    assert progress is not None
    assert progress.through == at(5)


def test_changes_announced_only_by_push_are_not_confirmed() -> None:
    frontiers = known_to(0)
    assert len(frontiers.push(fragment_coverage(listed(1, 2)))) == 2
    assert frontiers.progress(None) == Progress(at(2), at(0))
    assert len(frontiers.pull(change_list_coverage(listed(1, 2)))) == 2


def test_withheld_changes_that_are_pending_are_read_again_after_a_crash() -> None:
    frontiers = known_to(0)
    frontiers.push(fragment_coverage(listed(3, from_=0)))
    assert frontiers.progress(None) == Progress(at(3), at(0))
    frontiers.pull(change_list_coverage(listed(1, 2, 3)))
    assert frontiers.progress(at(1)) == Progress(at(3), at(1) - STEP)
    assert frontiers.progress(EARLIEST) == Progress(at(3), at(1) - STEP)
    assert frontiers.progress(at(2)) == Progress(at(3), at(2) - STEP)
    assert frontiers.progress(None) == Progress(at(3), at(3), LAST, running=True)


def test_fragments_beyond_a_gap_are_joined_in_order_when_it_is_filled() -> None:
    frontiers = known_to(0)
    assert frontiers.push(fragment_coverage(listed(4, from_=3))) == []
    assert frontiers.push(fragment_coverage(listed(3, from_=2))) == []
    assert frontiers.has_push_gap
    fresh = frontiers.push(fragment_coverage(listed(1, 2)))
    assert [change.at for change in fresh] == [at(1), at(2), at(3), at(4)]
    assert not frontiers.has_push_gap


def test_too_many_fragments_beyond_a_gap_are_discarded_but_remembered_as_announced() -> None:
    frontiers = SyncFrontiers(Progress(at(0), at(0)), hold=1)
    frontiers.push(fragment_coverage(listed(4, from_=3)))
    frontiers.push(fragment_coverage(listed(5, from_=4)))
    frontiers.pull(change_list_coverage(listed(1, 2, 3)))
    assert len(frontiers.join_held()) == 1
    assert frontiers.known == at(4)
    assert frontiers.has_push_gap
    frontiers.pull(change_list_coverage(listed(1, 2, 3, 4, 5)))
    assert not frontiers.has_push_gap


def test_a_fragment_beyond_a_gap_received_over_several_transports_is_held_once() -> None:
    frontiers = SyncFrontiers(Progress(at(0), at(0)), hold=2)
    for _ in range(3):
        frontiers.push(fragment_coverage(listed(4, from_=3)))
    frontiers.push(fragment_coverage(listed(5, from_=4)))
    frontiers.push(fragment_coverage(listed(1, 2, 3)))
    assert frontiers.known == at(5)
    assert not frontiers.has_push_gap


def test_fragments_without_changes_beyond_a_gap_are_limited_as_well() -> None:
    held = ReorderBuffer(limit=5)
    assert count_added(held) == 5
    assert not held.is_ahead_of(at(0))
    assert count_added(held) == 5, "there is space again"
    held.add(fragment_coverage(listed(from_=3)))
    held.clear()
    assert count_added(held) == 5


def count_added(held: ReorderBuffer) -> int:
    """Add more fragments than fit, and return how many join the first."""
    for begin in range(1, 20):
        held.add(fragment_coverage(listed(from_=begin)))
    return sum(held.pop_joining(at(20)) is not None for _ in range(20))


def test_t_waits_before_a_gap_until_a_younger_resource_list_was_compared() -> None:
    frontiers = known_to(1)
    frontiers.skip_gap(at(5))
    frontiers.pull(change_list_coverage(listed(6, from_=5)))
    assert frontiers.known == at(6)
    assert frontiers.progress(None) == Progress(at(1), at(1))
    frontiers.baseline(at(4))
    assert frontiers.uncovered_gap is not None
    frontiers.baseline(at(5))
    progress = frontiers.progress(None)
    assert progress is not None
    assert progress.through == at(6)


def test_an_uncovered_gap_makes_every_set_news_that_is_as_late_as_its_end() -> None:
    frontiers = known_to(5)
    assert frontiers.covers(at(5))
    assert not frontiers.covers(at(6))
    frontiers.skip_gap(at(8))
    assert frontiers.covers(at(7))
    assert not frontiers.covers(at(8))


def test_a_second_gap_extends_the_first_until_a_set_as_late_as_both_was_compared() -> None:
    frontiers = known_to(1)
    frontiers.skip_gap(at(5))
    frontiers.skip_gap(at(9))
    assert frontiers.uncovered_gap == Gap(at(1), at(9))


def test_a_gap_begins_within_a_second_that_was_not_over_when_it_was_read() -> None:
    running, over = known_to(0), known_to(0)
    running.pull(change_list_coverage(listed(1, 2)))
    over.pull(change_list_coverage(listed(1, 2), sent=at(60)))
    for frontiers, begins in ((running, at(2) - STEP), (over, at(2))):
        frontiers.skip_gap(at(9))
        assert frontiers.uncovered_gap == Gap(begins, at(9))


def test_a_fragment_dated_a_day_ahead_of_all_that_is_known_advances_nothing() -> None:
    day = 24 * 60 * 60
    for today in (None, at(0)):
        frontiers = known_to(0)
        assert frontiers.push(fragment_coverage(listed(day + 1)), today) == []
        assert frontiers.known == at(0)
        assert frontiers.has_push_gap
        assert len(frontiers.push(fragment_coverage(listed(day)), today)) == 1
        assert frontiers.known == at(day)
    assert len(known_to(0).push(fragment_coverage(listed(day + 1)), today=at(1))) == 1


def test_a_restart_at_an_earlier_instant_forgets_what_was_known_after_it() -> None:
    frontiers = known_to(9)
    frontiers.push(fragment_coverage(listed(14, from_=13)))
    frontiers.skip_gap(at(12))
    frontiers.reset(at(4))
    assert not frontiers.has_push_gap
    assert frontiers.uncovered_gap is None
    assert (frontiers.known, frontiers.confirmed) == (at(4), at(4))
    assert frontiers.progress(at(3)) == Progress(at(4), at(4)), "T does not go back any further"
    frontiers.reset()
    assert (frontiers.known, frontiers.confirmed) == (None, EARLIEST)
    assert frontiers.progress(None) is None


def test_a_restart_continues_with_what_was_stored() -> None:
    for running in (True, False):
        stored = Progress(at(2), at(2), (("http://a/2", "updated", ""),), running=running)
        frontiers = SyncFrontiers(stored, hold=10)
        assert frontiers.frontier.running is running
        assert frontiers.push(fragment_coverage(listed(2, from_=1))) == [], "it was seen"
        assert frontiers.progress(None) == stored
    behind = Progress(at(3), at(2), (("http://a/2", "updated", ""),))
    frontiers = SyncFrontiers(behind, hold=10)
    assert frontiers.progress(None) == Progress(at(3), at(2), behind.seen)
    assert [change.at for change in frontiers.pull(change_list_coverage(listed(2, 3)))] == [at(3)]


def test_what_was_seen_at_an_earlier_instant_is_new_at_t() -> None:
    again = replace(listed(2, from_=1).resources[0], datetime=at(3))
    frontiers = SyncFrontiers(Progress(at(3), at(2), (("http://a/2", "updated", ""),)), hold=10)
    fragment = fragment_coverage(replace(listed(from_=1), resources=(again,)))
    assert [change.at for change in frontiers.push(fragment)] == [at(3)]


def test_changes_of_a_fragment_without_from_count_and_advance_nothing() -> None:
    frontiers = known_to(2)
    fragment = fragment_coverage(replace(listed(1, 3), from_=None))
    assert [change.at for change in frontiers.push(fragment)] == [at(3)]
    assert frontiers.known == at(2)
    assert SyncFrontiers(None, hold=10).push(fragment) == []


def test_a_hub_that_repeats_the_last_change_of_a_list_announces_nothing_new() -> None:
    frontiers = known_to(1)
    frontiers.pull(change_list_coverage(listed(2)))
    assert frontiers.push(fragment_coverage(listed(2, from_=1))) == []


def test_after_a_baseline_a_document_has_to_begin_before_the_second_of_its_list() -> None:
    frontiers = known_to(1)
    frontiers.baseline(at(5))
    assert frontiers.frontier.joint == at(5) - STEP
    frontiers.skip_gap(at(9))
    assert frontiers.frontier.joint == at(9)


def test_the_fingerprint_of_a_list_shows_whether_its_changes_are_applied() -> None:
    frontiers = known_to(0)
    for second in (1, 2):
        frontiers.pull(change_list_coverage(listed(second)))
        frontiers.prefix = ListFingerprint("http://a/list", at(0), at(second))
        for low_water, is_applied in ((at(second), False), (None, True)):
            foreseen = frontiers.progress_at(low_water)
            progress = frontiers.progress(low_water)
            assert progress is not None
            assert progress == foreseen
            assert progress.prefix == replace(frontiers.prefix, is_superseded=not is_applied)
    frontiers.supersede_prefix()
    compared = ListFingerprint("http://a/list", at(0), at(2), is_superseded=True)
    assert frontiers.prefix == compared, "the next list is compared, and shows what is lost"
    progress = frontiers.progress(None)
    assert progress is not None
    assert progress.prefix == compared
    assert SyncFrontiers(progress, hold=10).prefix == compared


def test_a_compared_resource_list_is_stored_once_its_differences_are_applied() -> None:
    frontiers = known_to(0)
    first, second = ComparedList(b"first", at(0)), ComparedList(b"second", at(1))
    for last_list, low_water, stored in (
        (first, EARLIEST, None),
        (first, at(0), first),
        (second, EARLIEST, first),
        (second, None, second),
    ):
        frontiers.last_list, frontiers.closed = last_list, KnownLists(last_list.at)
        for progress in (frontiers.progress_at(low_water), frontiers.progress(low_water)):
            assert progress is not None
            assert progress.last_list == stored
            assert progress.closed == (KnownLists() if low_water else frontiers.closed)
    assert SyncFrontiers(progress, hold=10).last_list == second
    frontiers.reset(at(0))
    assert frontiers.last_list is None


def test_the_next_run_finds_a_gap_again_that_push_has_passed() -> None:
    frontiers = SyncFrontiers(Progress(at(9), at(2)), hold=10)
    frontiers.skip_gap(at(12))
    assert frontiers.progress(None) == Progress(at(9), at(2))
    frontiers.last_list, frontiers.coarse_until = ComparedList(b"list", at(1)), at(4)
    compared = ComparedList(None, at(1))  # as everything is compared again
    stored = Progress(at(9), at(2), last_list=compared, coarse_until=at(4))
    assert frontiers.progress(None) == stored
