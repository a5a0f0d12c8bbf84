"""What a baseline concludes from dumps, archives and pages."""

from __future__ import annotations

from datetime import timedelta

import pytest

from rsnotify.format.model import Capability, Document, Link, Resource
from rsnotify.format.offer import Offer
from rsnotify.sync.actions import ComparedList
from rsnotify.sync.baseline import Baseline
from tests.core.world import BASE, EPOCH

DUMP = Offer(resource_dump=BASE + "dump.xml")
LISTS = Offer(resource_list=BASE + "list.xml")
ARCHIVE = Offer(resource_list_archive=BASE + "archive.xml")
LATER = EPOCH + timedelta(seconds=5)
LIST_INDEX = Document(Capability.RESOURCE_LIST, (Resource(BASE + "part.xml"),), index=True)
FIRST_PAGE = Document(Capability.RESOURCE_LIST, links=(Link("next", "page2.xml"),))
PACKAGE = (Resource(BASE + "package.zip"),)


def test_a_dump_is_no_later_than_the_time_at_which_it_was_sent() -> None:
    baseline = Baseline(DUMP, EPOCH)
    future = LATER + timedelta(days=1)
    assert baseline.read(Document(Capability.RESOURCE_DUMP, PACKAGE, at=future), LATER) is None
    assert baseline.at == LATER


def test_the_manifest_of_a_package_has_no_further_pages() -> None:
    baseline = Baseline(DUMP, EPOCH)
    baseline.read(Document(Capability.RESOURCE_DUMP, PACKAGE, at=LATER))
    assert baseline.next() is not None
    links = (Link("next", "other.xml"),)
    baseline.read(Document(Capability.RESOURCE_DUMP_MANIFEST, at=LATER, links=links))
    assert baseline.next() is None
    assert baseline.complete


def test_the_list_that_an_archive_names_is_no_package() -> None:
    baseline = Baseline(ARCHIVE, EPOCH)
    archived = (Resource(BASE + "old.xml", at=LATER),)
    baseline.read(Document(Capability.RESOURCE_LIST_ARCHIVE, archived))
    fetch = baseline.next()
    assert fetch is not None
    assert (fetch.uri, fetch.package) == (BASE + "old.xml", None)


def test_a_resource_list_is_read_however_old_it_is() -> None:
    baseline = Baseline(LISTS, EPOCH, is_old=lambda _: True)
    assert baseline.read(Document(Capability.RESOURCE_LIST, at=EPOCH)) is not None
    assert baseline.complete


def test_of_an_undated_dump_in_parts_only_the_first_document_tells_whether_it_is_known() -> None:
    index = Document(Capability.RESOURCE_DUMP, (Resource(BASE + "part.xml"),), index=True)
    part = Document(Capability.RESOURCE_DUMP, PACKAGE)
    baseline = Baseline(DUMP, EPOCH, last_dump=part)
    assert baseline.read(index) is None
    following = baseline.next()
    assert following is not None
    assert following.uri == BASE + "part.xml"
    baseline.read(part)
    assert baseline.complete
    assert baseline.undated_dump == index


def test_changes_count_from_the_earliest_of_the_lists_on_whichever_is_read_first() -> None:
    for order in ((1, 2), (2, 1)):
        baseline = Baseline(LISTS, EPOCH)
        parts = tuple(Resource(f"{BASE}{number}.xml") for number in order)
        baseline.read(Document(Capability.RESOURCE_LIST, parts, index=True))
        for seconds in order:
            assert baseline.next() is not None
            at = EPOCH + timedelta(seconds=seconds)
            listed = baseline.read(Document(Capability.RESOURCE_LIST, at=at))
            assert listed is not None
            assert listed.at == at
        assert baseline.at == EPOCH + timedelta(seconds=1)


def test_a_resource_list_is_told_apart_by_all_that_its_first_document_shows() -> None:
    entry = (Resource(BASE + "a", hash="sha-256:1"),)
    documents = [
        Document(Capability.RESOURCE_LIST, entry, at=LATER),
        Document(Capability.RESOURCE_LIST, entry, at=EPOCH),
        Document(Capability.RESOURCE_LIST, entry),
        Document(Capability.RESOURCE_LIST, (), at=LATER),
        Document(Capability.RESOURCE_LIST, entry, index=True, at=LATER),
    ]
    fingerprints = []
    for document in documents * 2:
        baseline = Baseline(LISTS, EPOCH)
        baseline.read(document, LATER)
        assert baseline.resource_list is not None
        fingerprints.append(baseline.resource_list.fingerprint)
    assert None not in fingerprints
    assert fingerprints[:5] == fingerprints[5:]
    assert len(set(fingerprints)) == 5


@pytest.mark.parametrize("document", [LIST_INDEX, FIRST_PAGE])
def test_further_documents_of_an_undated_resource_list_may_differ(document: Document) -> None:
    baseline = Baseline(LISTS, EPOCH)
    baseline.read(document)
    assert baseline.resource_list == ComparedList(None, document.at)


def test_the_last_of_an_archives_lists_without_datetimes_is_read() -> None:
    baseline = Baseline(ARCHIVE, EPOCH)
    archived = tuple(Resource(f"{BASE}{number}.xml") for number in range(3))
    baseline.read(Document(Capability.RESOURCE_LIST_ARCHIVE, archived))
    found = [fetch.uri for fetch in iter(baseline.next, None)]
    assert found == [BASE + "2.xml"]
