"""What a baseline concludes from dumps, archives and pages."""

from __future__ import annotations

from datetime import datetime, timedelta
from random import Random

import pytest
from msgspec.structs import replace

from rsnotify.format.coverage import EARLIEST
from rsnotify.format.model import Capability, Document, Link, Resource
from rsnotify.format.offer import Offer
from rsnotify.sync.actions import DocumentKind, LogNote
from rsnotify.sync.baseline import Baseline, BaselinePolicy, ComparisonSchedule
from rsnotify.sync.pace import Pace
from rsnotify.sync.progress import ComparedList, Progress
from rsnotify.sync.sync_state import SyncState
from tests.core.source import BASE, EPOCH, at

DUMP = Offer(resource_dump=BASE + "dump.xml")
LISTS = Offer(resource_list=BASE + "list.xml")
ARCHIVE = Offer(resource_list_archive=BASE + "archive.xml")
LATER = EPOCH + timedelta(seconds=5)
LIST_INDEX = Document(Capability.RESOURCE_LIST, (Resource(BASE + "part.xml"),), index=True)
FIRST_PAGE = Document(Capability.RESOURCE_LIST, links=(Link("next", "page2.xml"),))
PACKAGE = (Resource(BASE + "package.zip"),)


def test_a_dump_is_no_later_than_the_time_at_which_it_was_sent() -> None:
    baseline = Baseline(DUMP, EPOCH)
    future = LATER + timedelta(days=1)
    assert baseline.read(Document(Capability.RESOURCE_DUMP, PACKAGE, at=future), LATER) is None
    assert baseline.at == LATER


def test_the_manifest_of_a_package_has_no_further_pages() -> None:
    baseline = Baseline(DUMP, EPOCH)
    baseline.read(Document(Capability.RESOURCE_DUMP, PACKAGE, at=LATER))
    assert baseline.next() is not None
    links = (Link("next", "other.xml"),)
    baseline.read(Document(Capability.RESOURCE_DUMP_MANIFEST, at=LATER, links=links))
    assert baseline.next() is None
    assert baseline.complete


def test_the_list_that_an_archive_names_is_no_package() -> None:
    baseline = Baseline(ARCHIVE, EPOCH)
    archived = (Resource(BASE + "old.xml", at=LATER),)
    baseline.read(Document(Capability.RESOURCE_LIST_ARCHIVE, archived))
    fetch = baseline.next()
    assert fetch is not None
    assert (fetch.uri, fetch.package) == (BASE + "old.xml", None)


def test_a_resource_list_is_read_however_old_it_is() -> None:
    baseline = Baseline(LISTS, EPOCH, is_old=lambda _: True)
    assert baseline.read(Document(Capability.RESOURCE_LIST, at=EPOCH)) is not None
    assert baseline.complete


def test_of_an_undated_dump_in_parts_only_the_first_document_tells_whether_it_is_known() -> None:
    index = Document(Capability.RESOURCE_DUMP, (Resource(BASE + "part.xml"),), index=True)
    part = Document(Capability.RESOURCE_DUMP, PACKAGE)
    baseline = Baseline(DUMP, EPOCH, last_dump=part)
    assert baseline.read(index) is None
    following = baseline.next()
    assert following is not None
    assert following.uri == BASE + "part.xml"
    baseline.read(part)
    assert baseline.complete
    assert baseline.undated_dump == index


def test_the_share_that_was_read_is_known_as_far_as_the_parts_are() -> None:
    listed = Document(Capability.RESOURCE_LIST)
    baseline = Baseline(LISTS, EPOCH)
    parts = tuple(Resource(f"{BASE}{number}.xml") for number in range(4))
    shares = [baseline.share_read]
    for document in (replace(listed, resources=parts, index=True), *[listed] * 3, FIRST_PAGE):
        baseline.read(document)
        shares.append(baseline.share_read)
        assert baseline.next() is not None
    baseline.read(listed)
    assert [*shares, baseline.share_read] == [None, None, 0.25, 0.5, 0.75, None, 1.0]


def test_changes_count_from_the_earliest_of_the_lists_on_whichever_is_read_first() -> None:
    for order in ((1, 2), (2, 1)):
        baseline = Baseline(LISTS, EPOCH)
        parts = tuple(Resource(f"{BASE}{number}.xml") for number in order)
        baseline.read(Document(Capability.RESOURCE_LIST, parts, index=True))
        for seconds in order:
            assert baseline.next() is not None
            at = EPOCH + timedelta(seconds=seconds)
            listed = baseline.read(Document(Capability.RESOURCE_LIST, at=at))
            assert listed is not None
            assert listed.at == at
        assert baseline.at == EPOCH + timedelta(seconds=1)


def test_a_resource_list_is_told_apart_by_all_that_its_first_document_shows() -> None:
    entry = (Resource(BASE + "a", hash="sha-256:1"),)
    documents = [
        Document(Capability.RESOURCE_LIST, entry, at=LATER),
        Document(Capability.RESOURCE_LIST, entry, at=EPOCH),
        Document(Capability.RESOURCE_LIST, entry),
        Document(Capability.RESOURCE_LIST, (), at=LATER),
        Document(Capability.RESOURCE_LIST, entry, index=True, at=LATER),
    ]
    fingerprints = []
    for document in documents * 2:
        baseline = Baseline(LISTS, EPOCH)
        baseline.read(document, LATER)
        assert baseline.resource_list is not None
        assert baseline.resource_list.at == document.at
        fingerprints.append(baseline.resource_list.fingerprint)
    assert None not in fingerprints
    assert fingerprints[:5] == fingerprints[5:]
    assert len(set(fingerprints)) == 5


@pytest.mark.parametrize("document", [LIST_INDEX, FIRST_PAGE])
def test_further_documents_of_an_undated_resource_list_may_differ(document: Document) -> None:
    baseline = Baseline(LISTS, EPOCH)
    for each in (document, Document(Capability.RESOURCE_LIST, at=LATER)):
        baseline.read(each)
        assert baseline.resource_list == ComparedList()
        baseline.next()


def test_a_dump_is_no_resource_list() -> None:
    baseline = Baseline(DUMP, EPOCH)
    baseline.read(Document(Capability.RESOURCE_DUMP, at=LATER))
    assert baseline.resource_list is None


def test_the_last_of_an_archives_lists_without_datetimes_is_read() -> None:
    baseline = Baseline(ARCHIVE, EPOCH)
    archived = tuple(Resource(f"{BASE}{number}.xml") for number in range(3))
    baseline.read(Document(Capability.RESOURCE_LIST_ARCHIVE, archived))
    found = [fetch.uri for fetch in iter(baseline.next, None)]
    assert found == [BASE + "2.xml"]


# When everything is compared, and from which documents.


PACE = Pace(compare=240, repair=24)
OFFER = Offer(resource_list="http://a.example/list.xml", resource_dump="http://a.example/dump.xml")


def first_time_due(schedule: ComparisonSchedule) -> int | None:
    return next((now for now in range(2_000) if schedule.is_due(now)), None)


def test_everything_is_compared_once_in_an_interval_and_not_twice_without_a_pull() -> None:
    schedule = ComparisonSchedule(PACE, compared=100, capability_list=None)
    assert first_time_due(schedule) == 340
    schedule.done(350, "http://a.example/capabilities.xml", is_settled=True)
    assert schedule.compared == 350
    assert schedule.capability_list == "http://a.example/capabilities.xml"
    assert not schedule.is_due(9_999), "a pull comes between"
    assert first_time_due(schedule) == 590


def test_a_missing_resource_makes_the_next_comparison_come_early() -> None:
    schedule = ComparisonSchedule(PACE, compared=100, capability_list=None)
    schedule.expedite()
    assert first_time_due(schedule) == 124
    schedule.done(130, None, is_settled=False)
    schedule.is_due(0)
    assert first_time_due(schedule) == 154
    schedule.done(160, None, is_settled=True)
    schedule.is_due(0)
    assert first_time_due(schedule) == 400


def test_a_comparison_that_failed_is_put_off_for_a_part_of_the_interval() -> None:
    schedule = ComparisonSchedule(PACE, compared=100, capability_list=None)
    schedule.expedite()
    schedule.put_off(350)
    assert first_time_due(schedule) == 360


def test_what_a_list_cannot_prove_is_requested_at_first_if_forced_and_at_intervals() -> None:
    """Conditional requests are sent more often: at each poll, but no more than one a second."""
    schedule = ComparisonSchedule(Pace(compare=240, poll=10), compared=100, capability_list=None)
    for now, is_forced, size, unproven, checkable in (
        (100, False, 1, True, True),
        (109.25, False, 10, False, False),  # of two documents each
        (119.25, False, 10, False, False),
        (119.5, False, 10, False, True),
        (139, False, 10, False, True),
        (140, True, 10, True, True),
        (379, False, 10, False, True),
        (380, False, 10, True, True),
    ):
        schedule.begin(now, is_forced=is_forced)
        for has_content in (False, True):
            found, left = schedule.unproven_requests(
                [Resource("unproven")], [Resource("checkable")] * size, has_content=has_content
            )
            assert len(found) + len(left) == 1 + size
            names = {resource.uri for resource in found}
            assert ("unproven" in names) is (has_content or unproven)
            assert ("checkable" in names) is (has_content or checkable)
        schedule.done(now, None, is_settled=True)


def policy(progress: Progress | None) -> tuple[BaselinePolicy, SyncState]:
    state = SyncState(progress, PACE, Random(1))
    return BaselinePolicy(state), state


def first_root(policy: BaselinePolicy) -> DocumentKind:
    return policy.new_baseline(OFFER, reads_old=False).root.kind


def test_an_empty_copy_begins_with_the_dump_and_any_other_with_the_list() -> None:
    assert first_root(policy(None)[0]) is DocumentKind.RESOURCE_DUMP
    assert first_root(policy(Progress(EPOCH, EPOCH))[0]) is DocumentKind.RESOURCE_LIST


def test_if_the_list_did_not_close_a_gap_the_dump_is_tried_next() -> None:
    tried, state = policy(Progress(EPOCH, EPOCH))
    state.frontiers.skip_gap(at(9))
    roots = []
    for _ in range(4):
        tried.needed = True
        roots.append(first_root(tried))
        tried.baseline_ended()
        assert not tried.needed
        tried.pull_ended()
        assert tried.needed
    assert roots == [DocumentKind.RESOURCE_LIST, DocumentKind.RESOURCE_DUMP] * 2
    state.frontiers.baseline(at(9))
    tried.baseline_ended()
    tried.pull_ended()
    assert not tried.needed
    tried.needed = True
    assert first_root(tried) is DocumentKind.RESOURCE_LIST, "it begins again"


def test_only_a_source_that_has_moved_makes_an_old_dump_news() -> None:
    made, _ = policy(Progress(at(5), at(5)))
    assert made.new_baseline(OFFER, reads_old=False)._is_old(at(5))
    assert not made.new_baseline(OFFER, reads_old=False)._is_old(at(6))
    assert not made.new_baseline(OFFER, reads_old=True)._is_old(at(5))


def test_after_the_clock_went_back_lists_of_a_later_time_count_as_undated() -> None:
    restarted, state = policy(Progress(at(9), at(9)))
    restarted.restart(at(3), at(5), can_compare=True)
    assert restarted.needed
    assert state.frontiers.known is None
    baseline = restarted.new_baseline(OFFER, reads_old=False)
    assert baseline.at == at(3)
    assert baseline.root.kind is DocumentKind.RESOURCE_LIST, "the copy is not empty"
    assert baseline._until == at(5)
    restarted.compared(baseline)
    assert restarted.new_baseline(OFFER, reads_old=False)._until is None


def test_without_a_list_of_all_resources_a_source_is_followed_from_where_its_lists_begin() -> None:
    restarted, state = policy(Progress(at(9), at(9)))
    restarted.restart(at(3), at(5), can_compare=False)
    assert not restarted.needed
    assert (state.frontiers.known, state.frontiers.confirmed) == (at(3), at(3))
    assert restarted.new_baseline(OFFER, reads_old=False)._until is None


def test_a_dump_without_at_is_remembered_until_another_was_read() -> None:
    remembering, _ = policy(None)
    dump = Document(Capability.RESOURCE_DUMP, (Resource("a.zip"),))
    for offered in (dump, None):
        baseline = remembering.new_baseline(OFFER, reads_old=False)
        if offered is not None:
            baseline.read(offered)
        remembering.compared(baseline)
        assert remembering.new_baseline(OFFER, reads_old=False)._last_dump == dump
    assert remembering.new_baseline(OFFER, reads_old=True)._last_dump is None


@pytest.mark.parametrize(
    ("confirmed", "can_compare", "baselines", "needed", "gap", "warned"),
    [
        (at(1), True, 0, True, False, False),
        (at(1), True, 1, True, False, False),
        (at(1), True, 2, False, True, True),
        (at(1), False, 0, False, True, True),
        (EARLIEST, False, 0, False, False, False),
    ],
)
def test_a_gap_is_closed_by_a_comparison_or_stays_and_is_reported(
    confirmed: datetime, can_compare: bool, baselines: int, needed: bool, gap: bool, warned: bool
) -> None:
    handling, state = policy(Progress(confirmed, confirmed))
    for _ in range(baselines):
        handling.baseline_ended()
    state.settled = True
    handling.handle_gap(at(5), can_compare=can_compare, cure="")
    assert not state.settled
    assert handling.needed is needed
    assert (state.frontiers.uncovered_gap is not None) is gap
    assert state.frontiers.confirmed == (confirmed if needed else at(5))
    assert [note.warning for note in state.actions if isinstance(note, LogNote)] == [warned]
