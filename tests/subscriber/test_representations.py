"""Choosing a representation: an alternate (core §14.3), or a certain version (core §14.6)."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web
from msgspec.structs import replace

from rsnotify.errors import RsnotifyError
from rsnotify.format.model import Link, Rel, Resource
from rsnotify.selection import Selection
from rsnotify_subscriber import FollowOptions, Received, Subscriber, repair
from tests.subscriber.destination import ANEW, PACE, Destination
from tests.subscriber.source import SmallSource, body, path_of, sha256


def with_turtle(source: SmallSource, **fields: Any) -> Resource:
    """Offer a resource as HTML, and as Turtle elsewhere."""
    fields.setdefault("hash", sha256(b"<a> <b> <c> ."))
    source.answers["/data/a.ttl"] = body(b"<a> <b> <c> .")
    turtle = Link(Rel.ALTERNATE, source.base + "a.ttl", type="text/turtle", **fields)
    return source.put("a", b"<p>a b c</p>", type="text/html", links=(turtle,))


async def test_a_preferred_alternate_is_held_instead_of_the_resource_and_checked_by_its_own_hash(
    source: SmallSource, destination: Destination
) -> None:
    await destination.catch_up(prefer="text/turtle")
    with_turtle(source, hash=sha256(b"something else"))
    with pytest.raises(RsnotifyError, match="has hash"):
        await destination.catch_up(prefer="text/turtle")
    with_turtle(source)
    await destination.catch_up(prefer="text/turtle")
    assert destination.files() == {"a": b"<a> <b> <c> ."}
    assert source.gets[path_of("a")] == 0


async def test_the_handler_receives_the_alternate_and_all_links(
    source: SmallSource, tmp_path: Path
) -> None:
    received: list[Received] = []

    async def handle(change: Received) -> None:
        received.append(change)

    entry = with_turtle(source)
    via = Link(Rel.VIA, "https://origin.example/a")
    source.changes[-1] = entry = replace(entry, links=(*entry.links, via))
    for prefer in (["text/turtle"], ["text/html", "text/turtle"]):
        state = tmp_path / prefer[0].replace("/", "-")
        source.list_only(entry)
        options = FollowOptions(prefer=prefer)
        await Subscriber(source.url, handle, state=state, options=options).catch_up()
    assert [one.alternate for one in received] == [entry.links[0], None]
    assert all(one.resource.links == entry.links for one in received)


async def test_an_alternate_that_is_held_is_not_fetched_again(
    source: SmallSource, destination: Destination
) -> None:
    source.list_only(with_turtle(source))
    await destination.catch_up(prefer="text/turtle")
    assert destination.files() == {"a": b"<a> <b> <c> ."}
    await destination.catch_up(prefer="text/turtle", selection=ANEW)
    assert source.gets["/data/resourcelist.xml"] == 2
    assert source.gets["/data/a.ttl"] == 1


async def test_a_copy_of_alternates_and_of_a_part_of_the_set_is_repaired(
    source: SmallSource, destination: Destination
) -> None:
    entries = with_turtle(source), source.put("b", b"b"), source.put("c", b"not selected")
    source.list_only(*entries)
    options: dict[str, Any] = {"prefer": "text/turtle", "selection": Selection(excluded=("*/c",))}
    await destination.catch_up(**options)
    right = {"a": b"<a> <b> <c> .", "b": b"b"}
    assert destination.files() == right
    (destination.folder / "a").write_bytes(b"changed by hand")
    (destination.folder / "b").unlink()
    follow = FollowOptions(pace=PACE)
    done = await repair(source.url, destination.folder, options=follow, pause=0)
    assert done.in_step
    assert set(done.fetched) == {source.base + "a", source.base + "b"}
    assert destination.files() == right


async def test_a_copy_of_alternates_is_repaired_when_lists_spell_their_uris_differently(
    source: SmallSource, destination: Destination
) -> None:
    entry = with_turtle(source)
    source.list_only(entry)
    await destination.catch_up(prefer="text/turtle")
    source.list_only(replace(entry, uri=source.base + "x/../a"))
    (destination.folder / "a").write_bytes(b"changed by hand")
    follow = FollowOptions(pace=PACE)
    for _ in range(2):
        done = await repair(source.url, destination.folder, options=follow, pause=0)
        assert done.in_step
        assert destination.files() == {"a": b"<a> <b> <c> ."}


async def test_another_preference_is_applied_to_the_copy(
    source: SmallSource, destination: Destination
) -> None:
    source.list_only(with_turtle(source))
    await destination.catch_up()
    assert destination.files() == {"a": b"<p>a b c</p>"}
    await destination.catch_up(prefer=["text/turtle"])
    assert destination.files() == {"a": b"<a> <b> <c> ."}
    await destination.catch_up()
    assert destination.files() == {"a": b"<p>a b c</p>"}


async def test_the_exact_version_is_fetched_though_the_resource_has_changed_again(
    source: SmallSource, destination: Destination
) -> None:
    await destination.catch_up(exact=True)
    source.answers["/data/versions/1"] = body(b"one")
    source.put("a", b"one", links=(Link(Rel.MEMENTO, source.base + "versions/1"),))
    source.contents["a"] = b"two, which no list has yet"
    await destination.catch_up(exact=True)
    assert destination.files() == {"a": b"one"}
    assert source.gets[path_of("a")] == 0


async def test_a_timegate_is_requested_for_the_version_of_that_time(
    source: SmallSource, destination: Destination
) -> None:
    asked = []

    async def gate(request: web.Request) -> web.StreamResponse:
        asked.append(request.headers["Accept-Datetime"])
        raise web.HTTPFound(source.base + "versions/1")

    await destination.catch_up(exact=True)
    modified = datetime(2026, 3, 4, 5, 6, 7, tzinfo=UTC)
    source.answers["/data/gate"] = gate
    dated = {"Memento-Datetime": "Wed, 04 Mar 2026 05:06:07 GMT"}
    source.answers["/data/versions/1"] = body(b"one", headers=dated)
    source.put("a", b"one", lastmod=modified, links=(Link(Rel.TIMEGATE, source.base + "gate"),))
    source.contents["a"] = b"two"
    await destination.catch_up(exact=True)
    assert destination.files() == {"a": b"one"}
    assert asked == ["Wed, 04 Mar 2026 05:06:07 GMT"]


async def test_an_answer_that_is_not_from_a_timegate_is_not_used(
    source: SmallSource, destination: Destination
) -> None:
    await destination.catch_up(exact=True)
    source.answers["/data/gate"] = body(b"whatever")
    gate = Link(Rel.TIMEGATE, source.base + "gate")
    source.put("a", b"one", lastmod=source.last, links=(gate,))
    source.changes[-1] = replace(source.changes[-1], hash=None, length=None)
    with pytest.raises(RsnotifyError, match="did not return a Memento"):
        await destination.catch_up(exact=True)
    assert destination.files() == {}
