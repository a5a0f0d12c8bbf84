"""What a Destination does where documents are broken, and how often it asks for them."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from random import Random

import pytest

from rsnotify.errors import (
    FetchError,
    Gone,
    MalformedDocument,
    NotFound,
    RsnotifyError,
    Unavailable,
)
from rsnotify.format.coverage import Change
from rsnotify.format.model import Document, Resource
from rsnotify.format.offer import Offer
from rsnotify.format.vocabulary import Capability, ChangeType
from rsnotify.sync.actions import Apply, Compare, Discover, DocumentKind, Fetch, LogNote, Progress
from rsnotify.sync.schedule import SPEEDUP_AFTER_NEWS, PollInterval
from tests.core.wire import Wire
from tests.core.world import BASE, EPOCH, EVERYTHING, PACE, Destination, Source


def malformed() -> RsnotifyError:
    return MalformedDocument("truncated", source="it")


def away() -> RsnotifyError:
    return Unavailable("it", "no answer")


@pytest.mark.parametrize("failure", [malformed, away])
def test_a_dump_that_stays_broken_gives_way_to_the_list_after_some_tries(
    failure: Callable[[], RsnotifyError],
) -> None:
    wire = Wire(EVERYTHING)
    for _ in range(PACE.baseline_after - 1):
        assert wire.asked() == [DocumentKind.RESOURCE_DUMP]
        wire.answer(failure())
        assert wire.asked() == []
        wire.wait()
    wire.answer(failure())
    assert wire.asked() == [DocumentKind.RESOURCE_LIST]


def test_a_change_list_that_stays_broken_lets_the_change_dump_speak() -> None:
    wire = Wire(EVERYTHING, Progress(EPOCH, EPOCH))
    for _ in range(PACE.baseline_after - 1):
        wire.answer(malformed())
        wire.wait()
    wire.answer(malformed())
    assert wire.asked() == [DocumentKind.CHANGE_LIST_ARCHIVE]
    wire.answer(malformed())
    assert wire.asked() == [DocumentKind.CHANGE_DUMP]
    wire.answer(Document(Capability.CHANGE_DUMP, from_=EPOCH))
    wire.answer(malformed())
    assert wire.asked() == []
    assert wire.follower.failures == PACE.baseline_after
    assert not wire.follower.level


def test_a_change_list_that_stays_broken_costs_a_baseline_less_and_less_often() -> None:
    wire = Wire(EVERYTHING, Progress(EPOCH, EPOCH))
    baselines = []
    for _ in range(500):
        if wire.asked() == [DocumentKind.RESOURCE_LIST]:
            baselines.append(wire.follower.failures)
            wire.answer(Document(Capability.RESOURCE_LIST, at=EPOCH))
            wire.actions = wire.follower.differing((), wire.now)
            wire.actions = wire.follower.missing((), wire.now)
        elif wire.asked():
            wire.answer(malformed())
        else:
            wire.wait()
    assert baselines == [3, 6, 12, 24, 48, 96]


def test_a_package_that_vanished_makes_the_offer_be_read_anew() -> None:
    wire = Wire(Offer(change_dump=EVERYTHING.change_dump), Progress(EPOCH, EPOCH))
    packages = (Resource("a.zip"),)
    wire.answer(Document(Capability.CHANGE_DUMP, packages, from_=EPOCH))
    wire.answer(NotFound("a.zip", "404"))
    assert Discover() in wire.actions
    assert wire.asked() == []


def test_the_next_package_is_asked_for_when_little_of_the_last_is_outstanding() -> None:
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


def test_what_is_out_of_order_in_a_package_is_rather_fetched() -> None:
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


def test_of_a_dump_older_than_what_is_known_nothing_is_unpacked() -> None:
    """Its deletions may have been forgotten, and would come back; a GET tells."""
    wire = Wire(Offer(resource_dump="d"), Progress(EPOCH + 9 * SECOND, EPOCH + 9 * SECOND))
    wire.answer(Document(Capability.RESOURCE_DUMP, (Resource("a.zip"),)))
    entry = Resource(BASE + "a", path="/a", lastmod=EPOCH + SECOND)
    wire.answer(Document(Capability.RESOURCE_DUMP_MANIFEST, (entry,)))
    (compare,) = [action for action in wire.actions if isinstance(action, Compare)]
    wire.actions = wire.follower.differing(compare.resources, 0.0)
    assert [change.package for change in applied(wire)] == [None]


def test_a_package_without_times_is_asked_for_once() -> None:
    wire = Wire(Offer(change_dump=BASE + "d"), Progress(EPOCH, EPOCH))
    dump = Document(Capability.CHANGE_DUMP, (Resource("a.zip", length=10),), from_=EPOCH)
    wire.answer(dump)
    wire.answer(changes(Capability.CHANGE_DUMP_MANIFEST, 0 * SECOND, 1))
    wire.actions = wire.follower.applied(applied(wire), 0.0)
    wire.wait()
    wire.answer(dump)
    assert wire.asked() == []
    assert wire.follower.level


def test_the_next_package_of_changes_waits_for_the_last_one_too() -> None:
    wire = Wire(Offer(change_dump=BASE + "d"), Progress(EPOCH, EPOCH))
    packages = (Resource("a.zip"), Resource("b.zip"))
    wire.answer(Document(Capability.CHANGE_DUMP, packages, from_=EPOCH))
    many = range(1, 2 * PACE.in_flight + 1)
    wire.answer(changes(Capability.CHANGE_DUMP_MANIFEST, 0 * SECOND, *many))
    assert wire.asked() == []
    wire.actions = wire.follower.applied(applied(wire), 0.0)
    assert wire.asked() == [DocumentKind.CHANGE_DUMP]


def test_a_source_that_asks_for_patience_with_its_dump_is_not_asked_for_its_list() -> None:
    wire = Wire(EVERYTHING)
    for _ in range(PACE.baseline_after + 1):
        wire.answer(Unavailable("it", "busy", retry_after=5))
        assert wire.asked() == []
        assert wire.wait() >= 5


def test_a_broken_package_is_waited_for_longer_and_longer() -> None:
    wire = Wire(Offer(resource_dump=EVERYTHING.resource_dump))
    waits = []
    for _ in range(5):
        packages = (Resource("a.zip"),)
        wire.answer(Document(Capability.RESOURCE_DUMP, packages, at=EPOCH))
        wire.answer(malformed())
        waits.append(wire.wait())
    assert waits == [PACE.poll * 2**n for n in range(1, 6)]


def test_what_fails_is_not_given_up_before_the_documents_are_read() -> None:
    wire = Wire(Offer(change_list="c"), Progress(EPOCH, EPOCH), give_up=1)
    wire.answer(changes(Capability.CHANGE_LIST, 0 * SECOND, 1))
    (change,) = applied(wire)
    wire.actions = wire.follower.failed(change, away(), 0.0)
    assert wire.follower.stuck
    while not wire.asked():
        wire.wait()
    wire.answer(malformed())
    assert not wire.follower.stuck


def deletions_after(
    wire: Wire, error: FetchError, *times: float, before: FetchError | None = None
) -> list[str]:
    """Return what is deleted once a GET of the one change has failed at these times.

    Args:
        wire: The follower.
        error: How it failed.
        times: When.
        before: How it failed the first time, if otherwise.
    """
    wire.answer(changes(Capability.CHANGE_LIST, 0 * SECOND, 1))
    actions = wire.actions
    for now in times:
        (apply,) = [action for action in actions if isinstance(action, Apply)]
        failure = before if before is not None and now == times[0] else error
        actions = wire.follower.failed(apply.changes[0], failure, now)
        if now != times[-1]:
            actions = wire.follower.tick(now + PACE.retry.most)
    handed_out = [action.changes for action in actions if isinstance(action, Apply)]
    return [change.uri for (change,) in handed_out if change.change is ChangeType.DELETED]


def test_content_may_lag_behind_the_entry_that_announces_it() -> None:
    wire = Wire(Offer(change_list="c"), Progress(EPOCH, EPOCH), gone_after=600.0)
    tries = range(0, 600, 60)
    assert deletions_after(wire, NotFound("it", "404"), *tries) == []
    assert not wire.follower.level
    assert wire.follower.progress is not None
    assert wire.follower.progress.through < EPOCH + SECOND


def test_what_is_not_there_for_long_counts_as_deleted() -> None:
    wire = Wire(Offer(change_list="c"), Progress(EPOCH, EPOCH), gone_after=600.0)
    assert deletions_after(wire, NotFound("it", "404"), 0, 300, 600) == [f"{BASE}1"]


def test_what_could_not_be_asked_for_is_not_missing() -> None:
    away = Unavailable("it", "no answer")
    wire = Wire(Offer(change_list="c"), Progress(EPOCH, EPOCH), gone_after=600.0)
    assert deletions_after(wire, NotFound("it", "404"), 0, 700, 1299, before=away) == []
    wire = Wire(Offer(change_list="c"), Progress(EPOCH, EPOCH), gone_after=600.0)
    deleted = deletions_after(wire, NotFound("it", "404"), 0, 700, 1300, before=away)
    assert deleted == [f"{BASE}1"]


def test_a_410_counts_as_deleted_no_sooner_than_a_404() -> None:
    wire = Wire(Offer(change_list="c"), Progress(EPOCH, EPOCH), gone_after=600.0)
    assert deletions_after(wire, Gone("it", "410"), 0, 300) == []
    wire = Wire(Offer(change_list="c"), Progress(EPOCH, EPOCH), gone_after=600.0)
    assert deletions_after(wire, Gone("it", "410"), 0, 300, 600) == [f"{BASE}1"]


def test_after_a_baseline_in_whole_seconds_the_last_closed_list_is_looked_at() -> None:
    wire = Wire(Offer(resource_list="r", change_list="c", change_list_archive="a"))
    wire.answer(Document(Capability.RESOURCE_LIST, at=EPOCH + SECOND))
    wire.actions = wire.follower.differing((), 0.0)
    wire.actions = wire.follower.missing((), 0.0)
    wire.answer(changes(Capability.CHANGE_LIST, SECOND))
    assert wire.asked() == [DocumentKind.CHANGE_LIST_ARCHIVE]


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


def test_polls_come_soon_after_news_and_then_less_and_less_often() -> None:
    rhythm = PollInterval(16.0)
    assert rhythm.next(news=False) == 16.0
    assert [rhythm.next(news=news) for news in (True, False, False, True)] == [2, 4, 8, 2]
    assert [rhythm.next(news=False) for _ in range(5)] == [4, 8, 16, 16, 16]


def test_a_destination_polls_never_faster_than_the_floor_nor_slower_than_told() -> None:
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


def test_a_source_that_says_when_to_come_back_is_not_asked_before_whatever_happens() -> None:
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


def test_the_way_that_is_taken_is_told() -> None:
    wire = Wire(EVERYTHING)
    notes = [action.text for action in wire.actions if isinstance(action, LogNote)]
    assert notes == [f"baseline from the Resource Dump {EVERYTHING.resource_dump}"]
