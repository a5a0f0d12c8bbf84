"""Links to related resources (core §14) are in every document as they were recorded."""

from __future__ import annotations

import re
from datetime import UTC, datetime
from functools import partial
from pathlib import Path

import pytest
from msgspec.structs import replace

from rsnotify.errors import ConfigurationError
from rsnotify.format.model import ChangeType, Document, Link, Rel, Resource
from rsnotify.format.reader import read_document
from rsnotify.format.writer import Profile
from rsnotify_publisher import Publisher
from rsnotify_publisher.push.hub_feed import FragmentWriter
from tests.publisher.helpers import BASE, PATIENCE, eventually, quick_publisher
from tests.publisher.published import members, read, uris

HTTP = "http://example.com/"
MD5 = "md5:1584abdf8ebdc9802ac0c6a7402c03b6"
AT = datetime(2013, 1, 3, 18, tzinfo=UTC)


def updated(name: str, *links: Link) -> Resource:
    return Resource(
        HTTP + name,
        lastmod=AT,
        change=ChangeType.UPDATED,
        hash=MD5,
        length=9_788_456_778,
        type="text/html",
        links=links,
    )


#: Mirrored content, patches and prior versions as in the examples 24, 27 and 29, and others.
RESOURCES = [
    updated(
        "res1",
        Link("duplicate", "http://mirror1.example.com/res1", pri=1, modified=AT),
        Link("duplicate", "gsiftp://gridftp.example.com/res1", pri=3, modified=AT),
    ),
    updated(
        "res2",
        Link(Rel.PATCH, HTTP + "patch", modified=AT, hash=MD5, length=73, type="text/x-diff"),
    ),
    updated(
        "res3",
        Link("memento", HTTP + "20130103070000/res3", modified=AT, hash=MD5),
        Link("timegate", HTTP + "timegate/http://example.com/res3"),
        Link("timemap", HTTP + "timemap/http://example.com/res3", type="application/link-format"),
    ),
    updated(
        "res4",
        Link("https://example.org/rel?a=1&b=2", "urn:isbn:0451450523", encoding="gzip"),
        Link("version-history", HTTP + "history", attributes=(("{urn:x}note", "a < b"),)),
    ),
]


def recorded(entry: Resource) -> Resource:
    """Return an entry without the datetime that it got when it was recorded."""
    assert entry.datetime is not None
    return replace(entry, datetime=None)


def as_set(resource: Resource) -> Resource:
    """Return a resource as a Resource List contains it, without patches."""
    links = tuple(link for link in resource.links if link.rel != Rel.PATCH)
    return replace(resource, change=None, links=links)


def metadata_of(entry: Resource) -> tuple[object, ...]:
    """Return the fields that a manifest contains unchanged. The others depend on the package.

    A manifest contains a patch only with its path (core §14.4).
    """
    return entry.uri, entry.type, as_set(entry).links


def manifest(publisher: Publisher, dump: Document) -> list[Resource]:
    return [entry for package in dump.resources for entry, _ in members(publisher, package)]


def test_every_document_contains_the_given_links(tmp_path: Path):
    publisher = quick_publisher(
        tmp_path,
        content=lambda uri: uri.encode(),
        change_dump=True,
        resource_dump_every=0.05,
        rotate=f"{len(RESOURCES) + 1} changes",
    )

    read_own = partial(read, publisher)

    with publisher:
        assert publisher.wait_published(PATIENCE)
        changes = publisher.record(RESOURCES)
        eventually(lambda: len(read_own("resourcelist.xml").resources) == len(RESOURCES))
        offered = publisher.source.documents_folder / "capabilitylist.xml"
        eventually(lambda: b"resourcedump.xml" in offered.read_bytes())
        eventually(lambda: uris(read_own("changelist.xml")) == [r.uri for r in RESOURCES])
        listed = read_own("changelist.xml").resources
        # One more change closes them.
        publisher.deleted(HTTP + "other")
        eventually(lambda: bool(read_own("changedump.xml").resources))
        changed = manifest(publisher, read_own("changedump.xml"))
        held = lambda: manifest(publisher, read_own("resourcedump.xml"))  # noqa: E731
        eventually(lambda: len(held()) == len(RESOURCES))
    assert [recorded(entry) for entry in listed] == RESOURCES
    by_uri = sorted(RESOURCES, key=lambda resource: resource.uri)
    assert list(read_own("resourcelist.xml").resources) == list(map(as_set, by_uri))
    assert list(map(metadata_of, changed)) == list(map(metadata_of, RESOURCES))[: len(changed)]
    assert list(map(metadata_of, held())) == list(map(metadata_of, by_uri))
    writer = FragmentWriter(BASE, max_entries=99, max_bytes=10**6, profile=Profile.V1_1)
    (fragment,) = writer.fragments(AT, changes, {})
    assert [recorded(entry) for entry in read_document(fragment.body).resources] == RESOURCES


def test_loaded_resources_keep_their_links(tmp_path: Path):
    publisher = quick_publisher(tmp_path)
    links = (Link("duplicate", "http://mirror.example/a", pri=1), Link("via", "http://x.example/"))
    publisher.load([Resource(BASE + "a", lastmod=AT, links=links)])
    with publisher:
        assert publisher.wait_published(PATIENCE)
    (entry,) = read(publisher, "resourcelist.xml").resources
    assert entry.links == links


def test_deletions_may_have_links(tmp_path: Path):
    link = Link("memento", HTTP + "2013/res1")
    with quick_publisher(tmp_path) as publisher:
        publisher.deleted(HTTP + "res1", links=[link])
    (entry,) = read(publisher, "changelist.xml").resources
    assert (entry.change, entry.links) == (ChangeType.DELETED, (link,))


@pytest.mark.parametrize(
    ("link", "complaint"),
    [
        (Link("duplicate", "mirror/res1"), "'mirror/res1' is not an absolute URI"),
        (Link("duplicate", HTTP, pri=0), "pri is 0; give a number from 1 "),
        (Link("duplicate", HTTP, pri=1_000_000), "pri is 1000000"),
        (Link("duplicate", HTTP, pri="1"), "pri is '1'"),
        (Link("no such", HTTP), "rel is 'no such'; give a registered relation type, or a URI"),
        (Link("via", HTTP, hash="00ff"), "hash is '00ff'"),
        (Link("via", HTTP, length=-1), "length is -1"),
        (Link("via", HTTP, modified=datetime(2013, 1, 1)), "modified is"),
    ],
)
def test_invalid_links_are_refused(tmp_path: Path, link: Link, complaint: str):
    publisher = quick_publisher(tmp_path)
    with pytest.raises(ConfigurationError, match=re.escape(complaint)):
        publisher.updated(HTTP + "res1", links=[link])
    with pytest.raises(ConfigurationError, match=re.escape(complaint)):
        publisher.load([Resource(HTTP + "res1", links=(link,))])
