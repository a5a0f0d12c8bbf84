from __future__ import annotations

from datetime import UTC, datetime
from random import Random
from typing import Any

import pytest

from rsnotify.format.coverage import Change
from rsnotify.format.model import ChangeType, Link, Rel, Resource
from rsnotify.selection import (
    WantedRepresentation,
    describe_representation,
    wanted_link_target,
    wanted_representation,
)

AT = datetime(2026, 1, 1, tzinfo=UTC)
LOC = "http://source.example/a"
HASH = "md5:" + "a" * 32
TURTLE = Link(Rel.ALTERNATE, "http://source.example/a.ttl", type="text/turtle", hash="md5:1")
HTML = Link(Rel.ALTERNATE, "http://source.example/a.html", type="text/html; charset=utf-8")


MEMENTO = Link(Rel.MEMENTO, "http://source.example/2026/a")
GATE = Link(Rel.TIMEGATE, "http://source.example/gate/a")


def change(*links: Link, package: str | None = None, **fields: Any) -> Change:
    return Change(LOC, ChangeType.UPDATED, AT, Resource(LOC, links=links, **fields), package)


def mirror(name: str, pri: int | None = None) -> Link:
    return Link(Rel.DUPLICATE, f"http://{name}.example/a", pri=pri)


def uris(what: WantedRepresentation) -> list[str]:
    return [place.uri for place in what.sources]


@pytest.mark.parametrize(
    "entry",
    [
        change(),
        change(mirror("first", 1), length=5),
        change(Link(Rel.DUPLICATE, "gsiftp://gridftp.example.com/res1", pri=1), hash=HASH),
        change(MEMENTO, GATE, hash=HASH),
    ],
    ids=["no links", "a mirror without a hash", "another protocol", "versions"],
)
def test_without_a_usable_link_there_is_only_loc(entry: Change) -> None:
    assert uris(wanted_representation(entry)) == [LOC]


def test_mirrors_with_a_priority_come_before_loc_and_the_others_after_it() -> None:
    links = (mirror("late"), mirror("second", 2), mirror("first", 1), mirror("last", 999_999))
    what = wanted_representation(change(*links, hash=HASH))
    hosts = [uri.split("/")[2] for uri in uris(what)]
    names = ["first", "second", "last"]
    assert hosts == [*(f"{name}.example" for name in names), "source.example", "late.example"]
    assert what.home.uri == LOC


def test_mirrors_of_equal_priority_are_tried_in_random_order() -> None:
    links = (mirror("a", 1), mirror("b", 1), mirror("c", 2), mirror("d"), mirror("e"))
    seen = {
        tuple(
            uri.split("/")[2][0]
            for uri in uris(wanted_representation(change(*links, hash=HASH), random=each))
        )
        for each in map(Random, range(50))
    }
    assert seen == {tuple(f"{first}cs{last}") for first in ("ab", "ba") for last in ("de", "ed")}


def test_inline_content_is_no_place() -> None:
    what = wanted_representation(change(Link(Rel.DUPLICATE, "data:,x"), hash=HASH))
    assert uris(what) == [LOC]
    assert what.inline == ("data:,x",)


@pytest.mark.parametrize(
    ("prefer", "chosen"),
    [
        ((), None),
        (("text/turtle",), TURTLE),
        (("TEXT/HTML",), HTML),
        (("image/png", "text/html", "text/turtle"), HTML),
        (("application/pdf", "text/turtle"), None),
        (("image/png",), None),
    ],
)
def test_the_first_type_that_is_offered_is_chosen(
    prefer: tuple[str, ...], chosen: Link | None
) -> None:
    """The type of `loc` itself, a PDF here, is offered as well."""
    what = wanted_representation(change(TURTLE, HTML, type="application/pdf"), prefer)
    assert what.alternate == chosen
    assert uris(what) == [chosen.href if chosen else LOC]


def test_an_alternate_has_its_own_hash_and_not_the_sources_of_loc() -> None:
    links = (TURTLE, mirror("first", 1), Link(Rel.DUPLICATE, "data:,x"), Link(Rel.PATCH, "p"))
    packed = change(*links, hash=HASH, length=5, path="/a", package="http://p")
    what = wanted_representation(packed, ["text/turtle"])
    assert (what.entry.hash, what.entry.length) == (TURTLE.hash, None)
    assert uris(what) == [TURTLE.href]
    assert (what.inline, what.patches, what.entry.path) == ((), (), None)


def test_an_alternate_in_a_package_has_a_path_of_its_own() -> None:
    link = Link(Rel.ALTERNATE, "http://source.example/a.ttl", type="text/turtle", path="/a.ttl")
    what = wanted_representation(change(link, path="/a", package="http://p"), ["text/turtle"])
    assert (what.package, what.entry.path) == ("http://p", "/a.ttl")


def test_an_entry_describes_its_alternate_under_its_own_uri() -> None:
    modified = datetime(2025, 1, 1, tzinfo=UTC)
    link = Link(Rel.ALTERNATE, "u", type="text/turtle", hash="md5:1", length=3, modified=modified)
    listed = Resource(LOC, lastmod=AT, hash=HASH, links=(link,))
    entry = describe_representation(listed, ["text/turtle"])
    assert (entry.uri, entry.hash, entry.length, entry.lastmod) == (LOC, "md5:1", 3, modified)


def test_the_exact_version_comes_from_memento_then_timegate_then_loc() -> None:
    what = wanted_representation(change(MEMENTO, GATE, hash=HASH, lastmod=AT), exact=True)
    assert uris(what) == [MEMENTO.href, GATE.href, LOC]
    assert [place.moment for place in what.sources] == [None, AT, None]


def test_loc_is_not_used_for_an_exact_version_without_a_hash() -> None:
    assert uris(wanted_representation(change(MEMENTO), exact=True)) == [MEMENTO.href]
    assert uris(wanted_representation(change(), exact=True)) == [LOC]


def test_a_patch_is_had_like_anything_else() -> None:
    plain = wanted_link_target(Link(Rel.PATCH, "http://source.example/p", hash=HASH, length=9))
    assert uris(plain) == ["http://source.example/p"]
    assert (plain.entry.hash, plain.entry.length, plain.package) == (HASH, 9, None)
    assert plain.entry.path is None
    packed = wanted_link_target(Link(Rel.PATCH, "http://source.example/p", path="/p"), "http://p")
    assert (packed.package, packed.entry.path) == ("http://p", "/p")
    inline = wanted_link_target(Link(Rel.PATCH, "data:,x", length=1))
    assert (inline.inline, inline.sources) == (("data:,x",), ())
