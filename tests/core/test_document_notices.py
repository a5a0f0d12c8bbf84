"""Which documents a Destination reads after a Framework Notification."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from rsnotify.errors import WrongDocument
from rsnotify.format.model import Capability, ChangeType, Document, Resource
from rsnotify.format.offer import Offer
from rsnotify.sync.frontiers import SyncFrontiers
from rsnotify.sync.poll_schedule import DocumentNotices, DocumentsToRead
from rsnotify.sync.progress import Progress
from tests.core.source import EPOCH, at

BASE = "http://a/"
OFFER = Offer(
    capability_list=BASE + "capabilitylist.xml",
    resource_list=BASE + "resourcelist.xml",
    change_list=BASE + "changelist.xml",
)
NOTHING = DocumentsToRead()
OFFERED = DocumentsToRead(offer=True)
LISTS = DocumentsToRead(lists=True)


def entry(name: str, kind: str, **more: object) -> Resource:
    resource = Resource(BASE + name, capability=kind, change=ChangeType.UPDATED)
    return replace(resource, **more)


def notification(*entries: Resource, from_: int = 0, until: int = 1) -> Document:
    dated = tuple(replace(each, datetime=each.datetime or at(until)) for each in entries)
    return Document(Capability.FRAMEWORK_NOTIFICATION, dated, from_=at(from_), until=at(until))


def documents_to_read(
    *entries: Resource, known: int | None = 100, gap: int | None = None, failing: bool = False
) -> DocumentsToRead:
    progress = None if known is None else Progress(at(known), at(known))
    frontiers = SyncFrontiers(progress, hold=10)
    if gap is not None:
        frontiers.skip_gap(at(gap))
    return DocumentNotices(frontiers).read(notification(*entries), OFFER, failing=failing)


CHANGES = Capability.CHANGE_LIST
RESOURCES = Capability.RESOURCE_LIST


LIST, OPEN = "resourcelist.xml", "changelist.xml"
GONE = {"change": ChangeType.DELETED}


@pytest.mark.parametrize(
    ("announced", "situation", "expected"),
    [
        (entry("any", Capability.CAPABILITY_LIST), {}, OFFERED),
        (entry("any", Capability.DESCRIPTION), {}, OFFERED),
        (entry("resourcedump.xml", Capability.RESOURCE_DUMP), {}, OFFERED),  # a new kind
        (entry(LIST, RESOURCES, **GONE), {}, OFFERED),
        # A closed list that reaches beyond what is known, and the open one that begins there.
        (entry("closed.xml", CHANGES, from_=at(50), until=at(100)), {}, NOTHING),
        (entry("closed.xml", CHANGES, from_=at(50), until=at(101)), {}, LISTS),
        (entry(OPEN, CHANGES, from_=at(100)), {}, NOTHING),
        (entry(OPEN, CHANGES, from_=at(101)), {}, LISTS),
        (entry(OPEN, CHANGES), {}, LISTS),
        (entry("that/of/another/set.xml", CHANGES), {}, NOTHING),
        (entry(OPEN, CHANGES), {"known": None}, NOTHING),  # before a baseline
        # A Resource List that closes a gap.
        (entry(LIST, RESOURCES, at=at(299)), {"gap": 300}, NOTHING),
        (entry(LIST, RESOURCES, at=at(300)), {"gap": 300}, LISTS),
        (entry(LIST, RESOURCES), {"gap": 300}, LISTS),
        (entry(LIST, RESOURCES, at=at(500)), {}, NOTHING),
        (entry("other/resourcelist.xml", RESOURCES, at=at(500)), {"gap": 300}, NOTHING),
        # Any new document, if the lists could not be read.
        (entry(LIST, RESOURCES), {"failing": True}, LISTS),
        (entry("x", "something-else"), {}, NOTHING),
        (Resource(BASE + "x", change=ChangeType.UPDATED), {"failing": True}, NOTHING),
    ],
)
def test_an_announced_document_is_read_if_it_may_have_something_new(
    announced: Resource, situation: dict[str, Any], expected: DocumentsToRead
) -> None:
    assert documents_to_read(announced, **situation) == expected


@pytest.fixture
def notices() -> DocumentNotices:
    return DocumentNotices(SyncFrontiers(None, hold=10))


def read(notices: DocumentNotices, *entries: Resource, from_: int, until: int) -> DocumentsToRead:
    return notices.read(notification(*entries, from_=from_, until=until), OFFER, failing=False)


def test_a_change_notification_is_refused(notices: DocumentNotices) -> None:
    with pytest.raises(WrongDocument, match=Capability.CHANGE_NOTIFICATION):
        notices.read(Document(Capability.CHANGE_NOTIFICATION, from_=at(0)), OFFER, failing=False)


def test_a_notification_without_datetimes_is_always_followed(notices: DocumentNotices) -> None:
    bare = Document(Capability.FRAMEWORK_NOTIFICATION, (entry("any", Capability.CAPABILITY_LIST),))
    for _ in range(2):
        assert notices.read(bare, OFFER, failing=False) == OFFERED
    read(notices, from_=0, until=5)
    assert notices.read(bare, OFFER, failing=False) == OFFERED
    assert notices.through == at(5)


def test_a_duplicate_notification_is_ignored(notices: DocumentNotices) -> None:
    listed = entry("any", Capability.CAPABILITY_LIST)
    assert read(notices, listed, from_=0, until=1) == OFFERED
    assert read(notices, listed, from_=0, until=1) == NOTHING


def test_after_a_missed_notification_everything_is_read(notices: DocumentNotices) -> None:
    first = read(notices, from_=3, until=5)
    assert first == NOTHING, "a new follower reads everything anyway"
    assert read(notices, from_=5, until=9) == NOTHING
    assert read(notices, from_=10, until=11) == DocumentsToRead(True, True)
    assert notices.through == at(11)


@given(st.lists(st.tuples(st.integers(0, 20), st.integers(0, 20))))
def test_the_last_notification_received_never_goes_back(intervals: list[tuple[int, int]]) -> None:
    notices = DocumentNotices(SyncFrontiers(None, hold=10))
    reached = EPOCH
    for begin, length in intervals:
        read(notices, from_=begin, until=begin + length)
        assert notices.through is not None
        assert notices.through >= max(reached, at(begin + length))
        reached = notices.through
