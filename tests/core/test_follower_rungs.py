"""Which documents a Destination reads to get level, and what it does where they are broken."""

from __future__ import annotations

import re
from collections.abc import Callable
from datetime import timedelta
from random import Random

import pytest
from msgspec.structs import replace

from rsnotify.actions import Action, Apply, Compare, Discover, Fetch, Note, Progress, Rung
from rsnotify.datetimes import MICROSECOND
from rsnotify.errors import MalformedDocument, NotFound, RsnotifyError, Unavailable
from rsnotify.follower import Follower
from rsnotify.model import Document, Resource
from rsnotify.offer import Offer
from rsnotify.schedule import QUICKER, Rhythm
from rsnotify.vocabulary import Capability, ChangeType
from tests.core.world import BASE, EPOCH, EVERYTHING, PACE, Destination, Source


@pytest.fixture
def source() -> Source:
    source = Source(per_list=2)
    for name in "abcde":
        source.change(name)
    source.pack(1)
    source.clock += MICROSECOND
    source.list_resources()
    source.dump_resources()
    return source


def follow(source: Source, *offered: str) -> Destination:
    """Follow what is offered of everything, until level."""
    named = {name: getattr(EVERYTHING, name) for name in offered}
    destination = Destination(source, Random(1), Offer(**named))
    destination.settle()
    return destination


def read(destination: Destination) -> list[str]:
    return [re.sub(r"-\d.*", "", uri.removeprefix(BASE)) for uri in destination.fetches]


def poll(destination: Destination) -> list[str]:
    """Poll once, and return what was read."""
    destination.fetches.clear()
    destination.poll()
    assert destination.content == destination.source.state
    return read(destination)


def lose_lists(source: Source) -> None:
    """Let the Change Lists reach no further back than now."""
    source.kept = 0
    source.rotate(1)
    source.kept = 100


def test_a_first_copy_comes_in_packages_and_costs_no_get(source: Source) -> None:
    destination = follow(source, "resource_list", "resource_dump", "change_list")
    assert read(destination) == ["resourcedump.xml", *["resources"] * 3, "changelist.xml"]
    assert destination.content == source.state
    assert (destination.gets, destination.unpacked) == (0, 5)


def test_later_the_resource_list_is_compared_and_little_fetched(source: Source) -> None:
    destination = follow(source, "resource_list", "resource_dump", "change_list")
    source.change("f")
    source.change("a", deleted=True)
    lose_lists(source)
    source.finish(EVERYTHING)
    assert poll(destination) == [
        "changelist.xml", "changelist-archive.xml", "changelist.xml",
        "resourcelist.xml", "changelist.xml",
    ]  # fmt: skip
    assert destination.gets == 1


def test_the_change_dump_is_read_where_the_change_lists_do_not_reach_back(
    source: Source,
) -> None:
    offered = ("resource_list", "change_list", "change_list_archive", "change_dump")
    destination = follow(source, *offered)
    destination.gets = 0
    for name in "fgff":
        source.change(name)
    source.pack()
    lose_lists(source)
    source.change("h")
    assert poll(destination) == [
        "changelist.xml", "changelist-archive.xml", "changelist.xml",
        "changedump.xml", "changes", "changes", "changelist.xml",
    ]  # fmt: skip
    assert (destination.gets, destination.unpacked) == (1, 3)
    assert destination.notes[-5:] == [
        f"going on with the Change Dump {EVERYTHING.change_dump}",
        "2 changes from the Change Dump " + destination.fetches[4],
        "2 changes from the Change Dump " + destination.fetches[5],
        f"going on with the Change List {EVERYTHING.change_list}",
        f"1 changes from the Change List {EVERYTHING.change_list}",
    ]


def test_closed_change_dumps_are_read_from_their_archive(source: Source) -> None:
    destination = follow(source, "resource_list", "change_dump", "change_dump_archive")
    for name in "fghi":
        source.change(name)
    source.pack()
    source.archive()
    source.change("j")
    source.pack(1)
    assert poll(destination)[:3] == [
        "changedump.xml", "changedump-archive.xml", "changedump",
    ]  # fmt: skip
    assert any("Change Dump Archive" in note for note in destination.notes)


@pytest.mark.parametrize("restarted", [False, True])
def test_a_source_with_nothing_but_a_dump_is_asked_for_its_packages_once(
    source: Source, restarted: bool
) -> None:
    destination = follow(source, "resource_dump")
    assert destination.content == source.state
    if restarted:
        destination.restart()
        destination.settle()
    assert poll(destination) == ["resourcedump.xml"]
    source.change("a", deleted=True)
    source.dump_resources()
    assert poll(destination) == ["resourcedump.xml", "resources", "resources"]


def test_where_nothing_tells_of_changes_the_list_makes_up_for_an_old_dump(
    source: Source,
) -> None:
    source.change("f")
    source.list_resources()
    destination = follow(source, "resource_list", "resource_dump")
    assert read(destination)[-1] == "resourcelist.xml"
    assert destination.content == source.state


def test_a_hole_is_closed_by_a_dump_that_is_younger_than_the_list(source: Source) -> None:
    destination = follow(source, "resource_list", "resource_dump", "change_list")
    source.change("f")
    lose_lists(source)
    source.dump_resources()
    source.change("g")
    destination.poll()
    assert destination.content == source.state
    assert destination.follower.level


def test_of_a_second_that_was_still_running_nothing_is_missed() -> None:
    source = Source(granularity=timedelta(seconds=1), per_list=1)
    destination = follow(source, "resource_list", "change_list", "change_list_archive")
    source.change("a")
    poll(destination)
    source.change("b", same_instant=True)
    source.change("c")
    source.rotate()
    poll(destination)


# Broken documents


class Wire:
    """A Follower whose documents are answered by the test."""

    def __init__(self, offer: Offer, progress: Progress | None = None, **pace: float) -> None:
        self.follower = Follower(offer, progress, pace=replace(PACE, **pace), random=Random(1))
        self.now = 0.0
        self.actions: list[Action] = self.follower.start(self.now)

    def asked(self) -> list[Rung]:
        return [action.rung for action in self.actions if isinstance(action, Fetch)]

    def answer(self, document: Document | RsnotifyError) -> None:
        (fetch,) = [action for action in self.actions if isinstance(action, Fetch)]
        if isinstance(document, Document):
            self.actions = self.follower.fetched(fetch, document, self.now)
        else:
            self.actions = self.follower.fetch_failed(fetch, document, self.now)

    def wait(self) -> float:
        before, self.now = self.now, self.follower.wakeup or 0.0
        self.actions = self.follower.tick(self.now)
        return self.now - before


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
        assert wire.asked() == [Rung.RESOURCE_DUMP]
        wire.answer(failure())
        assert wire.asked() == []
        wire.wait()
    wire.answer(failure())
    assert wire.asked() == [Rung.RESOURCE_LIST]


def test_a_change_list_that_stays_broken_lets_the_change_dump_speak() -> None:
    wire = Wire(EVERYTHING, Progress(EPOCH, EPOCH))
    for _ in range(PACE.baseline_after - 1):
        wire.answer(malformed())
        wire.wait()
    wire.answer(malformed())
    assert wire.asked() == [Rung.CHANGE_LIST_ARCHIVE]
    wire.answer(malformed())
    assert wire.asked() == [Rung.CHANGE_DUMP]
    wire.answer(Document(Capability.CHANGE_DUMP, from_=EPOCH))
    wire.answer(malformed())
    assert wire.asked() == []
    assert wire.follower.failures == PACE.baseline_after
    assert not wire.follower.level


def test_a_change_list_that_stays_broken_costs_a_baseline_less_and_less_often() -> None:
    wire = Wire(EVERYTHING, Progress(EPOCH, EPOCH))
    baselines = []
    for _ in range(500):
        if wire.asked() == [Rung.RESOURCE_LIST]:
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
    (compare,) = wire.actions
    assert isinstance(compare, Compare)
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


# How often


def test_polls_come_soon_after_news_and_then_less_and_less_often() -> None:
    rhythm = Rhythm(16.0)
    assert rhythm.next(news=False) == 16.0
    assert [rhythm.next(news=news) for news in (True, False, False, True)] == [2, 4, 8, 2]
    assert [rhythm.next(news=False) for _ in range(5)] == [4, 8, 16, 16, 16]


def test_a_destination_polls_never_faster_than_the_floor_nor_slower_than_told() -> None:
    source = Source()
    random = Random(3)
    destination = follow(source, "change_list")
    waits = []
    for _ in range(200):
        if random.random() < 0.3:
            source.change(random.choice("abc"))
        before = destination.now
        destination.poll()
        waits.append(destination.now - before)
    assert min(waits) == pytest.approx(PACE.poll / QUICKER)
    assert max(waits) == pytest.approx(PACE.poll)


def test_polls_come_soon_when_push_is_lost() -> None:
    destination = follow(Source(), "change_list")
    destination.poll()
    follower = destination.follower
    follower.push_up(destination.now)
    destination.poll()
    assert follower.wakeup == destination.now + PACE.poll_with_push
    follower.push_down(destination.now)
    assert follower.wakeup is not None
    assert follower.wakeup <= destination.now + PACE.poll / QUICKER


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


def test_every_way_that_is_taken_is_told(source: Source) -> None:
    wire = Wire(EVERYTHING)
    notes = [action.text for action in wire.actions if isinstance(action, Note)]
    assert notes == [f"baseline from the Resource Dump {EVERYTHING.resource_dump}"]
