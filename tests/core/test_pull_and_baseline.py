"""Which documents pulls and baselines read, one after the other."""

from __future__ import annotations

from datetime import datetime
from typing import Any

import pytest
from msgspec.structs import replace

from rsnotify.errors import ContentMismatch, NotFound, WrongDocument
from rsnotify.format.coverage import Coverage, Frontier, change_list_coverage
from rsnotify.format.datetimes import MICROSECOND
from rsnotify.format.model import Capability, ChangeType, Document, Link, Resource
from rsnotify.format.offer import Offer
from rsnotify.sync import closed_lists as closed_lists_module
from rsnotify.sync.actions import DocumentKind, Fetch
from rsnotify.sync.baseline import Baseline, ListedResources
from rsnotify.sync.closed_lists import ClosedLists, KnownLists
from rsnotify.sync.pull import PageJoiner, Pull, PullStep, change_documents
from tests.core.source import EPOCH, at

BASE = "http://source.example/"
OFFER = Offer(
    resource_list=BASE + "resourcelist.xml",
    change_list=BASE + "changelist.xml",
    change_list_archive=BASE + "archive.xml",
)


def known(seconds: int) -> Frontier:
    return Frontier.at(at(seconds))


def changes(from_: int, until: int | None, *seconds: int) -> Document:
    resources = tuple(
        Resource(f"{BASE}{second}", change=ChangeType.UPDATED, datetime=at(second))
        for second in seconds
    )
    end = None if until is None else at(until)
    return Document(Capability.CHANGE_LIST, resources, from_=at(from_), until=end)


def archive(*members: Resource) -> Document:
    return Document(Capability.CHANGE_LIST_ARCHIVE, members)


def member(name: str, from_: int, until: int) -> Resource:
    """Return an entry of an index, an archive or a dump."""
    return Resource(BASE + name, from_=at(from_), until=at(until))


def resource_list(second: int, **fields: Any) -> Document:
    return Document(Capability.RESOURCE_LIST, at=at(second), **fields)


def missing(name: str) -> NotFound:
    return NotFound(BASE + name, "404")


def follow(pull: Pull, known: Frontier, *documents: Document) -> list[str | None]:
    """Read documents one after the other; return what is requested after each."""
    return [name(pull.read(document, known).fetch) for document in documents]


def covered(step: PullStep) -> Coverage:
    assert step.coverage is not None
    return step.coverage


def index(capability: str, *members: Resource) -> Document:
    return Document(capability, members, index=True)


def name(fetch: Fetch | None) -> str | None:
    return fetch and fetch.uri.removeprefix(BASE)


def test_the_archive_link_of_the_list_is_preferred_to_that_of_the_capability_list() -> None:
    pull = Pull(OFFER)
    document = Document(
        Capability.CHANGE_LIST, from_=at(5), links=(Link("archives", "other-archive.xml"),)
    )
    assert name(pull.read(document, known(0)).fetch) == "other-archive.xml"


def test_an_archive_index_is_followed_to_the_lists_that_may_have_new_changes() -> None:
    pull = Pull(OFFER)
    archives = index(Capability.CHANGE_LIST_ARCHIVE, Resource(BASE + "archive-1.xml"))
    members = archive(member("old.xml", 0, 2), member("new.xml", 2, 5))
    requested = follow(pull, known(2), changes(5, None), archives, members)
    assert requested == ["archive.xml", "archive-1.xml", "new.xml"]
    step = pull.read(changes(2, 5, 3, 5), known(2))
    assert step.coverage is not None
    assert name(step.fetch) == "changelist.xml"
    opened = Fetch(OFFER.change_list or "", DocumentKind.CHANGE_LIST)
    assert pull.is_open(opened)
    assert not pull.is_open(replace(opened, kind=DocumentKind.CHANGE_LIST_ARCHIVE))
    assert not pull.is_open(replace(opened, package=Resource("package.zip")))
    assert pull.read(changes(5, None, 6), known(5)).fetch is None


def test_an_archive_without_new_changes_is_not_read_again_and_leaves_a_gap() -> None:
    pull = Pull(OFFER)
    requested = follow(pull, known(2), changes(5, None), archive())
    assert requested == ["archive.xml", "changelist.xml"]
    assert pull.read(changes(5, None), known(2)) == PullStep(gap_ends=at(5))


def test_changes_rotated_away_while_the_archive_was_read_are_read_from_it_again() -> None:
    pull = Pull(OFFER)
    closed = archive(member("new.xml", 2, 5))
    follow(pull, known(2), changes(5, None), closed, changes(2, 5, 3, 5))
    assert follow(pull, known(5), changes(7, None), closed) == ["archive.xml", "changelist.xml"]
    assert pull.read(changes(7, None), known(5)) == PullStep(gap_ends=at(7))


def test_a_pull_from_a_source_that_rotates_all_the_time_reads_the_archive_eight_times() -> None:
    pull = Pull(OFFER)
    step = pull.read(changes(1, None), known(0))
    requested: list[str | None] = []
    while step.fetch is not None and len(requested) < 100:
        requested.append(name(step.fetch))
        second = len(requested)
        is_list = requested[-1] == "changelist.xml"
        step = pull.read(changes(second + 1, None) if is_list else archive(), known(second))
    assert requested == ["archive.xml", "changelist.xml"] * 8
    assert step.gap_ends is not None


@pytest.mark.parametrize("capability", [Capability.CHANGE_LIST, Capability.CHANGE_LIST_ARCHIVE])
def test_an_index_that_names_itself_is_not_read_forever(capability: str) -> None:
    pull = Pull(OFFER)
    step = pull.read(changes(5, None), known(2))
    looped = index(capability, *(Resource(f"{BASE}{name}") for name in ("archive.xml", "a.xml")))
    for _ in range(50):
        if step.fetch is None:
            break
        document = changes(5, None) if name(step.fetch) == "changelist.xml" else looped
        step = pull.read(document, known(2))
    assert step.fetch is None


def test_a_resource_list_index_that_names_itself_is_not_read_forever() -> None:
    looped = index(Capability.RESOURCE_LIST, Resource(BASE + "a.xml"), Resource(BASE + "b.xml"))
    requested = requests(Baseline(OFFER, EPOCH), looped, looped, looped)
    assert requested == ["resourcelist.xml", "a.xml", "b.xml", None]


def test_an_index_of_more_lists_than_there_can_be_is_refused() -> None:
    baseline = Baseline(OFFER, EPOCH)
    for part, lists in (("a", 30_000), ("b", 19_999)):  # and the root
        members = (Resource(f"{BASE}{part}/{n}") for n in range(lists))
        baseline.read(index(Capability.RESOURCE_LIST, *members))
        baseline.next()
    with pytest.raises(WrongDocument, match="50,000"):
        baseline.read(index(Capability.RESOURCE_LIST, Resource(BASE + "c")))


FULL = replace(OFFER, change_dump=BASE + "changedump.xml", change_dump_archive=BASE + "dumps.xml")


def dump(from_: int, *packages: Resource, until: int | None = None) -> Document:
    end = None if until is None else at(until)
    return Document(Capability.CHANGE_DUMP, packages, from_=at(from_), until=end)


def manifest(from_: int, until: int, *seconds: int) -> Document:
    return replace(changes(from_, until, *seconds), capability=Capability.CHANGE_DUMP_MANIFEST)


def page(from_: int | None, until: int | None, second: int, following: int | None) -> Document:
    links = () if following is None else (Link("next", f"page-{following}.xml"),)
    first = None if from_ is None else at(from_)
    return replace(changes(0, until, second), from_=first, links=links)


@pytest.mark.parametrize(
    ("froms", "untils", "from_", "until"),
    [
        ((2, 1, 3), (4, 6, 5), 1, 6),
        ((None, 3, 2), (4, None, 5), 2, None),
        ((None, None, None), (None, None, None), None, None),
    ],
)
def test_the_pages_of_a_list_are_one_document_that_covers_all_their_intervals(
    froms: tuple[int | None, ...],
    untils: tuple[int | None, ...],
    from_: int | None,
    until: int | None,
) -> None:
    joiner = PageJoiner()
    for _ in range(2):
        pages = [page(froms[n], untils[n], n, None if n == 2 else n + 1) for n in range(3)]
        assert joiner.add(BASE + "page-0.xml", pages[0]) == BASE + "page-1.xml"
        assert joiner.add(BASE + "page-1.xml", pages[1]) == BASE + "page-2.xml"
        whole = joiner.add(BASE + "page-2.xml", pages[2])
        assert isinstance(whole, Document)
        entries = tuple(entry for page in pages for entry in page.resources)
        assert whole == replace(
            pages[0],
            resources=entries,
            from_=None if from_ is None else at(from_),
            until=None if until is None else at(until),
        )


def test_pages_that_lead_back_or_do_not_end_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    joiner = PageJoiner()
    joiner.add(BASE + "page-0.xml", page(0, None, 1, 1))
    with pytest.raises(WrongDocument, match=r"leads back to .*page-0\.xml"):
        joiner.add(BASE + "page-1.xml", page(0, None, 2, 0))
    monkeypatch.setattr("rsnotify.sync.pull._MAX_PAGES", 3)
    joiner = PageJoiner()
    for n in range(2):
        joiner.add(f"{BASE}page-{n}.xml", page(0, None, n, n + 1))
    with pytest.raises(WrongDocument, match="more than 3 pages"):
        joiner.add(BASE + "page-2.xml", page(0, None, 2, 3))
    monkeypatch.setattr("rsnotify.sync.pull._MAX_PAGED_ENTRIES", 1)
    joiner = PageJoiner()
    joiner.add(BASE + "page-0.xml", page(0, None, 1, 1))
    with pytest.raises(WrongDocument, match="1 entries"):
        joiner.add(BASE + "page-1.xml", page(0, None, 2, 2))
    joiner = PageJoiner()
    joiner.add(BASE + "single.xml", page(0, None, 1, None))
    following = joiner.add(BASE + "page-0.xml", page(0, None, 1, 1))
    assert following == BASE + "page-1.xml", "only entries of the same list count"


def test_root_documents_are_read_in_the_order_of_their_cost() -> None:
    pull = Pull(FULL)
    kinds = [pull.current.kind]
    documents = {
        DocumentKind.CHANGE_LIST: changes(5, None),
        DocumentKind.CHANGE_LIST_ARCHIVE: changes(5, 6),
        DocumentKind.CHANGE_DUMP: dump(5),
        DocumentKind.CHANGE_DUMP_ARCHIVE: Document(Capability.CHANGE_DUMP_ARCHIVE, from_=at(5)),
    }
    step = pull.read(documents[pull.current.kind], known(2))
    while step.fetch is not None:
        kinds.append(step.fetch.kind)
        step = pull.read(documents[pull.current.kind], known(2))
    assert kinds == list(documents)
    assert step.gap_ends == at(5)


def test_a_change_dump_is_read_package_by_package_and_then_the_change_list() -> None:
    pull = Pull(replace(FULL, change_list_archive=None))
    assert name(pull.read(changes(5, None), known(2)).fetch) == "changedump.xml"
    packages = (member("old.zip", 0, 2), member("new.zip", 2, 5))
    step = pull.read(dump(0, *packages), known(2))
    assert step.fetch is not None
    assert step.fetch.package == packages[1]
    step = pull.read(manifest(2, 5, 3, 5), known(2))
    assert {change.package for change in covered(step).changes} == {BASE + "new.zip"}
    assert name(step.fetch) == "changelist.xml"


def test_a_package_with_another_manifest_is_refused() -> None:
    pull = Pull(Offer(change_dump=FULL.change_dump))
    pull.read(dump(0, Resource("a.zip")), known(0))
    with pytest.raises(WrongDocument, match="Change Dump Manifest"):
        pull.read(changes(0, 5, 3), known(0))


def test_a_package_without_datetimes_is_read_again_only_if_its_entry_differs() -> None:
    before = Resource(BASE + "a.zip", length=10)
    for now, again in ((before, False), (Resource(BASE + "a.zip", length=20), True)):
        pull = Pull(Offer(change_dump=FULL.change_dump), {before.uri: before})
        assert (pull.read(dump(0, now), known(1)).fetch is not None) is again
    silent = Resource(BASE + "a.zip")
    pull = Pull(Offer(change_dump=FULL.change_dump), {silent.uri: silent})
    assert pull.read(dump(0, silent), known(1)).fetch is not None


def test_a_broken_root_is_abandoned_and_the_first_read_again_after_the_next() -> None:
    pull = Pull(FULL)
    pull.read(changes(5, None), known(2))
    step = pull.abandon(missing("archive.xml"), known(2))
    assert name(step.fetch) == "changedump.xml"
    packed = dump(0, member("a.zip", 2, 5))
    assert follow(pull, known(2), packed, manifest(2, 5, 3)) == ["a.zip", "changelist.xml"]
    assert pull.read(changes(5, None), known(5)) == PullStep(change_list_coverage(changes(5, None)))


def test_if_the_first_root_is_broken_the_others_are_read_and_the_pull_fails() -> None:
    pull = Pull(FULL)
    error = missing("changelist.xml")
    assert name(pull.abandon(error, known(2)).fetch) == "archive.xml"
    assert follow(pull, known(2), archive(), dump(2)) == ["changedump.xml", "dumps.xml"]
    assert pull.read(Document(Capability.CHANGE_DUMP_ARCHIVE), known(2)).failure is error


def test_what_the_last_document_covers_counts_although_the_first_root_is_broken() -> None:
    pull = Pull(OFFER)
    error = missing("changelist.xml")
    assert name(pull.abandon(error, known(2)).fetch) == "archive.xml"
    assert follow(pull, known(2), archive(member("closed.xml", 2, 5))) == ["closed.xml"]
    step = pull.read(changes(2, 5, 3), known(2))
    assert step.failure is error
    assert [change.at for change in covered(step).changes] == [at(3)]


def test_a_broken_root_is_no_gap() -> None:
    pull = Pull(OFFER)
    pull.read(changes(5, None), known(2))
    error = missing("archive.xml")
    assert pull.abandon(error, known(2)) == PullStep(failure=error)


def still_running(second: int) -> Frontier:
    """Return what is known of a second that was not over."""
    frontier = Frontier.at(at(second))
    frontier.over = False
    return frontier


def test_a_second_that_was_still_running_is_read_from_the_closed_list() -> None:
    closed = archive(member("new.xml", 2, 5))
    requested = follow(Pull(OFFER), still_running(5), changes(5, None, 6), closed)
    assert requested == ["archive.xml", "new.xml"]
    assert follow(Pull(OFFER), known(5), changes(5, None, 6)) == [None]


def test_if_no_closed_list_has_that_second_there_is_no_gap() -> None:
    pull = Pull(Offer(change_list=OFFER.change_list, change_list_archive=OFFER.change_list_archive))
    requested = follow(pull, still_running(5), changes(5, None, 6), archive())
    assert requested == ["archive.xml", "changelist.xml"]
    assert pull.read(changes(5, None, 6), still_running(5)).coverage is not None


def test_if_that_second_is_surely_incomplete_the_rest_of_it_is_a_gap() -> None:
    frontier = still_running(5)
    frontier.running = True
    pull = Pull(Offer(change_list=OFFER.change_list))
    assert pull.read(changes(5, None, 6), frontier) == PullStep(gap_ends=at(6) - MICROSECOND)


def test_a_single_root_is_not_read_twice_for_that_second() -> None:
    pull = Pull(Offer(change_list=OFFER.change_list))
    step = pull.read(changes(5, None, 6), still_running(5))
    assert (step.coverage is not None, step.fetch, step.gap_ends) == (True, None, None)


@pytest.mark.parametrize(
    ("offer", "kinds"),
    [
        (Offer(change_dump="d", change_list_archive="a"), "Change Dump, Change List Archive"),
        (Offer(change_list_archive="a"), "Change List Archive"),
        (Offer(change_list_archive="a", resource_list="r"), ""),
    ],
)
def test_the_root_with_the_latest_changes_comes_first(offer: Offer, kinds: str) -> None:
    assert ", ".join(root.kind for root in change_documents(offer)) == kinds


def requests(baseline: Baseline, *documents: Document) -> list[str | None]:
    """Answer with these documents in turn, and return the requests."""
    fetches = [name(baseline.current)]
    for document in documents:
        baseline.read(document)
        fetches.append(name(baseline.next()))
    return fetches


def read(baseline: Baseline, document: Document, sent: datetime | None = None) -> ListedResources:
    listed = baseline.read(document, sent)
    assert listed is not None
    return listed


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
    baseline = Baseline(DUMPED, EPOCH, dump_first=True)
    assert requests(baseline, resource_dump()) == ["resourcedump.xml", "a.zip"]
    listed = read(baseline, held(6))
    assert (listed.at, listed.package) == (at(6), BASE + "a.zip")
    assert name(baseline.next()) == "b.zip"
    baseline.read(held(7))
    assert baseline.next() is None
    assert baseline.complete
    assert baseline.at == at(5)


def test_if_a_package_is_broken_the_others_are_read_and_then_the_list() -> None:
    baseline = Baseline(DUMPED, EPOCH, dump_first=True)
    requests(baseline, resource_dump())
    baseline.skip(ContentMismatch(BASE + "a.zip", "truncated"))
    assert name(baseline.next()) == "b.zip"
    assert requests(baseline, held(7)) == ["b.zip", "resourcelist.xml"]
    assert requests(baseline, resource_list(9))[-1] is None
    assert baseline.complete
    assert baseline.at == at(9)


def test_the_latest_archived_list_is_the_last_fallback() -> None:
    baseline = Baseline(DUMPED, EPOCH)
    for place in ("resourcedump.xml", "lists.xml"):
        baseline.skip(NotFound(baseline.current.uri, "404"))
        assert name(baseline.next()) == place
    archives = index(Capability.RESOURCE_LIST_ARCHIVE, Resource("1.xml"), Resource("2.xml"))
    lists = (Resource("new.xml", at=at(8)), Resource("old.xml", at=at(2)))
    archived = Document(Capability.RESOURCE_LIST_ARCHIVE, lists)
    assert requests(baseline, archives, archived) == ["lists.xml", "2.xml", "new.xml"]
    assert requests(baseline, resource_list(8))[-1] is None
    assert baseline.complete


@pytest.mark.parametrize(
    ("dump_first", "order"),
    [
        (False, "resourcelist resourcedump lists dumps"),
        (True, "resourcedump resourcelist dumps lists"),
    ],
)
def test_the_order_of_lists_and_dumps_is_that_of_their_archives(
    dump_first: bool, order: str
) -> None:
    offer = replace(DUMPED, resource_dump_archive=BASE + "dumps.xml")
    baseline = Baseline(offer, EPOCH, dump_first=dump_first)
    tried = [name(baseline.root)]
    for _ in range(3):
        baseline.skip(NotFound(baseline.current.uri, "404"))
        tried.append(name(baseline.next()))
    assert tried == [f"{one}.xml" for one in order.split()]
    baseline.skip(NotFound(baseline.current.uri, "404"))
    assert baseline.next() is None
    assert not baseline.complete


def test_archives_are_not_read_if_nothing_is_broken() -> None:
    offer = replace(DUMPED, resource_list=None)
    baseline = Baseline(offer, EPOCH, is_old=lambda instant: instant <= at(5))
    assert requests(baseline, resource_dump()) == ["resourcedump.xml", None]
    assert not baseline.complete
    assert baseline.error is None


def test_a_dump_without_at_is_recognized_by_its_entries() -> None:
    offer = Offer(resource_dump=BASE + "resourcedump.xml")
    first = Baseline(offer, EPOCH)
    requests(first, resource_dump(None), held(1), held(1))
    second = Baseline(offer, EPOCH, last_dump=first.undated_dump)
    assert requests(second, resource_dump(None))[-1] is None
    assert not second.complete


def test_a_dump_that_was_not_read_to_its_end_is_read_again() -> None:
    offer = Offer(resource_dump=BASE + "resourcedump.xml")
    first = Baseline(offer, EPOCH)
    requests(first, resource_dump(None))
    first.skip(ContentMismatch(BASE + "a.zip", "truncated"))
    assert first.undated_dump is None


def test_the_at_of_a_list_defaults_to_its_latest_lastmod_or_the_known_instant() -> None:
    plain = Document(None, (Resource(BASE + "a", lastmod=at(3)), Resource(BASE + "b")))
    undated = Document(None, (Resource(BASE + "b"),))
    assert read(Baseline(OFFER, at(1)), plain).at == at(3)
    assert Baseline(OFFER, at(1)).at == at(1)
    assert read(Baseline(OFFER, at(1)), undated).at == at(1)


@pytest.mark.parametrize("dated", [True, False], ids=["at", "lastmod"])
def test_a_list_is_no_later_than_the_time_at_which_it_was_sent(dated: bool) -> None:
    entry = Resource(BASE + "a", lastmod=at(9))
    document = Document(Capability.RESOURCE_LIST, (entry,), at=at(9) if dated else None)
    for sent, expected in ((at(4), at(4)), (at(8), at(9)), (None, at(9))):
        baseline = Baseline(OFFER, EPOCH)
        assert (read(baseline, document, sent).at, baseline.at) == (expected, expected)


def test_a_list_that_is_later_than_the_clock_of_the_source_is_as_old_as_can_be() -> None:
    for second, expected in ((5, 5), (6, 1)):
        baseline = Baseline(OFFER, at(1), until=at(5))
        assert read(baseline, resource_list(second)).at == at(expected)


def test_a_resource_list_is_read_page_by_page() -> None:
    baseline = Baseline(OFFER, EPOCH)
    following = (Link("next", "page-2.xml"),)
    first = resource_list(5, resources=(Resource(BASE + "a"),), links=following)
    assert baseline.read(first) is not None
    assert name(baseline.next()) == "page-2.xml"
    with pytest.raises(WrongDocument, match="was already read"):
        baseline.read(first)
    assert baseline.read(resource_list(4)) is not None
    assert baseline.next() is None
    assert baseline.complete
    assert baseline.at == at(4)


@pytest.mark.parametrize("capability", [Capability.RESOURCE_DUMP, Capability.DESCRIPTION, "moon"])
def test_a_document_of_another_kind_is_refused(capability: str) -> None:
    with pytest.raises(WrongDocument):
        Baseline(OFFER, EPOCH).read(Document(capability))
    with pytest.raises(WrongDocument):
        Pull(OFFER).read(Document(capability), known(0))


def test_the_next_page_of_a_list_is_requested_and_none_counts_alone() -> None:
    pull = Pull(OFFER)
    step = pull.read(page(0, 6, 4, 1), known(2))
    assert (name(step.fetch), step.coverage) == ("page-1.xml", None)
    step = pull.read(page(0, 6, 3, None), known(2))
    assert [change.at for change in covered(step).changes] == [at(4), at(3)]


def test_the_members_of_an_index_are_read_oldest_first_and_have_to_join() -> None:
    newest, oldest = Resource(BASE + "new.xml", from_=at(5)), member("old.xml", 2, 5)
    both = index(Capability.CHANGE_LIST, newest, oldest)
    assert follow(Pull(OFFER), known(3), both) == ["old.xml"]
    late = index(Capability.CHANGE_LIST, newest)
    assert follow(Pull(OFFER), known(3), late) == ["archive.xml"]


def test_an_empty_list_that_does_not_say_where_it_begins_leads_to_the_archive_once() -> None:
    pull = Pull(OFFER)
    empty = Document(Capability.CHANGE_LIST)
    requested = follow(pull, known(2), empty, archive(member("closed.xml", 2, 5)))
    assert requested == ["archive.xml", "closed.xml"]
    step = pull.read(replace(changes(2, 5, 4), from_=None), known(2))
    assert step.coverage is not None
    assert name(step.fetch) == "changelist.xml"
    assert pull.read(empty, known(5)) == PullStep()


@pytest.mark.parametrize(
    ("members", "cure"),
    [
        (
            2,
            BASE + "changelist.xml should state the from and until of each document that it lists "
            "in an rs:md, or list the oldest document first (core §12.2)",
        ),
        (1, ""),
    ],
)
def test_an_index_that_leaves_the_order_of_its_members_open_is_named_with_the_gap(
    members: int, cure: str
) -> None:
    lists = (Resource(f"{BASE}{number}.xml") for number in range(members))
    document = replace(index(Capability.CHANGE_LIST, *lists), from_=at(5))
    step = Pull(Offer(change_list=OFFER.change_list)).read(document, known(2))
    assert step == PullStep(gap_ends=at(5), cure=cure)


@pytest.mark.parametrize(
    ("from_", "until", "begins"),
    [
        (None, 5, 2),  # as the archive says
        (1, 5, 1),
        (1, None, 1),
        (None, None, 4),  # its first entry
    ],
)
def test_only_a_closed_list_without_a_from_begins_where_its_archive_says(
    from_: int | None, until: int | None, begins: int
) -> None:
    pull = Pull(OFFER)
    follow(pull, known(4), changes(5, None), archive(member("closed.xml", 2, 5)))
    step = pull.read(page(from_, until, 4, None), known(4))
    assert covered(step).from_ == at(begins)


def test_all_archives_below_an_archive_state_closed_lists_and_where_they_begin() -> None:
    closed = ClosedLists(KnownLists())
    pull = Pull(OFFER, closed=closed)
    part, last, first = (
        member("part.xml", 2, 4),
        member("last.xml", 4, 7),
        member("first.xml", 2, 4),
    )
    follow(pull, known(2), changes(7, None), archive(part, last), archive(first))
    assert name(pull.read(changes(2, 4, 3), known(2)).fetch) == "last.xml"
    step = pull.read(page(None, 7, 6, None), known(4))
    assert (covered(step).from_, pull.closed_members) == (at(4), [part, last, first])


@pytest.mark.parametrize("document", [archive(), Document(Capability.CHANGE_LIST)])
def test_an_archive_that_is_the_only_document_is_read_once_although_it_is_empty(
    document: Document,
) -> None:
    pull = Pull(
        Offer(change_list_archive=OFFER.change_list_archive), closed=ClosedLists(KnownLists())
    )
    assert pull.read(document, known(2)) == PullStep()
    assert pull.check_archive() is None


CLOSED = ((0, 2), (2, 4))


def closed_list(from_: int, until: int, length: int) -> Resource:
    """Return the entry of a closed list or dump. Its length differs once it has changed."""
    return replace(member(f"{from_}-{until}", from_, until), length=length)


@pytest.mark.parametrize("dumped", [False, True], ids=["lists", "dumps"])
@pytest.mark.parametrize(
    ("changed_from", "begins", "later", "requested", "has_skipped"),
    [
        (4, 4, [], "archive", False),
        (2, 4, [], "archive 2-4 open", False),
        (0, 4, [], "archive 0-2 2-4 open", False),
        (0, 5, [(4, 5)], "archive 0-2 2-4 open archive 0-2 2-4 4-5 open", False),
        (0, 5, [], "archive 0-2 2-4 open archive 0-2 2-4 open", True),
    ],
    ids=["none", "the last", "all", "another was closed since", "it is not in the archive yet"],
)
def test_lists_are_reread_from_the_first_closed_one_that_has_changed_to_the_open_one(
    changed_from: int,
    begins: int,
    later: list[tuple[int, int]],
    requested: str,
    has_skipped: bool,
    dumped: bool,
) -> None:
    closed = ClosedLists(KnownLists())
    before = [closed_list(*interval, length=1) for interval in CLOSED]
    closed.record(before, None, has_reread=False, has_skipped=False)
    now = [closed_list(*one, length=2 if one[0] >= changed_from else 1) for one in CLOSED]
    archives = iter([now, now + [closed_list(*interval, length=1) for interval in later]])
    if dumped:
        offer = Offer(change_dump=BASE + "open", change_dump_archive=BASE + "archive")
    else:
        offer = Offer(change_list=BASE + "open", change_list_archive=BASE + "archive")

    def document(place: str | None) -> Document:
        if place == "archive":
            found = archive(*next(archives))
            return replace(found, capability=Capability.CHANGE_DUMP_ARCHIVE) if dumped else found
        if place == "open":
            return dump(begins) if dumped else changes(begins, None)
        from_, until = map(int, str(place).split("-"))
        return dump(from_, until=until) if dumped else changes(from_, until)

    pull = Pull(offer, closed=ClosedLists(closed.known))
    pull.read(dump(4) if dumped else changes(4, None), known(begins))
    found, following = [], name(pull.check_archive())
    while following is not None:
        found.append(following)
        following = name(pull.read(document(following), known(begins)).fetch)
    assert (" ".join(found), pull.has_skipped) == (requested, has_skipped)


def test_an_index_whose_open_list_does_not_state_where_it_begins_is_reread_once_more() -> None:
    closed = ClosedLists(KnownLists())
    before = [closed_list(*interval, length=1) for interval in CLOSED]
    closed.record(before, None, has_reread=False, has_skipped=False)
    lists = [closed_list(*interval, length=2) for interval in CLOSED]
    members = [*lists, Resource(BASE + "open")]
    pull = Pull(Offer(change_list=BASE + "index"), closed=closed)
    found = ["index"]
    while found[-1] and len(found) < 20:
        if found[-1] == "index":
            document = index(Capability.CHANGE_LIST, *members)
        elif found[-1] == "open":
            document = replace(changes(5, None, 5), from_=None)
        else:
            document = changes(*map(int, found[-1].split("-")))
        found.append(str(name(pull.read(document, known(5)).fetch) or ""))
    assert found == [*2 * ["index", "0-2", "2-4", "open"], ""]
    assert pull.has_skipped


@pytest.mark.parametrize(
    "members",
    [
        [(0, 10), (10, 3)],
        [(0, 9), (9, 10), (3, 4)],
        [(3, 4), (9, 10), (0, 9)],
    ],
    ids=["it ends before it begins", "the last is earlier", "the first is earlier"],
)
def test_a_package_dated_by_a_clock_that_was_set_back_is_read_once(
    members: list[tuple[int, int]],
) -> None:
    offer = Offer(resource_list=BASE + "r", change_dump=BASE + "d")
    closed = ClosedLists(KnownLists(through=at(10)))
    packages = [
        Resource(f"{BASE}{begin}.zip", from_=at(begin), until=at(end), length=1)
        for begin, end in members
    ]
    known_ones = [one for one in packages if one.until in (at(9), at(10))]
    closed.record(known_ones, None, has_reread=False, has_skipped=False)
    dump = Document(Capability.CHANGE_DUMP, tuple(packages), from_=at(0))
    new = next(one for one in packages if one not in known_ones)

    pull = Pull(offer, closed=closed)
    requested = [pull.read(dump, known(10)).fetch]
    while requested[-1] is not None:
        package = requested[-1].package
        assert package is not None
        manifest = Document(
            Capability.CHANGE_DUMP_MANIFEST, from_=package.from_, until=package.until
        )
        requested.append(pull.read(manifest, known(10)).fetch)
    assert new.uri in [one.uri for one in requested if one is not None]

    closed.record(pull.closed_members, None, has_reread=True, has_skipped=False)
    assert Pull(offer, closed=closed).read(dump, known(10)).fetch is None


def closed_lists(length: int) -> list[Resource]:
    """Return entries of closed lists, which are others than those of another length."""
    return [
        Resource(f"{BASE}{number}", from_=at(number), until=at(number + 1), length=length)
        for number in range(4)
    ]


def test_the_last_closed_lists_are_remembered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(closed_lists_module, "_MAX_KNOWN_LISTS", 2)
    closed = ClosedLists(KnownLists())
    closed.record(closed_lists(1), None, has_reread=False, has_skipped=False)
    assert closed.changed(closed_lists(1)) == []
    assert closed.changed(closed_lists(2)) == closed_lists(2)[2:]


def test_a_later_run_knows_the_closed_lists_of_earlier_ones() -> None:
    closed = ClosedLists(KnownLists())
    assert closed.changed(closed_lists(0)) == [], "none can be known yet"
    closed.record(closed_lists(0), None, has_reread=False, has_skipped=False)
    later = ClosedLists(closed.known)
    assert later.changed(closed_lists(0)) == []
    assert later.changed(closed_lists(1)) == closed_lists(1)


@pytest.mark.parametrize(
    ("intervals", "new"),
    [
        ([(0, 1), (1, 2), (8, 9)], [(8, 9)]),  # it ends after what is known
        ([(1, 3)], []),
        ([(1, 4)], [(1, 4)]),  # it ends within the last known second
        ([(4, 4)], [(4, 4)]),
        ([(2, 2)], []),
        ([(0, 1), (9, 1)], [(9, 1)]),  # it ends before it begins
        ([(2, 3), (-1, 1)], []),  # the newest first
    ],
)
def test_which_closed_lists_count_as_new_is_decided_by_their_intervals(
    intervals: list[tuple[int, int]], new: list[tuple[int, int]]
) -> None:
    closed = ClosedLists(KnownLists())
    closed.record(closed_lists(0), None, has_reread=False, has_skipped=False)
    listed, expected = (
        [Resource(f"{BASE}new", from_=at(one), until=at(end), length=0) for one, end in each]
        for each in (intervals, new)
    )
    assert closed.changed(listed) == expected


def test_closed_lists_that_do_not_state_where_they_begin_are_distinguished_by_uri() -> None:
    lists = [Resource(f"{BASE}{number}", until=at(4), length=number) for number in range(2)]
    closed = ClosedLists(KnownLists())
    closed.record(lists, None, has_reread=False, has_skipped=False)
    assert closed.changed(lists) == []


def test_a_comparison_with_the_whole_set_covers_the_lists_closed_before_it() -> None:
    closed = ClosedLists(KnownLists())
    for seconds, through in ((5, 5), (3, 5), (6, 6)):
        closed.cover(at(seconds), None)
        assert closed.known.through == at(through)


def test_lists_that_may_have_announced_what_a_comparison_deletes_are_reread_once() -> None:
    lists = [
        Resource(f"{BASE}{n}", from_=at(n), until=at(n + 2), length=1) for n in range(0, 10, 2)
    ]
    closed = ClosedLists(KnownLists())
    closed.record(lists, None, has_reread=False, has_skipped=False)
    closed.cover(at(3), at(5))
    assert closed.changed(lists) == lists[1:3], "those from 3 to 5"
    closed.cover(at(3), None)
    closed = ClosedLists(closed.known)  # another run
    assert closed.changed(lists) == lists[1:3]
    closed.record(lists, None, has_reread=True, has_skipped=False)
    assert closed.changed(lists) == []


def test_closed_lists_that_change_too_often_stay_unknown_until_the_next_period() -> None:
    closed = ClosedLists(KnownLists())
    closed.record(closed_lists(0), None, has_reread=False, has_skipped=False)
    for length in (1, 2, 3):
        assert closed.changed(closed_lists(length)) == closed_lists(length)
        closed.record(closed_lists(length), None, has_reread=True, has_skipped=False)
    assert closed.changed(closed_lists(4)) == []
    closed.record(closed_lists(4), None, has_reread=False, has_skipped=False)
    closed.begin_period()
    assert closed.changed(closed_lists(4)) == closed_lists(4)
    assert closed.changed(closed_lists(3)) == []
