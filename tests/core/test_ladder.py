"""The two walks up to level, document by document."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

from rsnotify.actions import Fetch
from rsnotify.baseline import Baseline
from rsnotify.coverage import Frontier
from rsnotify.errors import WrongDocument
from rsnotify.model import Document, Link, Resource
from rsnotify.offer import Offer
from rsnotify.pull import Pull
from rsnotify.vocabulary import Capability, ChangeType

BASE = "http://source.example/"
OFFER = Offer(
    resource_list=BASE + "resourcelist.xml",
    change_list=BASE + "changelist.xml",
    change_list_archive=BASE + "archive.xml",
)
START = datetime(2026, 1, 1, tzinfo=UTC)


def at(seconds: int) -> datetime:
    return START + timedelta(seconds=seconds)


def known(seconds: int) -> Frontier:
    return Frontier.at(at(seconds))


def changes(from_: int, until: int | None, *seconds: int) -> Document:
    resources = tuple(
        Resource(f"{BASE}{second}", change=ChangeType.UPDATED, datetime=at(second))
        for second in seconds
    )
    end = None if until is None else at(until)
    return Document(Capability.CHANGE_LIST, resources, from_=at(from_), until=end)


def index(capability: str, *members: Resource) -> Document:
    return Document(capability, members, index=True)


def asked(fetch: Fetch | None) -> str | None:
    return fetch and fetch.uri.removeprefix(BASE)


def test_the_link_of_the_list_to_its_archive_goes_before_that_of_the_capability_list() -> None:
    pull = Pull(OFFER)
    document = Document(
        Capability.CHANGE_LIST, from_=at(5), links=(Link("archives", "other-archive.xml"),)
    )
    assert asked(pull.read(document, known(0)).fetch) == "other-archive.xml"


def test_an_archive_index_is_read_down_to_the_lists_that_may_hold_something_new() -> None:
    pull = Pull(OFFER)
    assert asked(pull.read(changes(5, None), known(2)).fetch) == "archive.xml"
    archives = index(Capability.CHANGE_LIST_ARCHIVE, Resource(BASE + "archive-1.xml"))
    assert asked(pull.read(archives, known(2)).fetch) == "archive-1.xml"
    archive = Document(
        Capability.CHANGE_LIST_ARCHIVE,
        (
            Resource(BASE + "old.xml", from_=at(0), until=at(2)),
            Resource(BASE + "new.xml", from_=at(2), until=at(5)),
        ),
    )
    assert asked(pull.read(archive, known(2)).fetch) == "new.xml"
    step = pull.read(changes(2, 5, 3, 5), known(2))
    assert step.coverage is not None
    assert asked(step.fetch) == "changelist.xml"
    assert pull.read(changes(5, None, 6), known(5)).fetch is None


def test_an_archive_that_was_rotated_under_our_hands_is_read_again_a_few_times() -> None:
    pull = Pull(OFFER)
    empty = Document(Capability.CHANGE_LIST_ARCHIVE)
    step = pull.read(changes(5, None), known(2))
    rounds = 0
    while step.fetch is not None:
        document = empty if asked(step.fetch) == "archive.xml" else changes(5, None)
        step = pull.read(document, known(2))
        rounds += 1
        assert rounds < 20
    assert step.hole == at(5)


@pytest.mark.parametrize("capability", [Capability.CHANGE_LIST, Capability.CHANGE_LIST_ARCHIVE])
def test_an_index_that_names_itself_is_not_walked_for_ever(capability: str) -> None:
    pull = Pull(OFFER)
    step = pull.read(changes(5, None), known(2))
    looped = index(capability, *(Resource(f"{BASE}{name}") for name in ("archive.xml", "a.xml")))
    for _ in range(50):
        if step.fetch is None:
            break
        document = changes(5, None) if asked(step.fetch) == "changelist.xml" else looped
        step = pull.read(document, known(2))
    assert step.fetch is None


def test_a_resource_list_index_that_names_itself_is_not_walked_for_ever() -> None:
    baseline = Baseline(OFFER, START)
    looped = index(
        Capability.RESOURCE_LIST, *(Resource(f"{BASE}{name}") for name in ("a.xml", "b.xml"))
    )
    baseline.read(looped)
    assert asked(baseline.next()) == "a.xml"
    baseline.read(looped)
    assert asked(baseline.next()) == "b.xml"
    baseline.read(looped)
    assert baseline.next() is None


def test_an_index_of_more_lists_than_there_can_be_is_refused() -> None:
    baseline = Baseline(OFFER, START)
    first, second = (
        index(Capability.RESOURCE_LIST, *(Resource(f"{BASE}{part}/{n}") for n in range(30_000)))
        for part in "ab"
    )
    baseline.read(first)
    baseline.next()
    with pytest.raises(WrongDocument, match="50000"):
        baseline.read(second)


def test_the_earliest_at_of_all_lists_is_where_change_lists_have_to_join() -> None:
    baseline = Baseline(OFFER, START)
    baseline.read(
        index(Capability.RESOURCE_LIST, Resource(BASE + "a.xml"), Resource(BASE + "b.xml"))
    )
    for second in (7, 5):
        baseline.next()
        listed = baseline.read(Document(Capability.RESOURCE_LIST, at=at(second)))
        assert listed is not None
        assert listed.at == at(second)
    assert baseline.at == at(5)


def test_a_list_without_at_speaks_of_its_latest_lastmod_or_of_what_was_known() -> None:
    baseline = Baseline(OFFER, at(1))
    plain = Document(None, (Resource(BASE + "a", lastmod=at(3)), Resource(BASE + "b")))
    listed = baseline.read(plain)
    assert listed is not None
    assert listed.at == at(3)
    assert Baseline(OFFER, at(1)).at == at(1)


@pytest.mark.parametrize("capability", [Capability.RESOURCE_DUMP, Capability.DESCRIPTION, "moon"])
def test_another_document_where_a_list_should_stand_is_refused(capability: str) -> None:
    with pytest.raises(WrongDocument):
        Baseline(OFFER, START).read(Document(capability))
    with pytest.raises(WrongDocument):
        Pull(OFFER).read(Document(capability), known(0))
