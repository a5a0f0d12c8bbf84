"""What a Destination does when it is told that a document of the Source is new."""

from __future__ import annotations

from datetime import datetime
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from rsnotify.errors import Unavailable
from rsnotify.format.datetimes import MICROSECOND
from rsnotify.format.model import Document, Resource
from rsnotify.format.vocabulary import Capability, ChangeType
from rsnotify.sync.actions import Discover, Fetch
from rsnotify.sync.schedule import SPEEDUP_AFTER_NEWS
from tests.core.world import BASE, EPOCH, EVERYTHING, OFFER, PACE, Destination, Source

#: Within which time it is looked at what was told of.
SOON = PACE.poll / SPEEDUP_AFTER_NEWS


@pytest.fixture
def source() -> Source:
    source = Source(per_list=2)
    for name in "abcdefghij":
        source.change(name)
    source.rotate()
    source.list_resources()
    return source


def following(source: Source, seed: int = 1) -> Destination:
    """Follow by push, until level."""
    destination = Destination(source, Random(seed))
    destination.settle()
    destination.push_up()
    destination.poll()
    destination.fetches.clear()
    return destination


def told(*documents: Resource, number: int = 1, missed: int = 0) -> Document:
    """Tell of documents.

    Args:
        number: Of the notification; they follow on each other.
        missed: How many before it were not told of.
    """
    at = EPOCH + number * MICROSECOND
    dated = tuple(
        replace(one, datetime=at, change=one.change or ChangeType.UPDATED) for one in documents
    )
    return Document(
        Capability.FRAMEWORK_NOTIFICATION,
        dated,
        from_=at - (1 + missed) * MICROSECOND,
        until=at,
    )


def closed(until: datetime) -> Resource:
    uri = BASE + "changelist-closed.xml"
    return Resource(uri, capability=Capability.CHANGE_LIST, from_=EPOCH, until=until)


def listed(at: datetime) -> Resource:
    return Resource(BASE + "resourcelist.xml", capability=Capability.RESOURCE_LIST, at=at)


CAPABILITY_LIST = Resource(BASE + "capabilitylist.xml", capability=Capability.CAPABILITY_LIST)


def soon(destination: Destination) -> None:
    """Let so much time pass as one takes to look at what was told of."""
    ends = destination.now + SOON
    while (wakeup := destination.follower.wakeup) is not None and wakeup <= ends:
        destination.tick()
        destination.work()
    destination.tick(max(0.0, ends - destination.now))


def test_a_list_that_tells_of_what_was_lost_is_read_long_before_the_next_poll(
    source: Source,
) -> None:
    destination = following(source)
    source.change("lost")
    destination.tell(told(closed(source.clock)))
    soon(destination)
    assert destination.content == source.state


def test_a_list_that_tells_nothing_new_is_left_alone(source: Source) -> None:
    destination = following(source)
    destination.tell(told(closed(source.clock)))
    soon(destination)
    assert destination.fetches == []


def test_a_hole_is_filled_as_soon_as_a_newer_list_of_all_resources_is_there(
    source: Source,
) -> None:
    destination = following(source)
    source.kept = 0
    source.change("forgotten")
    source.rotate(1)
    source.change("told")
    destination.settle()
    destination.push_gap()
    for _ in range(20):
        destination.tick()
        destination.work()
    assert not destination.follower.level
    source.list_resources()
    destination.fetches.clear()
    destination.tell(told(listed(source.clock)))
    soon(destination)
    assert destination.fetches[0] == BASE + "resourcelist.xml"
    destination.settle()
    assert destination.content == source.state


def test_what_is_offered_is_read_anew_once_for_all_that_was_told(source: Source) -> None:
    destination = following(source)
    for number in (1, 2, 3):
        destination.tell(told(CAPABILITY_LIST, number=number))
    looks = []
    while (wakeup := destination.follower.wakeup) is not None and wakeup <= SOON + destination.now:
        destination.now = wakeup
        looks += [a for a in destination.follower.tick(wakeup) if isinstance(a, Discover)]
    assert len(looks) == 1


def test_not_all_who_were_told_come_at_once(source: Source) -> None:
    times = set()
    for seed in range(20):
        destination = following(source, seed)
        destination.tell(told(CAPABILITY_LIST))
        assert destination.follower.wakeup is not None
        times.add(round((destination.follower.wakeup - destination.now) / SOON, 1))
    assert len(times) > 5


def test_who_loses_push_looks_whether_it_is_to_be_had_elsewhere(source: Source) -> None:
    destination = following(source)
    follower = destination.follower
    follower.push_down(destination.now)
    looks = []
    while (wakeup := follower.wakeup) is not None:
        looks += [wakeup for a in follower.tick(wakeup) if isinstance(a, Discover)]
    assert len(looks) == 1
    assert PACE.poll / 2 <= looks[0] - destination.now <= PACE.poll


def test_what_was_missed_is_made_up_for(source: Source) -> None:
    destination = following(source)
    destination.tell(told())
    source.change("lost")
    destination.tell(told(number=9, missed=1))
    soon(destination)
    assert destination.content == source.state


def test_what_is_no_notice_is_noted_and_changes_nothing(source: Source) -> None:
    destination = following(source)
    destination.tell(Document(Capability.CHANGE_LIST, from_=EPOCH))
    assert "passed over" in destination.notes[-1]
    soon(destination)
    assert destination.fetches == []
    assert destination.follower.level


def test_a_first_copy_goes_on_by_a_dump_that_was_not_there_when_it_began(source: Source) -> None:
    destination = Destination(source, Random(1))
    while destination.gets < 3:
        destination.step()
    source.clock += MICROSECOND
    source.dump_resources()
    destination.offer = replace(OFFER, resource_dump=EVERYTHING.resource_dump)
    destination.discover()
    destination.settle()
    assert destination.content == source.state
    assert destination.gets < len(source.state), "the rest came in packages"
    assert destination.unpacked > 0


def test_who_holds_most_goes_on_as_it_began(source: Source) -> None:
    destination = following(source)
    destination.offer = replace(OFFER, resource_dump=EVERYTHING.resource_dump)
    dump = Resource(BASE + "resourcedump.xml", capability=Capability.RESOURCE_DUMP)
    destination.tell(told(dump))
    soon(destination)
    assert destination.fetches == []


_KINDS = st.sampled_from(
    [
        Capability.CAPABILITY_LIST,
        Capability.CHANGE_LIST,
        Capability.CHANGE_LIST_ARCHIVE,
        Capability.RESOURCE_LIST,
        Capability.RESOURCE_DUMP,
        "something-else",
    ]
)
_INSTANTS = st.none() | st.integers(-5, 50).map(lambda n: EPOCH + n * MICROSECOND)
_NOTICES = st.builds(
    lambda kind, at, until, change: Resource(
        f"{BASE}{kind}.xml", capability=kind, at=at, until=until, change=change
    ),
    _KINDS,
    _INSTANTS,
    _INSTANTS,
    st.sampled_from(ChangeType),
)


@given(
    st.lists(st.tuples(st.lists(_NOTICES, max_size=3), st.integers(0, 3), st.integers(0, 2))),
    st.integers(0, 2**32),
)
def test_whatever_is_told_the_end_is_the_state_of_the_source(
    history: list[tuple[list[Resource], int, int]], seed: int
) -> None:
    source = Source(per_list=2)
    source.list_resources()
    destination = Destination(source, Random(seed), EVERYTHING)
    for number, (documents, steps, missed) in enumerate(history, 1):
        source.change(str(number % 4), deleted=number % 3 == 0)
        destination.tell(told(*documents, number=number * 5, missed=missed * 5))
        for _ in range(steps):
            destination.step()
    destination.poll()
    assert destination.content == source.state


def test_a_source_that_says_when_to_come_back_is_not_asked_before_for_what_it_offers() -> None:
    destination = Destination(Source(), Random(1))
    (fetch,) = destination.pending
    assert isinstance(fetch, Fetch)
    follower = destination.follower
    follower.fetch_failed(fetch, Unavailable(fetch.uri, "busy", retry_after=100), 0.0)
    follower.told(told(CAPABILITY_LIST), 1.0)
    assert Discover() not in follower.tick(99.0)
    assert follower.wakeup == 100
    assert Discover() in follower.tick(100.0)
