"""What a Destination does if documents are broken, and how often it requests them."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from random import Random

import pytest
from msgspec.structs import replace

from rsnotify.errors import (
    ContentMismatch,
    FetchError,
    Gone,
    MalformedDocument,
    NotFound,
    RsnotifyError,
    Unavailable,
)
from rsnotify.format.coverage import Change
from rsnotify.format.model import Capability, ChangeType, Document, Resource
from rsnotify.format.offer import Offer
from rsnotify.sync.actions import Apply, Compare, Discover, DocumentKind, Fetch, LogNote
from rsnotify.sync.poll_schedule import SPEEDUP_AFTER_NEWS
from rsnotify.sync.progress import MissingResource, Progress
from tests.core.source import at
from tests.core.wire import Wire
from tests.core.world import BASE, EPOCH, EVERYTHING, PACE, Destination, Source


def malformed() -> RsnotifyError:
    return MalformedDocument("truncated", source="it")


def away() -> FetchError:
    return Unavailable("it", "no answer")


@pytest.mark.parametrize("failure", [malformed, away])
def test_a_dump_that_stays_broken_is_replaced_by_the_list_after_some_attempts(
    failure: Callable[[], RsnotifyError],
) -> None:
    wire = Wire(EVERYTHING)
    for _ in range(PACE.baseline_after - 1):
        assert wire.requested() == [DocumentKind.RESOURCE_DUMP]
        wire.answer(failure())
        assert wire.requested() == []
        wire.wait()
    wire.answer(failure())
    assert wire.requested() == [DocumentKind.RESOURCE_LIST]


def test_a_change_list_that_stays_broken_is_replaced_by_the_change_dump() -> None:
    wire = Wire(EVERYTHING, Progress(EPOCH, EPOCH))
    for _ in range(PACE.baseline_after - 1):
        wire.answer(malformed())
        wire.wait()
    wire.answer(malformed())
    assert wire.requested() == [DocumentKind.CHANGE_LIST_ARCHIVE]
    wire.answer(malformed())
    assert wire.requested() == [DocumentKind.CHANGE_DUMP]
    wire.answer(Document(Capability.CHANGE_DUMP, from_=EPOCH))
    wire.answer(malformed())
    assert wire.requested() == []
    assert wire.follower.failures.count == PACE.baseline_after
    assert not wire.follower.level


def test_a_change_list_that_stays_broken_costs_a_baseline_less_and_less_often() -> None:
    wire = Wire(EVERYTHING, Progress(EPOCH, EPOCH))
    baselines = []
    for _ in range(500):
        if wire.requested() == [DocumentKind.RESOURCE_LIST]:
            baselines.append(wire.follower.failures.count)
            wire.answer(Document(Capability.RESOURCE_LIST, at=EPOCH))
            wire.actions = wire.follower.differing((), wire.now)
            wire.actions = wire.follower.unlisted((), wire.now)
        elif wire.requested():
            wire.answer(malformed())
        else:
            wire.wait()
    assert baselines == [3, 6, 12, 24, 48, 96]


def test_a_package_that_vanished_makes_the_follower_discover_again() -> None:
    wire = Wire(Offer(change_dump=EVERYTHING.change_dump), Progress(EPOCH, EPOCH))
    packages = (Resource("a.zip"),)
    wire.answer(Document(Capability.CHANGE_DUMP, packages, from_=EPOCH))
    wire.answer(NotFound("a.zip", "404"))
    assert Discover() in wire.actions
    assert wire.requested() == []


def test_the_next_package_is_requested_once_most_of_the_last_is_applied() -> None:
    wire = Wire(Offer(resource_dump=EVERYTHING.resource_dump))
    packages = (Resource("a.zip"), Resource("b.zip"))
    wire.answer(Document(Capability.RESOURCE_DUMP, packages, at=EPOCH))
    entries = tuple(Resource(f"{BASE}{n}", path=f"/{n}") for n in range(3 * PACE.in_flight))
    wire.answer(Document(Capability.RESOURCE_DUMP_MANIFEST, entries, at=EPOCH))
    (compare,) = [action for action in wire.actions if isinstance(action, Compare)]
    actions = wire.follower.differing(compare.resources, 0.0)
    applied = 0
    while not any(isinstance(action, Fetch) for action in actions):
        (apply,) = actions
        assert isinstance(apply, Apply)
        assert {change.package for change in apply.changes} == {BASE + "a.zip"}
        assert len(apply.changes) <= PACE.in_flight
        applied += len(apply.changes)
        actions = wire.follower.applied(apply.changes, 0.0)
    assert applied >= len(entries) - PACE.in_flight


def test_an_entry_out_of_order_in_a_package_is_fetched_instead() -> None:
    late, early = EPOCH + timedelta(seconds=5), EPOCH + timedelta(seconds=1)
    wire = Wire(Offer(change_dump=EVERYTHING.change_dump), Progress(late, late))
    wire.answer(Document(Capability.CHANGE_DUMP, (Resource("a.zip"),), from_=EPOCH))
    entries = [
        Resource(BASE + name, change=ChangeType.UPDATED, datetime=at, path="/x")
        for name, at in (("new", late + timedelta(seconds=1)), ("old", early))
    ]
    wire.answer(Document(Capability.CHANGE_DUMP_MANIFEST, tuple(entries), from_=EPOCH))
    (apply,) = [action for action in wire.actions if isinstance(action, Apply)]
    packages = {change.uri: change.package for change in apply.changes}
    assert packages == {BASE + "new": BASE + "a.zip", BASE + "old": None}


SECOND = timedelta(seconds=1)


def changes(capability: str, from_: timedelta, *seconds: int) -> Document:
    entries = tuple(
        Resource(
            f"{BASE}{second}",
            change=ChangeType.UPDATED,
            datetime=EPOCH + second * SECOND,
            path=f"/{second}",
        )
        for second in seconds
    )
    return Document(capability, entries, from_=EPOCH + from_)


def applied(wire: Wire) -> tuple[Change, ...]:
    (apply,) = [action for action in wire.actions if isinstance(action, Apply)]
    return apply.changes


def test_nothing_is_unpacked_from_a_dump_older_than_the_copy() -> None:
    """Resources deleted since would come back; a GET shows whether they exist."""
    wire = Wire(Offer(resource_dump="d"), Progress(EPOCH + 9 * SECOND, EPOCH + 9 * SECOND))
    wire.answer(Document(Capability.RESOURCE_DUMP, (Resource("a.zip"),)))
    entry = Resource(BASE + "a", path="/a", lastmod=EPOCH + SECOND)
    wire.answer(Document(Capability.RESOURCE_DUMP_MANIFEST, (entry,)))
    (compare,) = [action for action in wire.actions if isinstance(action, Compare)]
    wire.actions = wire.follower.differing(compare.resources, 0.0)
    assert [change.package for change in applied(wire)] == [None]


@pytest.mark.parametrize(("dated", "is_settled"), [(5, False), (25, True)])
def test_an_entry_before_an_unavailable_change_does_not_settle_it_whatever_at_its_list_states(
    dated: int, is_settled: bool
) -> None:
    hashes = [f"sha-256:{digit * 64}" for digit in "12"]
    entry = Resource(BASE + "a", change=ChangeType.UPDATED, datetime=at(20), hash=hashes[1])
    missing = MissingResource(entry.uri, at(20), entry, at(20))
    offer = Offer(resource_list=BASE + "r", change_list=BASE + "c")
    wire = Wire(offer, Progress(at(30), at(30), missing=(missing,)), compare=0.0)
    (fetch,) = [action for action in wire.actions if isinstance(action, Fetch)]
    wire.follower.failed(*applied(wire), Unavailable(entry.uri, "503"), wire.now)
    listed = Resource(entry.uri, lastmod=at(dated), hash=hashes[0])
    document = Document(Capability.RESOURCE_LIST, (listed,), at=at(60))
    wire.follower.fetched(fetch, document, wire.now)
    wire.follower.differing([], wire.now)  # the copy has the listed version
    wire.follower.unlisted([], wire.now)
    assert (wire.follower.pending == 0) is is_settled


def test_a_package_without_datetimes_is_requested_once() -> None:
    wire = Wire(Offer(change_dump=BASE + "d"), Progress(EPOCH, EPOCH))
    dump = Document(Capability.CHANGE_DUMP, (Resource("a.zip", length=10),), from_=EPOCH)
    wire.answer(dump)
    wire.answer(changes(Capability.CHANGE_DUMP_MANIFEST, 0 * SECOND, 1))
    wire.actions = wire.follower.applied(applied(wire), 0.0)
    wire.wait()
    wire.answer(dump)
    assert wire.requested() == []
    assert wire.follower.level


def test_a_change_dump_without_its_last_package_may_be_outdated() -> None:
    package = Resource("a.zip", length=10, from_=EPOCH, until=EPOCH + SECOND)
    wire = Wire(Offer(change_dump=BASE + "d"), Progress(EPOCH, EPOCH))
    dump = Document(Capability.CHANGE_DUMP, (package,), from_=EPOCH)
    wire.answer(dump)
    wire.answer(changes(Capability.CHANGE_DUMP_MANIFEST, 0 * SECOND, 1))
    wire.actions = wire.follower.applied(applied(wire), 0.0)
    for resources, is_level in (((package,), True), ((), False), ((package,), True)):
        wire.wait()
        wire.answer(replace(dump, resources=resources))
        assert wire.follower.level is is_level


def test_the_next_package_of_changes_waits_for_the_last_as_well() -> None:
    wire = Wire(Offer(change_dump=BASE + "d"), Progress(EPOCH, EPOCH))
    packages = (Resource("a.zip"), Resource("b.zip"))
    wire.answer(Document(Capability.CHANGE_DUMP, packages, from_=EPOCH))
    many = range(1, 2 * PACE.in_flight + 1)
    wire.answer(changes(Capability.CHANGE_DUMP_MANIFEST, 0 * SECOND, *many))
    assert wire.requested() == []
    wire.actions = wire.follower.applied(applied(wire), 0.0)
    assert wire.requested() == [DocumentKind.CHANGE_DUMP]


def test_a_dump_with_retry_after_is_not_replaced_by_the_list() -> None:
    wire = Wire(EVERYTHING)
    for _ in range(PACE.baseline_after + 1):
        wire.answer(Unavailable("it", "busy", retry_after=5))
        assert wire.requested() == []
        assert wire.wait() >= 5


def test_a_broken_package_is_retried_less_and_less_often() -> None:
    wire = Wire(Offer(resource_dump=EVERYTHING.resource_dump))
    waits = []
    for _ in range(5):
        packages = (Resource("a.zip"),)
        wire.answer(Document(Capability.RESOURCE_DUMP, packages, at=EPOCH))
        wire.answer(malformed())
        waits.append(wire.wait())
    assert waits == [PACE.poll * 2**n for n in range(1, 6)]


def test_failing_changes_make_it_stuck_only_once_the_documents_are_read() -> None:
    wire = Wire(Offer(change_list="c"), Progress(EPOCH, EPOCH), give_up=1)
    wire.answer(changes(Capability.CHANGE_LIST, 0 * SECOND, 1))
    (change,) = applied(wire)
    wire.actions = wire.follower.failed(change, NotFound(BASE, "404"), 0.0)
    assert not wire.follower.is_stuck(wire.now), "the lists may show why it failed"
    while not wire.requested():
        wire.wait()
    wire.answer(malformed())
    assert not wire.follower.is_stuck(wire.now)
    while not wire.requested():
        wire.wait()
    wire.answer(changes(Capability.CHANGE_LIST, 0 * SECOND, 1))
    assert wire.follower.is_stuck(wire.now)


def test_a_resource_is_not_given_up_before_its_latest_change_has_failed() -> None:
    def listed(second: int) -> Document:
        entry = Resource(BASE + "a", change=ChangeType.UPDATED, datetime=at(second))
        return Document(Capability.CHANGE_LIST, (entry,), from_=EPOCH)

    def read_or_wait(second: int) -> None:
        if wire.requested():
            wire.answer(listed(second))
        else:
            wire.wait()

    def read(second: int) -> None:
        while not wire.requested():
            wire.wait()
        wire.answer(listed(second))

    wire = Wire(Offer(change_list="c"), Progress(EPOCH, EPOCH), give_up=3)
    read(1)
    (change,) = applied(wire)
    for second in (2, 3, 4):
        read(second)
        wire.actions = wire.follower.failed(change, ContentMismatch(BASE, "hash"), wire.now)
        while not any(isinstance(action, Apply) for action in wire.actions):
            read_or_wait(second)
        (change,) = applied(wire)
    read(4)
    assert not wire.follower.is_stuck(wire.now), "the change of second 4 has not failed"
    wire.actions = wire.follower.failed(change, ContentMismatch(BASE, "hash"), wire.now)
    read(4)
    assert wire.follower.is_stuck(wire.now)


def deletions_after(
    wire: Wire, error: FetchError, *times: float, before: FetchError | None = None
) -> list[str]:
    """Return the deletions after a GET for the only change has failed at these times.

    Args:
        wire: The follower.
        error: How it failed.
        times: When.
        before: How it failed the first time, if differently.
    """
    wire.answer(changes(Capability.CHANGE_LIST, 0 * SECOND, 1))
    actions = wire.actions
    for now in times:
        (apply,) = [action for action in actions if isinstance(action, Apply)]
        failure = before if before is not None and now == times[0] else error
        actions = wire.follower.failed(apply.changes[0], failure, now)
        if now != times[-1]:
            actions = wire.follower.tick(times[times.index(now) + 1])
    dispatched = [action.changes for action in actions if isinstance(action, Apply)]
    return [change.uri for (change,) in dispatched if change.change is ChangeType.DELETED]


MISSING, GONE = NotFound("it", "404"), Gone("it", "410")
TRIES = (0, 1, 3, 5, 7, 12, 21, 38, 71, 136, 265, 522)


def patient() -> Wire:
    return Wire(Offer(change_list="c"), Progress(EPOCH, EPOCH), gone_after=600.0)


@pytest.mark.parametrize(
    ("error", "before", "times", "is_deleted"),
    [
        (MISSING, None, (0, 300, 600), True),
        (MISSING, None, TRIES, False),  # content may lag behind the entry that announces it
        (MISSING, away(), (0, 700, 1299), False),  # while its server is unreachable
        (MISSING, away(), (0, 700, 1300), True),
        (GONE, None, (0, 300), False),  # no sooner than after a 404
        (GONE, None, (0, 300, 600), True),
    ],
)
def test_a_resource_that_is_missing_for_long_counts_as_deleted(
    error: FetchError, before: FetchError | None, times: tuple[float, ...], is_deleted: bool
) -> None:
    deleted = deletions_after(patient(), error, *times, before=before)
    assert deleted == ([f"{BASE}1"] if is_deleted else [])


def test_t_waits_at_first_for_content_that_lags_and_then_passes_it_as_missing() -> None:
    wire = patient()
    deletions_after(wire, MISSING, *TRIES[:4])
    assert wire.follower.progress is not None
    assert wire.follower.progress.through < EPOCH + SECOND
    wire = patient()
    deletions_after(wire, MISSING, *TRIES)
    assert not wire.follower.level
    assert wire.follower.progress is not None
    assert wire.follower.progress.through == EPOCH + SECOND
    assert [one.uri for one in wire.follower.progress.missing] == [f"{BASE}1"]


def test_after_a_baseline_in_whole_seconds_the_last_closed_list_is_read() -> None:
    wire = Wire(Offer(resource_list="r", change_list="c", change_list_archive="a"))
    wire.answer(Document(Capability.RESOURCE_LIST, at=EPOCH + SECOND))
    wire.actions = wire.follower.differing((), 0.0)
    wire.actions = wire.follower.unlisted((), 0.0)
    wire.answer(changes(Capability.CHANGE_LIST, SECOND))
    assert wire.requested() == [DocumentKind.CHANGE_LIST_ARCHIVE]


# How often


def test_a_list_out_of_order_is_no_news_each_time() -> None:
    wire = Wire(Offer(change_list="c"), Progress(EPOCH, EPOCH))
    waits = []
    for _ in range(4):
        wire.answer(changes(Capability.CHANGE_LIST, 0 * SECOND, 2, 1))
        while any(isinstance(action, Apply) for action in wire.actions):
            wire.actions = wire.follower.applied(applied(wire), wire.now)
        waits.append(wire.wait())
    assert waits == [PACE.poll / SPEEDUP_AFTER_NEWS * 2**n for n in range(4)]


def polled(source: Source) -> Destination:
    destination = Destination(source, Random(1), Offer(change_list=EVERYTHING.change_list))
    destination.settle()
    return destination


def test_polls_are_never_faster_than_the_minimum_nor_slower_than_configured() -> None:
    source = Source()
    random = Random(3)
    destination = polled(source)
    waits = []
    for _ in range(200):
        if random.random() < 0.3:
            source.change(random.choice("abc"))
        before = destination.now
        destination.poll()
        waits.append(destination.now - before)
    assert min(waits) == pytest.approx(PACE.poll / SPEEDUP_AFTER_NEWS)
    assert max(waits) == pytest.approx(PACE.poll)


def test_polls_come_soon_when_push_is_lost() -> None:
    destination = polled(Source())
    destination.poll()
    follower = destination.follower
    follower.push_up(destination.now)
    destination.poll()
    assert follower.wakeup == destination.now + PACE.poll_with_push
    follower.push_down(destination.now)
    assert follower.wakeup is not None
    assert follower.wakeup <= destination.now + PACE.poll / SPEEDUP_AFTER_NEWS


def test_retry_after_is_respected_whatever_happens() -> None:
    wire = Wire(EVERYTHING, Progress(EPOCH, EPOCH))
    wire.answer(Unavailable("it", "busy", retry_after=100))
    gap = Document(
        Capability.CHANGE_NOTIFICATION,
        from_=EPOCH + timedelta(seconds=5),
        until=EPOCH + timedelta(seconds=6),
    )
    wire.follower.fragment(gap, 1.0)
    wire.follower.tick(2.0)
    assert not any(isinstance(a, Fetch) for a in wire.follower.push_gap(3.0))
    wire.follower.offered(Offer(change_list=BASE + "new.xml"), 4.0)
    assert wire.follower.wakeup == 100
    assert any(isinstance(action, Fetch) for action in wire.follower.tick(100.0))


def test_the_log_names_the_document_of_a_baseline() -> None:
    wire = Wire(EVERYTHING)
    notes = [action.text for action in wire.actions if isinstance(action, LogNote)]
    assert notes == [f"baseline from the Resource Dump {EVERYTHING.resource_dump}"]


def test_a_dump_older_than_the_copy_is_a_doubt_until_there_is_another() -> None:
    """Its Source was restored, its clock was set back, or a cache has an old copy."""
    wire = Wire(Offer(resource_dump="d"), Progress(EPOCH + 9 * SECOND, EPOCH + 9 * SECOND))
    wire.answer(Document(Capability.RESOURCE_DUMP, at=EPOCH + 8 * SECOND))
    assert not wire.follower.level
    assert any("older than one" in doubt for doubt in wire.follower.doubts)
    wire.actions = wire.follower.tick(wire.follower.wakeup or 0.0)
    wire.answer(Document(Capability.RESOURCE_DUMP, at=EPOCH + 9 * SECOND))
    assert wire.follower.level


def test_a_dump_older_than_the_copy_is_a_doubt_too_if_the_copy_is_compared_with_it() -> None:
    """The copy has lost resources, so that even an old dump is read."""
    wire = Wire(Offer(resource_dump="d"), Progress(EPOCH + 9 * SECOND, EPOCH + 9 * SECOND))
    wire.answer(Document(Capability.RESOURCE_DUMP, at=EPOCH + 9 * SECOND))
    assert wire.follower.level
    wire.actions = wire.follower.compare_lost(wire.now)
    wire.wait()
    wire.answer(Document(Capability.RESOURCE_DUMP, at=EPOCH + 8 * SECOND))
    wire.actions = wire.follower.unlisted((), wire.now)
    assert any("older than one" in doubt for doubt in wire.follower.doubts)
    assert not wire.follower.level
