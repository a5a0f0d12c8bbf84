"""The two walks up to level, document by document."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest
from msgspec.structs import replace

from rsnotify.errors import ContentMismatch, NotFound, WrongDocument
from rsnotify.format.coverage import change_list_coverage
from rsnotify.format.frontier import Frontier
from rsnotify.format.model import Document, Link, Resource
from rsnotify.format.offer import Offer
from rsnotify.format.vocabulary import Capability, ChangeType
from rsnotify.sync.actions import DocumentKind, Fetch
from rsnotify.sync.baseline import Baseline
from rsnotify.sync.fallback_order import change_ways
from rsnotify.sync.pull import Pull, PullStep

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


def test_an_archive_that_brings_nothing_is_not_read_again_and_leaves_a_hole() -> None:
    pull = Pull(OFFER)
    empty = Document(Capability.CHANGE_LIST_ARCHIVE)
    assert asked(pull.read(changes(5, None), known(2)).fetch) == "archive.xml"
    assert asked(pull.read(empty, known(2)).fetch) == "changelist.xml"
    assert pull.read(changes(5, None), known(2)) == PullStep(hole=at(5))


def test_what_was_rotated_away_while_the_archive_was_read_is_looked_for_in_it_again() -> None:
    pull = Pull(OFFER)
    pull.read(changes(5, None), known(2))
    closed = Resource(BASE + "new.xml", from_=at(2), until=at(5))
    pull.read(Document(Capability.CHANGE_LIST_ARCHIVE, (closed,)), known(2))
    pull.read(changes(2, 5, 3, 5), known(2))
    assert asked(pull.read(changes(7, None), known(5)).fetch) == "archive.xml"


def test_a_source_that_rotates_all_the_time_does_not_keep_a_pull_for_ever() -> None:
    pull = Pull(OFFER)
    step = pull.read(changes(1, None), known(0))
    second = 0
    while step.fetch is not None:
        second += 1
        document = Document(Capability.CHANGE_LIST_ARCHIVE)
        if asked(step.fetch) == "changelist.xml":
            document = changes(second + 1, None)
        step = pull.read(document, known(second))
        assert second < 100
    assert step.hole is not None


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


FULL = replace(OFFER, change_dump=BASE + "changedump.xml", change_dump_archive=BASE + "dumps.xml")


def dump(from_: int, *packages: Resource, until: int | None = None) -> Document:
    end = None if until is None else at(until)
    return Document(Capability.CHANGE_DUMP, packages, from_=at(from_), until=end)


def manifest(from_: int, until: int, *seconds: int) -> Document:
    return replace(changes(from_, until, *seconds), capability=Capability.CHANGE_DUMP_MANIFEST)


def test_the_ways_are_taken_in_the_order_of_their_cost() -> None:
    pull = Pull(FULL)
    ways = [pull.current.rung]
    documents = {
        DocumentKind.CHANGE_LIST: changes(5, None),
        DocumentKind.CHANGE_LIST_ARCHIVE: changes(5, 6),
        DocumentKind.CHANGE_DUMP: dump(5),
        DocumentKind.CHANGE_DUMP_ARCHIVE: Document(Capability.CHANGE_DUMP_ARCHIVE, from_=at(5)),
    }
    step = pull.read(documents[pull.current.rung], known(2))
    while step.fetch is not None:
        ways.append(step.fetch.rung)
        step = pull.read(documents[pull.current.rung], known(2))
    assert ways == list(documents)
    assert step.hole == at(5)


def test_a_change_dump_is_read_package_by_package_and_then_the_change_list() -> None:
    pull = Pull(replace(FULL, change_list_archive=None))
    assert asked(pull.read(changes(5, None), known(2)).fetch) == "changedump.xml"
    packages = (
        Resource("old.zip", from_=at(0), until=at(2)),
        Resource("new.zip", from_=at(2), until=at(5)),
    )
    step = pull.read(dump(0, *packages), known(2))
    assert step.fetch is not None
    assert step.fetch.package == replace(packages[1], uri=BASE + "new.zip")
    step = pull.read(manifest(2, 5, 3, 5), known(2))
    assert step.coverage is not None
    assert {change.package for change in step.coverage.changes} == {BASE + "new.zip"}
    assert asked(step.fetch) == "changelist.xml"


def test_a_package_with_another_manifest_is_refused() -> None:
    pull = Pull(Offer(change_dump=FULL.change_dump))
    pull.read(dump(0, Resource("a.zip")), known(0))
    with pytest.raises(WrongDocument, match="Change Dump Manifest"):
        pull.read(changes(0, 5, 3), known(0))


def test_a_package_without_times_is_read_again_only_if_it_looks_otherwise() -> None:
    before = Resource(BASE + "a.zip", length=10)
    for now, again in ((before, False), (Resource(BASE + "a.zip", length=20), True)):
        pull = Pull(Offer(change_dump=FULL.change_dump), {before.uri: before})
        assert (pull.read(dump(0, now), known(1)).fetch is not None) is again
    silent = Resource(BASE + "a.zip")
    pull = Pull(Offer(change_dump=FULL.change_dump), {silent.uri: silent})
    assert pull.read(dump(0, silent), known(1)).fetch is not None


def test_a_broken_way_is_left_and_the_first_one_read_again_after_the_next() -> None:
    pull = Pull(FULL)
    pull.read(changes(5, None), known(2))
    step = pull.broken(NotFound(BASE + "archive.xml", "404"), known(2))
    assert asked(step.fetch) == "changedump.xml"
    step = pull.read(dump(0, Resource("a.zip", from_=at(2), until=at(5))), known(2))
    assert asked(pull.read(manifest(2, 5, 3), known(2)).fetch) == "changelist.xml"
    assert pull.read(changes(5, None), known(5)) == PullStep(change_list_coverage(changes(5, None)))


def test_where_the_first_way_is_broken_the_others_are_read_but_it_is_not_level() -> None:
    pull = Pull(FULL)
    error = NotFound(BASE + "changelist.xml", "404")
    assert asked(pull.broken(error, known(2)).fetch) == "archive.xml"
    archive = Document(Capability.CHANGE_LIST_ARCHIVE)
    assert asked(pull.read(archive, known(2)).fetch) == "changedump.xml"
    assert asked(pull.read(dump(2), known(2)).fetch) == "dumps.xml"
    assert pull.read(Document(Capability.CHANGE_DUMP_ARCHIVE), known(2)).failure is error


def test_a_broken_way_is_no_hole() -> None:
    pull = Pull(OFFER)
    pull.read(changes(5, None), known(2))
    error = NotFound(BASE + "archive.xml", "404")
    assert pull.broken(error, known(2)) == PullStep(failure=error)


@pytest.mark.parametrize("running", [True, False])
def test_a_second_that_was_still_running_is_looked_for_in_the_closed_list(running: bool) -> None:
    pull = Pull(OFFER)
    frontier = Frontier.at(at(5))
    frontier.over = not running
    step = pull.read(changes(5, None, 6), frontier)
    assert asked(step.fetch) == ("archive.xml" if running else None)
    if running:
        closed = Resource(BASE + "new.xml", from_=at(2), until=at(5))
        archive = Document(Capability.CHANGE_LIST_ARCHIVE, (closed,))
        assert asked(pull.read(archive, frontier).fetch) == "new.xml"


def test_where_no_closed_list_tells_of_that_second_there_is_no_hole() -> None:
    offer = Offer(change_list=OFFER.change_list, change_list_archive=OFFER.change_list_archive)
    pull = Pull(offer)
    frontier = Frontier.at(at(5))
    frontier.over = False
    assert asked(pull.read(changes(5, None, 6), frontier).fetch) == "archive.xml"
    archive = Document(Capability.CHANGE_LIST_ARCHIVE)
    assert asked(pull.read(archive, frontier).fetch) == "changelist.xml"
    assert pull.read(changes(5, None, 6), frontier).coverage is not None


def test_where_there_is_one_way_only_it_is_not_read_twice_for_that_second() -> None:
    pull = Pull(Offer(change_list=OFFER.change_list))
    frontier = Frontier.at(at(5))
    frontier.over = False
    step = pull.read(changes(5, None, 6), frontier)
    assert (step.coverage is not None, step.fetch, step.hole) == (True, None, None)


@pytest.mark.parametrize(
    ("offer", "rungs"),
    [
        (Offer(change_dump="d", change_list_archive="a"), "Change Dump, Change List Archive"),
        (Offer(change_list_archive="a"), "Change List Archive"),
        (Offer(change_list_archive="a", resource_list="r"), ""),
    ],
)
def test_what_tells_the_latest_changes_comes_first(offer: Offer, rungs: str) -> None:
    assert ", ".join(way.rung for way in change_ways(offer)) == rungs


def walk(baseline: Baseline, *documents: Document) -> list[str | None]:
    """Answer with these documents in turn, and return what was asked for."""
    fetches = [asked(baseline.current)]
    for document in documents:
        baseline.read(document)
        fetches.append(asked(baseline.next()))
    return fetches


DUMPED = Offer(
    resource_list=BASE + "resourcelist.xml",
    resource_dump=BASE + "resourcedump.xml",
    resource_list_archive=BASE + "lists.xml",
)


def resource_dump(second: int | None = 5) -> Document:
    packages = (Resource("a.zip"), Resource("b.zip"))
    return Document(Capability.RESOURCE_DUMP, packages, at=second and at(second))


def held(second: int) -> Document:
    entry = Resource(BASE + "x", path="/x")
    return Document(Capability.RESOURCE_DUMP_MANIFEST, (entry,), at=at(second))


def test_a_dump_is_read_package_by_package() -> None:
    baseline = Baseline(DUMPED, START, dump_first=True)
    assert walk(baseline, resource_dump()) == ["resourcedump.xml", "a.zip"]
    listed = baseline.read(held(6))
    assert listed is not None
    assert (listed.at, listed.package) == (at(6), BASE + "a.zip")
    assert asked(baseline.next()) == "b.zip"
    baseline.read(held(7))
    assert baseline.next() is None
    assert baseline.complete
    assert baseline.at == at(5)


def test_of_a_dump_with_a_broken_package_the_others_are_taken_and_then_the_list() -> None:
    baseline = Baseline(DUMPED, START, dump_first=True)
    walk(baseline, resource_dump())
    baseline.broken(ContentMismatch(BASE + "a.zip", "truncated"))
    assert asked(baseline.next()) == "b.zip"
    assert walk(baseline, held(7)) == ["b.zip", "resourcelist.xml"]
    assert walk(baseline, Document(Capability.RESOURCE_LIST, at=at(9)))[-1] is None
    assert baseline.complete
    assert baseline.at == at(9)


def test_the_youngest_archived_list_is_read_where_nothing_else_is_left() -> None:
    baseline = Baseline(DUMPED, START)
    for place in ("resourcedump.xml", "lists.xml"):
        baseline.broken(NotFound(baseline.current.uri, "404"))
        assert asked(baseline.next()) == place
    archive = index(Capability.RESOURCE_LIST_ARCHIVE, Resource("1.xml"), Resource("2.xml"))
    lists = (Resource("new.xml", at=at(8)), Resource("old.xml", at=at(2)))
    archived = Document(Capability.RESOURCE_LIST_ARCHIVE, lists)
    assert walk(baseline, archive, archived) == ["lists.xml", "2.xml", "new.xml"]
    assert walk(baseline, Document(Capability.RESOURCE_LIST, at=at(8)))[-1] is None
    assert baseline.complete


def test_archives_are_left_alone_where_nothing_is_broken() -> None:
    offer = replace(DUMPED, resource_list=None)
    baseline = Baseline(offer, START, is_old=lambda instant: instant <= at(5))
    assert walk(baseline, resource_dump()) == ["resourcedump.xml", None]
    assert not baseline.complete
    assert baseline.error is None


def test_a_dump_without_at_is_known_by_its_looks() -> None:
    offer = Offer(resource_dump=BASE + "resourcedump.xml")
    first = Baseline(offer, START)
    walk(first, resource_dump(None), held(1), held(1))
    second = Baseline(offer, START, walked=first.walked)
    assert walk(second, resource_dump(None))[-1] is None
    assert not second.complete


def test_a_dump_that_was_not_read_to_its_end_is_read_again() -> None:
    offer = Offer(resource_dump=BASE + "resourcedump.xml")
    first = Baseline(offer, START)
    walk(first, resource_dump(None))
    first.broken(ContentMismatch(BASE + "a.zip", "truncated"))
    assert first.walked is None


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
