"""What a Destination looks at when it is told of a document."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from rsnotify.errors import WrongDocument
from rsnotify.format.model import Document, Link, Resource
from rsnotify.format.offer import Offer, read_framework
from rsnotify.format.vocabulary import Capability, ChangeType, Rel
from rsnotify.sync.actions import Progress
from rsnotify.sync.document_notices import DocumentNotices, DocumentsToRead
from rsnotify.sync.frontiers import SyncFrontiers

START = datetime(2026, 1, 1, tzinfo=UTC)
BASE = "http://a/"
OFFER = Offer(
    capability_list=BASE + "capabilitylist.xml",
    resource_list=BASE + "resourcelist.xml",
    change_list=BASE + "changelist.xml",
)
NOTHING = DocumentsToRead()
OFFERED = DocumentsToRead(offer=True)
LISTS = DocumentsToRead(lists=True)


def at(seconds: int) -> datetime:
    return START + timedelta(seconds=seconds)


def entry(name: str, kind: str, **more: object) -> Resource:
    resource = Resource(BASE + name, capability=kind, change=ChangeType.UPDATED)
    return replace(resource, **more)


def told(*entries: Resource, from_: int = 0, until: int = 1) -> Document:
    dated = tuple(replace(each, datetime=each.datetime or at(until)) for each in entries)
    return Document(Capability.FRAMEWORK_NOTIFICATION, dated, from_=at(from_), until=at(until))


def hears(
    *entries: Resource, known: int | None = 100, hole: int | None = None, failing: bool = False
) -> DocumentsToRead:
    progress = None if known is None else Progress(at(known), at(known))
    knowledge = SyncFrontiers(progress, hold=10)
    if hole is not None:
        knowledge.leave_open(at(hole))
    return DocumentNotices(knowledge).hear(told(*entries), OFFER, failing=failing)


CHANGES = Capability.CHANGE_LIST
RESOURCES = Capability.RESOURCE_LIST


@pytest.mark.parametrize("kind", [Capability.CAPABILITY_LIST, Capability.DESCRIPTION])
def test_what_says_what_is_offered_is_read_anew(kind: str) -> None:
    assert hears(entry("any", kind)) == OFFERED


def test_a_kind_of_document_that_is_new_may_be_offered() -> None:
    assert hears(entry("resourcedump.xml", Capability.RESOURCE_DUMP)) == OFFERED


def test_so_may_another_where_one_is_gone() -> None:
    gone = entry("resourcelist.xml", RESOURCES, change=ChangeType.DELETED)
    assert hears(gone) == OFFERED


@pytest.mark.parametrize(("until", "look"), [(100, NOTHING), (101, LISTS)])
def test_a_closed_list_is_read_if_it_reaches_beyond_what_is_known(
    until: int, look: DocumentsToRead
) -> None:
    assert hears(entry("closed.xml", CHANGES, from_=at(50), until=at(until))) == look


@pytest.mark.parametrize(("begins", "look"), [(100, NOTHING), (101, LISTS)])
def test_the_open_list_is_read_if_it_begins_beyond_what_is_known(
    begins: int, look: DocumentsToRead
) -> None:
    assert hears(entry("changelist.xml", CHANGES, from_=at(begins))) == look


def test_a_change_list_that_says_nothing_of_its_interval_is_read() -> None:
    assert hears(entry("changelist.xml", CHANGES)) == LISTS
    assert hears(entry("that/of/another/set.xml", CHANGES)) == NOTHING


def test_before_a_baseline_no_change_list_helps() -> None:
    assert hears(entry("changelist.xml", CHANGES), known=None) == NOTHING


@pytest.mark.parametrize(("instant", "look"), [(at(299), NOTHING), (at(300), LISTS), (None, LISTS)])
def test_a_resource_list_is_read_if_it_fills_a_hole(
    instant: datetime | None, look: DocumentsToRead
) -> None:
    assert hears(entry("resourcelist.xml", RESOURCES, at=instant), hole=300) == look


def test_a_resource_list_is_not_read_by_who_needs_none() -> None:
    assert hears(entry("resourcelist.xml", RESOURCES, at=at(500))) == NOTHING


def test_that_of_another_set_fills_no_hole() -> None:
    assert hears(entry("other/resourcelist.xml", RESOURCES, at=at(500)), hole=300) == NOTHING


def test_whatever_is_new_is_tried_where_the_lists_could_not_be_read() -> None:
    assert hears(entry("resourcelist.xml", RESOURCES), failing=True) == LISTS


def test_what_is_no_document_of_a_set_is_passed_over() -> None:
    assert hears(entry("x", "something-else")) == NOTHING
    assert hears(Resource(BASE + "x", change=ChangeType.UPDATED), failing=True) == NOTHING


def test_a_change_of_a_resource_is_no_notice() -> None:
    notices = DocumentNotices(SyncFrontiers(None, hold=10))
    with pytest.raises(WrongDocument):
        notices.hear(Document(Capability.CHANGE_NOTIFICATION, from_=at(0)), OFFER, failing=False)


def test_who_does_not_say_when_is_believed_all_the_same() -> None:
    notices = DocumentNotices(SyncFrontiers(None, hold=10))
    bare = Document(Capability.FRAMEWORK_NOTIFICATION, (entry("any", Capability.CAPABILITY_LIST),))
    for _ in range(2):
        assert notices.hear(bare, OFFER, failing=False) == OFFERED
    notices.hear(told(until=5), OFFER, failing=False)
    assert notices.hear(bare, OFFER, failing=False) == OFFERED
    assert notices.through == at(5)


def test_what_came_twice_is_looked_at_once() -> None:
    notices = DocumentNotices(SyncFrontiers(None, hold=10))
    document = told(entry("any", Capability.CAPABILITY_LIST))
    assert notices.hear(document, OFFER, failing=False) == OFFERED
    assert notices.hear(document, OFFER, failing=False) == NOTHING


def test_what_was_missed_is_made_up_for_by_looking_at_everything() -> None:
    notices = DocumentNotices(SyncFrontiers(None, hold=10))
    first = notices.hear(told(from_=3, until=5), OFFER, failing=False)
    assert first == NOTHING, "whoever begins looks at all of it anyway"
    assert notices.hear(told(from_=5, until=9), OFFER, failing=False) == NOTHING
    assert notices.hear(told(from_=10, until=11), OFFER, failing=False) == DocumentsToRead(
        True, True
    )
    assert notices.through == at(11)


@given(st.lists(st.tuples(st.integers(0, 20), st.integers(0, 20))))
def test_what_was_heard_never_goes_back(intervals: list[tuple[int, int]]) -> None:
    notices = DocumentNotices(SyncFrontiers(None, hold=10))
    reached = START
    for begin, length in intervals:
        notices.hear(told(from_=begin, until=begin + length), OFFER, failing=False)
        assert notices.through is not None
        assert notices.through >= max(reached, at(begin + length))
        reached = notices.through


# Where it is told

TOPIC = (Link(Rel.MONITOR_GROUP, "framework.xml"), Link(Rel.HUB, "wss://hub.example/ws"))
SET = Resource(BASE + "capabilitylist.xml", capability=Capability.CAPABILITY_LIST)
OTHER = Resource(BASE + "other/capabilitylist.xml", capability=Capability.CAPABILITY_LIST)
OF_ALL = (Link(Rel.MONITOR_GROUP, "all.xml"),)
ENTRY = Resource(
    "entry.xml", capability=Capability.FRAMEWORK_NOTIFICATION, links=(Link(Rel.HUB, "ws://x/"),)
)


def channel(*entries: Resource, links: tuple[Link, ...] = ()) -> tuple[str | None, tuple[str, ...]]:
    description = Document(Capability.DESCRIPTION, entries, links=links)
    found = read_framework(OFFER, description, BASE + ".well-known/resourcesync")
    return found.framework, found.framework_hubs


def test_the_channel_is_found_by_the_link_of_the_source_description() -> None:
    found = (BASE + ".well-known/framework.xml", ("wss://hub.example/ws",))
    assert channel(SET, links=TOPIC) == found


def test_of_several_sets_each_has_its_own() -> None:
    found = (BASE + ".well-known/framework.xml", ("wss://hub.example/ws",))
    entries = (replace(OTHER, links=OF_ALL), replace(SET, links=TOPIC))
    assert channel(*entries, links=OF_ALL) == found
    assert channel(*entries[:1], SET) == (None, ())


def test_it_is_found_where_the_specification_has_it() -> None:
    assert channel(SET, ENTRY) == (BASE + ".well-known/entry.xml", ("ws://x/",))
    assert channel(SET, ENTRY, links=OF_ALL) == (BASE + ".well-known/all.xml", ())


def test_a_channel_that_is_named_no_longer_is_offered_no_longer() -> None:
    before = replace(OFFER, framework="http://a/x", framework_hubs=("ws://x/",))
    description = Document(Capability.DESCRIPTION, (SET,))
    assert read_framework(before, description, BASE) == replace(OFFER, listed=True)
