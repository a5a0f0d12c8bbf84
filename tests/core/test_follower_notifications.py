"""What a Destination does after a Framework Notification."""

from __future__ import annotations

from datetime import datetime
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from rsnotify.errors import Unavailable
from rsnotify.format.datetimes import MICROSECOND
from rsnotify.format.model import Capability, ChangeType, Document, Resource
from rsnotify.sync.actions import Discover
from rsnotify.sync.poll_schedule import SPEEDUP_AFTER_NEWS
from rsnotify.sync.progress import Progress
from tests.core.wire import Wire
from tests.core.world import BASE, EPOCH, EVERYTHING, OFFER, PACE, Destination, Source

#: The longest time until announced documents are read.
SOON = PACE.poll / SPEEDUP_AFTER_NEWS


@pytest.fixture
def source() -> Source:
    source = Source(per_list=2)
    for name in "abcdefghij":
        source.change(name)
    source.rotate()
    source.list_resources()
    return source


def following(source: Source) -> Destination:
    """Return a Destination that is level and follows by push."""
    destination = Destination(source, Random(1))
    destination.settle()
    destination.push_up()
    destination.poll()
    destination.fetches.clear()
    return destination


@pytest.fixture
def destination(source: Source) -> Destination:
    return following(source)


def notification(*documents: Resource, number: int = 1, missed: int = 0) -> Document:
    """Return a Framework Notification.

    Args:
        number: The number of the notification in its sequence.
        missed: How many before it were lost.
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
    ends = destination.now + SOON
    while (wakeup := destination.follower.wakeup) is not None and wakeup <= ends:
        destination.tick()
        destination.work()
    destination.tick(max(0.0, ends - destination.now))


@pytest.mark.parametrize("is_new", [True, False])
def test_an_announced_list_is_read_before_the_next_poll_if_it_has_a_lost_change(
    source: Source, destination: Destination, is_new: bool
) -> None:
    if is_new:
        source.change("lost")
    destination.notify(notification(closed(source.clock)))
    soon(destination)
    assert destination.content == source.state
    assert bool(destination.fetches) is is_new


def test_a_gap_is_closed_as_soon_as_a_newer_resource_list_is_announced(
    source: Source,
) -> None:
    destination = following(source)
    source.kept = 0
    source.change("forgotten")
    source.rotate(1)
    source.change("announced")
    destination.settle()
    destination.push_gap()
    for _ in range(20):
        destination.tick()
        destination.work()
    assert not destination.follower.level
    source.list_resources()
    destination.fetches.clear()
    destination.notify(notification(listed(source.clock)))
    soon(destination)
    assert BASE + "resourcelist.xml" in destination.fetches
    destination.settle()
    assert destination.content == source.state


def test_after_a_failure_any_announced_document_leads_to_another_attempt() -> None:
    wire = Wire(OFFER, Progress(EPOCH, EPOCH), poll=0.08)
    wire.answer(Unavailable(BASE, "out of reach"))
    wire.follower.notified(notification(listed(EPOCH)), wire.now)
    assert wire.wait() <= 0.08 / SPEEDUP_AFTER_NEWS < PACE.retry.first / 2
    assert wire.requested()


def test_several_notifications_lead_to_one_discovery(source: Source) -> None:
    destination = following(source)
    for number in (1, 2, 3):
        destination.notify(notification(CAPABILITY_LIST, number=number))
    discoveries = []
    while (wakeup := destination.follower.wakeup) is not None and wakeup <= SOON + destination.now:
        destination.now = wakeup
        discoveries += [a for a in destination.follower.tick(wakeup) if isinstance(a, Discover)]
    assert len(discoveries) == 1


def test_losing_push_leads_to_one_discovery(source: Source) -> None:
    destination = following(source)
    follower = destination.follower
    follower.push_down(destination.now)
    discoveries = []
    while (wakeup := follower.wakeup) is not None:
        discoveries += [wakeup for a in follower.tick(wakeup) if isinstance(a, Discover)]
    assert len(discoveries) == 1
    assert PACE.poll / 2 <= discoveries[0] - destination.now <= PACE.poll


def test_a_missed_notification_leads_to_a_poll(source: Source, destination: Destination) -> None:
    destination.notify(notification())
    source.change("lost")
    destination.notify(notification(number=9, missed=1))
    soon(destination)
    assert destination.content == source.state


def test_a_document_that_is_no_notification_is_logged_and_ignored(
    destination: Destination,
) -> None:
    destination.notify(Document(Capability.CHANGE_LIST, from_=EPOCH))
    assert "ignored" in destination.notes[-1]
    soon(destination)
    assert destination.fetches == []
    assert destination.follower.level


def test_a_first_copy_switches_to_a_dump_that_is_offered_meanwhile(source: Source) -> None:
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


def test_a_copy_that_is_nearly_complete_does_not_switch_to_a_dump(source: Source) -> None:
    destination = following(source)
    destination.offer = replace(OFFER, resource_dump=EVERYTHING.resource_dump)
    dump = Resource(BASE + "resourcedump.xml", capability=Capability.RESOURCE_DUMP)
    destination.notify(notification(dump))
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
def test_any_notifications_end_in_the_state_of_the_source(
    history: list[tuple[list[Resource], int, int]], seed: int
) -> None:
    source = Source(per_list=2)
    source.list_resources()
    destination = Destination(source, Random(seed), EVERYTHING)
    for number, (documents, steps, missed) in enumerate(history, 1):
        source.change(str(number % 4), deleted=number % 3 == 0)
        destination.notify(notification(*documents, number=number * 5, missed=missed * 5))
        for _ in range(steps):
            destination.step()
    destination.poll()
    assert destination.content == source.state


def test_a_framework_notification_among_the_changes_hides_no_lost_change(source: Source) -> None:
    destination = following(source)
    through = destination.progress.through
    source.change("lost")
    destination.push(
        Document(Capability.FRAMEWORK_NOTIFICATION, (), from_=through, until=source.clock)
    )
    destination.tick(PACE.gap_grace + SOON)
    destination.work()
    assert destination.content == source.state
