"""How a Destination catches up and stays in step (rsnotify/sync/follower.py)."""

from __future__ import annotations

from datetime import timedelta
from itertools import pairwise
from random import Random

import pytest
from msgspec.structs import replace

from rsnotify.errors import MalformedDocument, Unavailable
from rsnotify.format.model import Capability, ChangeType, Document, Resource
from rsnotify.format.offer import Offer
from rsnotify.sync.actions import Discover, DocumentKind, Fetch, FindUnlisted, LogNote
from rsnotify.sync.follower import Follower
from rsnotify.sync.progress import Progress
from tests.core.wire import Wire
from tests.core.world import BASE, EPOCH, OFFER, PACE, Destination, Source

JUST_LISTS = Offer(resource_list=OFFER.resource_list, change_list=OFFER.change_list)


@pytest.fixture
def source() -> Source:
    source = Source(per_list=2)
    for name in "abc":
        source.change(name)
    source.rotate()
    source.list_resources()
    return source


@pytest.fixture
def destination(source: Source) -> Destination:
    destination = Destination(source, Random(1))
    destination.settle()
    destination.fetches.clear()
    destination.gets = 0
    return destination


def names(fetches: list[str]) -> list[str]:
    return [uri.removeprefix(BASE).partition("-2026")[0] for uri in fetches]


def settled(source: Source, offer: Offer = OFFER, **pace: float) -> Destination:
    """Return a Destination that has a copy of the Source."""
    destination = Destination(source, Random(1), offer, replace(PACE, **pace))
    destination.settle()
    return destination


def wait_for_removal(destination: Destination) -> None:
    """Advance the time until a missing resource is removed."""
    while BASE + "a" in destination.content:
        destination.tick()
        destination.work()


def begun(source: Source) -> tuple[Follower, Fetch]:
    """Return a follower that knows all so far, and its first request."""
    follower = Follower(JUST_LISTS, Progress(source.clock, source.clock), pace=PACE)
    (fetch,) = follower.start(0.0)
    assert isinstance(fetch, Fetch)
    return follower, fetch


def test_a_first_copy_reads_the_resource_list_and_then_the_change_list(source: Source) -> None:
    destination = settled(source)
    # The archive shows which closed lists there are: they may gain entries later.
    lists = ["resourcelist.xml", "changelist.xml", "changelist-archive.xml"]
    assert names(destination.fetches) == lists
    assert destination.content == source.state


def test_a_fragment_that_joins_is_applied_without_reading_any_list(
    source: Source, destination: Destination
) -> None:
    source.emitted = len(source.history)
    source.change("d")
    destination.push(source.fragment(1))
    destination.settle()
    assert destination.content == source.state
    assert destination.fetches == []


@pytest.mark.parametrize("is_lost", [True, False], ids=["lost", "unreadable"])
def test_after_a_lost_or_unreadable_fragment_the_change_list_is_read_after_a_grace_period(
    source: Source, destination: Destination, is_lost: bool
) -> None:
    source.emitted = len(source.history)
    source.change("d")
    if is_lost:
        source.fragment(1)
        source.change("e")
        destination.push(source.fragment(1))
    else:
        error = MalformedDocument("cut", source=BASE)
        actions = destination.follower.fragment_unreadable(error, destination.now)
        assert [type(action) for action in actions] == [LogNote]
    for _ in range(2):
        assert destination.pending == []
        destination.tick(PACE.gap_grace / 2)
    destination.settle()
    assert names(destination.fetches)[:1] == ["changelist.xml"]
    assert len(destination.fetches) == 1 or not is_lost
    assert destination.content == source.state


def test_a_lost_heartbeat_opens_no_gap(source: Source, destination: Destination) -> None:
    source.emitted = len(source.history)
    source.clock += timedelta(seconds=5)
    source.fragment(0)  # a heartbeat, lost
    source.change("d")
    destination.push(source.fragment(1))
    destination.settle()
    assert destination.fetches == []
    assert destination.content == source.state


def test_changes_no_longer_in_the_change_list_are_read_from_the_archive(
    source: Source, destination: Destination
) -> None:
    for name in "defg":
        source.change(name)
    source.rotate()
    destination.poll()
    assert names(destination.fetches) == [
        "changelist.xml", "changelist-archive.xml", "closed", "closed", "changelist.xml",
    ]  # fmt: skip
    assert destination.content == source.state


def test_a_resource_that_changed_in_several_lists_is_fetched_once(
    source: Source, destination: Destination
) -> None:
    for name in "dadada":
        source.change(name)
    source.rotate()
    destination.poll()
    assert destination.gets == 2
    assert destination.content == source.state


def test_if_no_list_reaches_back_everything_is_compared_including_deletions(
    source: Source, destination: Destination
) -> None:
    source.change("a", deleted=True)
    for name in "defgh":
        source.change(name)
    source.kept = 1
    source.rotate()
    source.list_resources()
    destination.poll()
    assert "resourcelist.xml" in names(destination.fetches)
    assert destination.content == source.state


def test_if_the_resource_list_is_too_old_as_well_t_waits_before_the_gap(
    source: Source, destination: Destination
) -> None:
    before = destination.follower.progress
    for name in "defgh":
        source.change(name)
    source.kept = 1
    source.rotate()
    for _ in range(20):
        destination.tick()
        while destination.pending:
            destination.step()
    assert not destination.follower.level
    assert destination.follower.is_stuck(destination.now)
    assert before is not None
    assert destination.follower.progress is not None
    assert destination.follower.progress.through == before.through
    source.list_resources()
    destination.settle()
    assert destination.content == source.state


def test_an_index_is_read_from_the_first_list_that_joins(source: Source) -> None:
    source.index = True
    destination = settled(source)
    destination.fetches.clear()
    for name in "defg":
        source.change(name)
    source.rotate()
    destination.poll()
    lists = ["changelist.xml", "closed", "closed", "open.xml"]
    assert names(destination.fetches) == [*lists, "changelist-archive.xml"]
    assert destination.content == source.state


def test_a_source_without_change_lists_is_compared_at_each_poll(source: Source) -> None:
    destination = settled(source, Offer(resource_list=OFFER.resource_list))
    source.change("a", deleted=True)
    source.list_resources()
    destination.poll()
    assert destination.content == source.state


def test_a_source_without_a_resource_list_is_followed_from_its_oldest_change_list(
    source: Source,
) -> None:
    assert settled(source, replace(OFFER, resource_list=None)).content == source.state


def test_a_resource_that_is_listed_and_missing_is_removed_and_remains_a_doubt(
    source: Source, destination: Destination
) -> None:
    began = destination.now
    source.change("a")
    lost = source.state.pop(BASE + "a")
    wait_for_removal(destination)
    assert destination.now - began >= PACE.gone_after
    assert destination.progress is not None
    destination.tick()
    destination.work()
    assert destination.follower.progress is not None
    assert destination.follower.progress.through == source.history[-1].at
    assert not destination.follower.level
    (doubt,) = destination.follower.doubts
    assert doubt.startswith(BASE + "a: announced, but not available")
    destination.progress = destination.follower.progress
    destination.restart()
    destination.work()
    assert not destination.follower.level
    source.state[BASE + "a"] = lost  # restored, and no list shows it
    destination.settle()
    assert destination.content == source.state


@pytest.mark.parametrize("seed", range(6))
def test_a_resource_that_is_listed_and_missing_remains_a_doubt_after_a_crash(
    source: Source, seed: int
) -> None:
    source.change("a")
    destination = Destination(source, Random(seed))
    destination.settle()
    source.change("a")
    del source.state[BASE + "a"]
    wait_for_removal(destination)
    destination.restart()
    destination.work()
    assert not destination.follower.level


def test_a_missing_resource_is_no_doubt_once_a_list_has_its_deletion(
    source: Source, destination: Destination
) -> None:
    source.change("a")
    lost = source.state.pop(BASE + "a")
    wait_for_removal(destination)
    source.state[BASE + "a"] = lost
    source.change("a", deleted=True)
    destination.poll()
    assert destination.follower.level
    assert destination.follower.progress is not None
    assert not destination.follower.progress.missing
    assert destination.content == source.state


def test_a_source_that_is_down_is_polled_less_and_less_often_and_not_compared() -> None:
    follower = Follower(OFFER, Progress(Source().clock, Source().clock), pace=PACE)
    now = 0.0
    actions = follower.start(now)
    requests = []
    for _ in range(8):
        (fetch,) = [action for action in actions if isinstance(action, Fetch)]
        requests.append((now, fetch.kind))
        follower.fetch_failed(fetch, Unavailable(fetch.uri, "no answer"), now)
        assert not follower.level
        assert follower.failures.error is not None
        assert follower.wakeup is not None
        now = follower.wakeup
        actions = follower.tick(now)
    assert {kind for _, kind in requests} == {DocumentKind.CHANGE_LIST}
    waits = [later - earlier for (earlier, _), (later, _) in pairwise(requests)]
    assert waits[-1] > 4 * waits[0]
    assert max(waits) <= PACE.retry.most


def test_a_closed_change_list_makes_the_follower_discover_its_successor() -> None:
    source = Source()
    follower, fetch = begun(source)
    closed = Document(Capability.CHANGE_LIST, from_=source.clock, until=source.clock)
    assert Discover() in follower.fetched(fetch, closed, 0.0)
    follower.offered(replace(JUST_LISTS, change_list=BASE + "next.xml"), 0.0)
    assert follower.tick(0.0) == [Fetch(BASE + "next.xml", DocumentKind.CHANGE_LIST)]


def test_an_until_that_moves_is_not_trusted_beyond_the_last_entry() -> None:
    source = Source(timedelta(seconds=1))
    at = source.clock
    follower, fetch = begun(source)

    def read(fetch: Fetch, until: float, *seconds: float) -> None:
        resources = tuple(
            Resource(BASE + "x", change=ChangeType.DELETED, datetime=at + timedelta(seconds=second))
            for second in seconds
        )
        end = at + timedelta(seconds=until)
        document = Document(Capability.CHANGE_LIST, resources, from_=at, until=end)
        follower.fetched(fetch, document, follower.wakeup or 0.0)

    read(fetch, 10, 1)
    assert follower.known == at + timedelta(seconds=10)
    actions = follower.tick(follower.wakeup or 0.0)
    (fetch,) = [action for action in actions if isinstance(action, Fetch)]
    read(fetch, 20, 1, 11)
    assert follower.known == at + timedelta(seconds=11)


def test_the_log_names_the_document_and_the_reason(
    source: Source, destination: Destination
) -> None:
    source.change("d")
    destination.poll()
    assert destination.notes[-1] == f"1 change from the Change List {OFFER.change_list}"
    destination.pending.clear()
    actions = destination.follower.fragment(Document("moonlist"), destination.now)
    assert [a.warning for a in actions if isinstance(a, LogNote)] == [True]


def test_the_resource_list_that_was_compared_last_undoes_no_change(source: Source) -> None:
    destination = settled(source, compare=3.0)
    source.change("d")
    # Its entry has the datetime of a moved file, which is earlier than the Resource List.
    moved = source.history.pop()
    old = replace(moved.resource, datetime=None, lastmod=EPOCH - timedelta(days=1))
    source.history.append(replace(moved, resource=old))
    destination.poll()
    source.rotate()
    for _ in range(2):
        destination.progress = destination.follower.progress
        destination.now += 3.0
        destination.restart()
        destination.fetches.clear()
        destination.settle()
        assert names(destination.fetches)[0] == "resourcelist.xml"
        assert destination.content == source.state


def test_an_older_resource_list_brings_back_nothing_that_was_deleted_since(
    source: Source,
) -> None:
    destination = settled(source, compare=3.0)
    source.change("d")
    source.list_resources()
    source.change("d", deleted=True)
    source.rotate()
    source.change("e")
    destination.poll()
    destination.now += 3.0
    for _ in range(9):
        destination.poll()
        assert destination.content == source.state
    assert "resourcelist.xml" in names(destination.fetches)[2:]


def test_a_version_that_may_be_old_is_fetched_in_each_routine_comparison(source: Source) -> None:
    destination = settled(source, compare=3.0)
    destination.content[BASE + "a"] = "fetched in the second of its lastmod"
    destination.now += 3.0
    destination.tick()
    destination.poll()
    assert destination.content == source.state


def test_a_new_resource_list_shows_deletions_that_no_change_list_has(source: Source) -> None:
    destination = settled(source, compare=3.0)
    del source.state[BASE + "a"]
    source.clock += timedelta(seconds=1)
    source.list_resources()
    for _ in range(9):
        destination.poll()
    assert destination.content == source.state


def test_the_lists_are_read_after_each_comparison_however_short_the_interval(
    source: Source,
) -> None:
    destination = settled(source, compare=0.0)
    for _ in range(3):
        source.change("a")
        destination.poll()
        assert destination.content == source.state


# The set of resources is described by another Capability List than before.


MOVED = Offer(resource_dump="dump", change_list="changes", capability_list="one")
CHANGES = Document(Capability.CHANGE_LIST, from_=EPOCH, until=EPOCH + timedelta(seconds=200))
DUMP = Document(Capability.RESOURCE_DUMP, at=EPOCH + timedelta(seconds=100))


def test_an_unchanged_dump_is_compared_once_more_after_a_move() -> None:
    wire = Wire(MOVED)
    compare(wire)
    assert wire.follower.level
    moved = replace(MOVED, capability_list="two")
    wire.actions = wire.follower.offered(moved, wire.now)
    assert not wire.follower.level
    wire.wait()
    compare(wire, "old")
    assert [change.uri for action in wire.actions for change in getattr(action, "changes", ())] == [
        "old"
    ]


def compare(wire: Wire, *unlisted: str) -> None:
    """Answer the dump, name what it lacks, and answer the Change List."""
    assert wire.requested() == [DocumentKind.RESOURCE_DUMP]
    wire.answer(DUMP)
    assert any(isinstance(action, FindUnlisted) for action in wire.actions)
    wire.actions = wire.follower.unlisted(unlisted, wire.now)
    removals = [action for action in wire.actions if hasattr(action, "changes")]
    wire.answer(CHANGES)
    wire.actions = [*removals, *wire.actions]
