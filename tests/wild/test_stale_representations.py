"""Mirrors, mementos and alternates of a resource are older than the entry that links to them.

core §14.2, §14.3 and §14.6. Where a digest is announced it tells; where none is, a mirror is not
the Source, and an answer whose Last-Modified is older than the announced one is not the version
that was announced.
"""

from __future__ import annotations

import pytest

from tests.wild.documents import ln, seconds, sha256
from tests.wild.running import Copy, follow_once, following, run_honest, run_right, until_right
from tests.wild.source import Answer, WildSource


@pytest.fixture(autouse=True)
def begun(source: WildSource) -> None:
    source.begin("a", "b")
    source.put("/mirror/a", Answer(b"a", modified=source.t(-1000), etag='"old"'))


def change(source: WildSource, *links: str, hashed: bool = True) -> None:
    source.file("a", b"changed", 60)
    told = source.changed(
        "a", "updated", 60, hashed=hashed, lastmod=seconds(source.t(60)), links=links
    )
    source.list_changes(told)


@pytest.mark.parametrize("hashed", [True, False], ids=["with a hash", "without"])
async def test_a_stale_mirror_is_passed_over(source: WildSource, copy: Copy, hashed: bool) -> None:
    await follow_once(source, copy)
    change(source, ln("duplicate", source.uri("/mirror/a"), pri=1), hashed=hashed)
    await run_right(source, copy)


@pytest.mark.parametrize("hashed", [True, False], ids=["with a hash", "without"])
@pytest.mark.parametrize("rel", ["memento", "timegate"])
async def test_a_stale_memento_is_passed_over(
    source: WildSource, copy: Copy, rel: str, hashed: bool
) -> None:
    await follow_once(source, copy)
    old = Answer(
        b"a",
        modified=source.t(-1000),
        headers={"Memento-Datetime": "Mon, 01 Jan 2024 00:00:00 GMT"},
    )
    source.put("/mirror/a", old)
    change(source, ln(rel, source.uri("/mirror/a")), hashed=hashed)
    await run_honest(source, copy, exact=True)


async def test_a_stale_alternate_is_not_taken_for_the_announced_one(
    source: WildSource, copy: Copy
) -> None:
    """Its digest stands in the link: a copy that cannot have it is not level."""
    link = ln(
        "alternate", source.uri("/mirror/a"), type="text/turtle", hash=sha256(b"changed, as turtle")
    )
    source.put("/mirror/a", b"a, as turtle")
    change(source, link)
    outcome = await follow_once(source, copy, prefer="text/turtle")
    assert not outcome.claims
    assert outcome.reasons
    source.put("/mirror/a", b"changed, as turtle")
    outcome = await follow_once(source, copy, prefer="text/turtle")
    assert outcome.claims, outcome
    assert copy.files()["a"] == b"changed, as turtle"


async def test_a_stale_resource_behind_a_cache_is_asked_for_past_it(
    source: WildSource, copy: Copy
) -> None:
    await follow_once(source, copy)
    change(source, hashed=False)
    new = source.answers["/set/a"]
    cached = Answer(b"a", modified=source.t(-1000), age=500, date=source.t(30))
    source.put("a", lambda request: new if request.past_caches else cached)
    await run_right(source, copy)


async def test_a_stale_resource_that_becomes_fresh_is_held_then(
    source: WildSource, copy: Copy
) -> None:
    async with following(source, copy) as subscriber:
        await until_right(subscriber, copy, source)
        change(source, hashed=False)
        stale = Answer(b"a", modified=source.t(-1000))
        source.put("a", *[stale] * 6, source.answers["/set/a"])
        await until_right(subscriber, copy, source)


async def test_a_stale_copy_of_a_list_does_not_undo_what_it_told(
    source: WildSource, copy: Copy
) -> None:
    """A cache answers with the list of before now and then (Age, an older Date)."""
    async with following(source, copy) as subscriber:
        await until_right(subscriber, copy, source)
        old = source.answers["/set/changelist.xml"]
        change(source)
        new = source.answers["/set/changelist.xml"]
        stale = Answer(old.body, age=600, date=source.t(20))
        source.put("changelist.xml", new, stale, new, stale, stale, new)
        await until_right(subscriber, copy, source)
        asked = len(source.requests("a"))
        await until_right(subscriber, copy, source)
    assert asked <= 4
    await run_right(source, copy)
