"""The entries of a relay: the examples of core §14.8, and the links that it leaves out."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from rsnotify.format.model import ChangeType, Link, Resource
from rsnotify.format.reader import read_document
from rsnotify_relay.republisher import republished_entry
from rsnotify_subscriber import Received

ORIGINAL = "http://original.example.com/res1.html"
FIRST = "http://aggregator1.example.com/res1.html"
SECOND = "http://aggregator2.example.com/res1.html"
MD5 = "md5:1584abdf8ebdc9802ac0c6a7402c03b6"
EXAMPLE_31 = f"""\
<urlset xmlns="http://www.sitemaps.org/schemas/sitemap/0.9"
xmlns:rs="http://www.openarchives.org/rs/terms/">
<rs:md capability="changelist" from="2013-01-03T00:00:00Z"/>
<url>
<loc>{ORIGINAL}</loc>
<lastmod>2013-01-03T07:00:00Z</lastmod>
<rs:md hash="{MD5}" length="8876" type="text/html" change="updated"/>
</url>
</urlset>""".encode()
VIA = Link(
    "via",
    ORIGINAL,
    hash=MD5,
    length=8876,
    modified=datetime(2013, 1, 3, 7, tzinfo=UTC),
    type="text/html",
)


def received(entry: Resource, change: ChangeType = ChangeType.UPDATED, **fields: Any) -> Received:
    content = None if change is ChangeType.DELETED else Path("content")
    given = {"hash": entry.hash, "length": entry.length} | fields
    return Received(change, entry.uri, datetime(2013, 1, 3, 7, tzinfo=UTC), entry, content, **given)


def created(entry: Resource, **fields: Any) -> Resource:
    """Return the entry of a resource that is new to the relay."""
    return republished_entry(received(entry, **fields), FIRST, None)


def test_a_chain_of_aggregators_republishes_as_in_the_examples_31_to_33() -> None:
    entry = read_document(EXAMPLE_31).resources[0]
    for uri in (FIRST, SECOND):
        entry = republished_entry(received(entry), uri, Resource(uri))
        facts = {"hash": MD5, "length": 8876, "type": "text/html"}
        assert entry == Resource(uri, change=ChangeType.UPDATED, links=(VIA,), **facts)


def test_a_resource_that_is_new_to_the_relay_is_created() -> None:
    assert created(Resource(ORIGINAL, change=ChangeType.UPDATED)).change is ChangeType.CREATED
    entry = Resource(ORIGINAL, change=ChangeType.CREATED)
    assert republished_entry(received(entry), FIRST, Resource(FIRST)).change is ChangeType.UPDATED


def test_hash_and_length_are_those_of_the_copy_if_the_source_has_none() -> None:
    at, hash = datetime(2013, 1, 3, 7, tzinfo=UTC), "sha-256:" + "0" * 64
    entry = Resource(ORIGINAL, change=ChangeType.UPDATED, datetime=at)
    told = created(entry, hash=hash, length=3)
    assert (told.hash, told.length, told.lastmod) == (hash, 3, None)
    assert told.links == (Link("via", ORIGINAL, modified=at),)


def test_a_deletion_names_the_original() -> None:
    gone = received(Resource(ORIGINAL, change=ChangeType.DELETED), ChangeType.DELETED)
    told = republished_entry(gone, FIRST, Resource(FIRST, links=(VIA,)))
    assert told == Resource(FIRST, change=ChangeType.DELETED, links=(Link("via", ORIGINAL),))


def test_in_a_chain_a_deletion_that_was_found_by_comparing_still_names_the_original() -> None:
    unlisted = received(Resource(FIRST), ChangeType.DELETED)
    told = republished_entry(unlisted, SECOND, Resource(SECOND, links=(VIA,)))
    assert told.links == (Link("via", ORIGINAL),)


@pytest.mark.parametrize(
    ("rel", "inherited"),
    [
        ("alternate", True),
        ("describedby", True),
        ("describes", True),
        ("license", True),
        ("http://terms.example/cites", True),
        ("canonical", False),
        ("collection", False),
        ("duplicate", False),
        ("memento", False),
        ("timegate", False),
        ("timemap", False),
        ("http://www.openarchives.org/rs/terms/patch", False),
    ],
)
def test_links_are_inherited_where_they_remain_appropriate(rel: str, inherited: bool) -> None:
    link = Link(rel, "http://original.example.com/other", type="text/turtle", pri=2)
    told = created(Resource(ORIGINAL, links=(link,)))
    assert (link in told.links) is inherited


def test_links_that_could_not_be_followed_are_left_out_and_unescaped_uris_escaped() -> None:
    links = (Link("alternate", "../relative"), Link("Not A Relation", ORIGINAL))
    assert created(Resource(ORIGINAL, links=links)).links == (Link("via", ORIGINAL),)
    unescaped = created(Resource("http://original.example.com/ä b%20c"))
    assert unescaped.links == (Link("via", "http://original.example.com/%C3%A4%20b%20c"),)


def test_a_copy_of_an_alternate_says_so() -> None:
    facts = {"hash": MD5, "length": 3, "type": "text/turtle"}
    alternate = Link("alternate", ORIGINAL + ".ttl", **facts)
    told = created(Resource(ORIGINAL, type="text/html", links=(alternate,)), alternate=alternate)
    assert told.type == "text/turtle"
    assert told.links[0] == Link("via", ORIGINAL + ".ttl", **facts)
