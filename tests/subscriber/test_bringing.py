"""How content is brought: from mirrors, by patches, from alternates, of a certain version."""

from __future__ import annotations

import asyncio
import json
import logging
import threading
from base64 import b64encode
from collections.abc import AsyncIterator, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web
from msgspec.structs import replace

from rsnotify.coverage import Change
from rsnotify.errors import RsnotifyError, Unavailable
from rsnotify.model import Link, Resource
from rsnotify.selection import Selection
from rsnotify.vocabulary import ChangeType, Rel
from rsnotify.writing import write_document
from rsnotify_subscriber import Received, Subscriber
from rsnotify_subscriber.bringing.bringer import Bringer
from rsnotify_subscriber.fetching.contents import Content
from rsnotify_subscriber.fetching.fetcher import Fetcher
from rsnotify_subscriber.fetching.sessions import Sessions
from rsnotify_subscriber.held import Held
from tests.subscriber.conftest import PACE, Destination
from tests.subscriber.source import SmallSource, body, first, path_of, sha256, status

ONE_AT_A_TIME = replace(PACE, in_flight=1)
#: Another selection than none: everything is compared with the Resource List anew.
ANEW = Selection(excluded=("nothing",))
MERGE_PATCH = "application/merge-patch+json"


@pytest.fixture
async def mirror() -> AsyncIterator[SmallSource]:
    """Another server, which documents name."""
    mirror = SmallSource()
    await mirror.server.start()
    yield mirror
    await mirror.server.stop()


def duplicate(mirror: SmallSource, name: str, pri: int | None = 1) -> Link:
    return Link(Rel.DUPLICATE, mirror.base + name, pri=pri)


# Mirrors (core §14.2)


async def test_a_mirror_with_a_priority_spares_the_source(
    source: SmallSource, mirror: SmallSource, destination: Destination
) -> None:
    await destination.catch_up()
    mirror.contents["a"] = b"content"
    source.put("a", b"content", links=(duplicate(mirror, "a"),))
    await destination.catch_up()
    assert destination.equals_source()
    assert (source.gets[path_of("a")], mirror.gets[path_of("a")]) == (0, 1)


async def test_a_mirror_that_has_something_else_is_passed_over(
    source: SmallSource, mirror: SmallSource, destination: Destination
) -> None:
    await destination.catch_up()
    mirror.contents |= {"late": b"older", "good": b"content"}
    links = (duplicate(mirror, "none", 1), duplicate(mirror, "late", 2))
    source.put("a", b"content", links=(*links, duplicate(mirror, "good", 3)))
    source.put("b", b"content", links=links)
    await destination.catch_up()
    assert destination.equals_source()
    assert (source.gets[path_of("a")], source.gets[path_of("b")]) == (0, 1)


async def test_a_mirror_that_is_away_holds_nothing_up(
    source: SmallSource, mirror: SmallSource, destination: Destination
) -> None:
    await destination.catch_up()
    for name in ("a", "b", "c"):
        mirror.answers[path_of(name)] = status(500)
        source.put(name, b"content", links=(duplicate(mirror, name),))
    await destination.catch_up(pace=ONE_AT_A_TIME)
    assert destination.equals_source()
    assert sum(mirror.gets.values()) == 1


async def test_a_mirror_that_is_down_is_passed_over(
    source: SmallSource, mirror: SmallSource, destination: Destination
) -> None:
    await destination.catch_up()
    source.put("a", b"content", links=(duplicate(mirror, "a"),))
    await mirror.server.stop()
    await destination.catch_up()
    assert destination.equals_source()


async def test_the_last_mirrors_are_asked_when_the_source_fails(
    source: SmallSource, mirror: SmallSource, destination: Destination
) -> None:
    await destination.catch_up()
    mirror.contents["a"] = b"content"
    source.answers[path_of("a")] = status(500)
    source.put("a", b"content", links=(duplicate(mirror, "a", None),))
    await destination.catch_up()
    assert destination.equals_source()
    assert (source.gets[path_of("a")], mirror.gets[path_of("a")]) == (1, 1)


async def test_the_error_is_that_of_the_resource_itself(
    source: SmallSource, mirror: SmallSource, destination: Destination
) -> None:
    await destination.catch_up()
    source.answers[path_of("a")] = status(503)
    source.put("a", b"content", links=(duplicate(mirror, "a"), duplicate(mirror, "a", None)))
    with pytest.raises(Unavailable, match="503") as caught:
        await destination.catch_up()
    assert caught.value.uri == source.base + "a"


async def test_a_mirror_at_a_private_address_is_not_dialled(
    source: SmallSource, mirror: SmallSource, destination: Destination
) -> None:
    await destination.catch_up()
    mirror.contents["a"] = b"content"
    href = mirror.base.replace("127.0.0.1", "localhost") + "a"
    source.put("a", b"content", links=(Link(Rel.DUPLICATE, href, pri=1),))
    await destination.catch_up()
    assert destination.equals_source()
    assert mirror.gets[path_of("a")] == 0


# Patches (core §14.4)


def inline(patch: bytes, media_type: str = MERGE_PATCH, **fields: Any) -> Link:
    data = b64encode(patch).decode()
    href = f"data:{media_type};base64,{data}"
    return Link(Rel.PATCH, href, type=media_type, length=len(patch), **fields)


async def hold(source: SmallSource, destination: Destination, content: bytes) -> None:
    """Let the Destination hold a resource, and the Source forget that it was asked for it."""
    source.put("a", content)
    await destination.catch_up()
    source.gets.clear()


BEFORE = json.dumps({"title": "one", "text": "x" * 200}).encode()
AFTER = json.dumps({"title": "two", "text": "x" * 200}).encode()
PATCH = b'{"title": "two"}'


@pytest.mark.parametrize(
    ("media_type", "before", "patch", "after"),
    [
        (MERGE_PATCH, BEFORE, PATCH, AFTER),
        (
            "application/json-patch+json",
            BEFORE,
            b'[{"op": "replace", "path": "/title", "value": "two"}]',
            AFTER,
        ),
        (
            "application/xml-patch+xml; charset=utf-8",
            b"<?xml version='1.0'?>\n<doc><a>one</a>" + b"<b/>" * 50 + b"</doc>\n",
            b'<p:patch xmlns:p="urn:ietf:rfc:7351">'
            b'<p:replace sel="doc/a/text()">two</p:replace></p:patch>',
            b"<?xml version='1.0'?>\n<doc><a>two</a>" + b"<b/>" * 50 + b"</doc>\n",
        ),
    ],
)
async def test_a_patch_is_fetched_instead_of_the_resource(
    source: SmallSource,
    destination: Destination,
    media_type: str,
    before: bytes,
    patch: bytes,
    after: bytes,
) -> None:
    await hold(source, destination, before)
    source.answers["/data/patch"] = body(patch)
    link = Link(Rel.PATCH, source.base + "patch", type=media_type, hash=sha256(patch))
    source.put("a", after, links=(link,))
    await destination.catch_up()
    assert destination.equals_source()
    assert (source.gets["/data/patch"], source.gets[path_of("a")]) == (1, 0)


async def test_a_patch_may_travel_inside_the_document(
    source: SmallSource, destination: Destination
) -> None:
    await hold(source, destination, BEFORE)
    source.put("a", AFTER, links=(inline(PATCH),))
    await destination.catch_up()
    assert destination.equals_source()
    assert source.gets[path_of("a")] == 0


async def test_one_patch_follows_the_other(source: SmallSource, destination: Destination) -> None:
    await hold(source, destination, BEFORE)
    for number in range(3):
        after = json.dumps({"title": number, "text": "x" * 200}).encode()
        source.put("a", after, links=(inline(b'{"title": %d}' % number),))
        await destination.catch_up()
        assert destination.equals_source()
    assert source.gets[path_of("a")] == 0


async def test_a_patch_of_another_version_is_of_no_use(
    source: SmallSource, destination: Destination
) -> None:
    await hold(source, destination, BEFORE)
    source.put("a", b'{"title": "two", "text": "y"}')
    source.put("a", b'{"title": "three", "text": "y"}', links=(inline(b'{"title": "three"}'),))
    await destination.catch_up()
    assert destination.equals_source()
    assert source.gets[path_of("a")] == 1


@pytest.mark.parametrize(
    "link",
    [
        inline(b'{"title": "wrong"}'),
        inline(b"no JSON"),
        inline(PATCH, "application/x-unheard-of"),
        inline(PATCH, hash=sha256(b"another patch")),
        Link(Rel.PATCH, "http://127.0.0.1:9/patch", type=MERGE_PATCH),
    ],
    ids=["wrong", "damaged", "unknown", "unverified", "away"],
)
async def test_where_a_patch_fails_the_resource_is_fetched(
    source: SmallSource, destination: Destination, link: Link
) -> None:
    await hold(source, destination, BEFORE)
    source.put("a", AFTER, links=(link,))
    await destination.catch_up()
    assert destination.equals_source()
    assert source.gets[path_of("a")] == 1


async def test_what_was_changed_behind_our_back_is_not_patched(
    source: SmallSource, destination: Destination
) -> None:
    called = []

    def function(before: bytes, patch: bytes) -> bytes:
        called.append(before)
        return AFTER

    await hold(source, destination, BEFORE)
    (destination.folder / "a").write_bytes(BEFORE.replace(b"x", b"y"))
    source.put("a", AFTER, links=(inline(PATCH, "application/x-new"),))
    await destination.catch_up(patches={"application/x-new": function})
    assert destination.equals_source()
    assert (called, source.gets[path_of("a")]) == ([], 1)


async def test_without_a_hash_no_patch_is_asked_for(
    source: SmallSource, destination: Destination
) -> None:
    await hold(source, destination, BEFORE)
    source.put("a", AFTER, links=(Link(Rel.PATCH, source.base + "patch", type=MERGE_PATCH),))
    source.changes[-1] = replace(source.changes[-1], hash=None)
    await destination.catch_up()
    assert destination.equals_source()
    assert (source.gets["/data/patch"], source.gets[path_of("a")]) == (0, 1)


async def test_a_patch_larger_than_the_resource_is_not_asked_for(
    source: SmallSource, destination: Destination
) -> None:
    await hold(source, destination, BEFORE)
    link = Link(Rel.PATCH, source.base + "patch", type=MERGE_PATCH, length=10_000)
    source.put("a", AFTER, links=(link,))
    await destination.catch_up()
    assert destination.equals_source()
    assert (source.gets["/data/patch"], source.gets[path_of("a")]) == (0, 1)


async def test_nothing_is_patched_before_something_is_held(
    source: SmallSource, destination: Destination
) -> None:
    await destination.catch_up()
    source.put("a", AFTER, links=(inline(PATCH),))
    await destination.catch_up()
    assert destination.equals_source()


async def test_a_user_may_add_a_media_type(source: SmallSource, destination: Destination) -> None:
    await hold(source, destination, b"one")
    source.put("a", b"one two", links=(inline(b" two", "application/x-appended"),))
    patches = {"application/x-appended": lambda before, patch: before + patch}
    await destination.catch_up(patches=patches)
    assert destination.equals_source()
    assert source.gets[path_of("a")] == 0


async def test_a_handler_that_holds_nothing_gets_the_whole_resource(
    source: SmallSource, tmp_path: Path
) -> None:
    contents: list[bytes] = []

    async def handle(change: Received) -> None:
        assert change.content is not None
        contents.append(change.content.read_bytes())

    source.put("a", BEFORE)
    await Subscriber(source.url, handle, state=tmp_path / "state").catch_up()
    source.put("a", AFTER, links=(inline(PATCH),))
    await Subscriber(source.url, handle, state=tmp_path / "state").catch_up()
    assert contents == [BEFORE, AFTER]


# Alternates (core §14.3)


def listed(source: SmallSource, *entries: Resource) -> None:
    """Let the Resource List have these entries."""
    document = replace(source._resource_list(), resources=entries)
    source.answers["/data/resourcelist.xml"] = body(write_document(document))


def with_turtle(source: SmallSource, **fields: Any) -> Resource:
    """Offer a resource as HTML, and as Turtle elsewhere."""
    fields.setdefault("hash", sha256(b"<a> <b> <c> ."))
    source.answers["/data/a.ttl"] = body(b"<a> <b> <c> .")
    turtle = Link(Rel.ALTERNATE, source.base + "a.ttl", type="text/turtle", **fields)
    return source.put("a", b"<p>a b c</p>", type="text/html", links=(turtle,))


async def test_a_preferred_alternate_is_held_instead_of_the_resource(
    source: SmallSource, destination: Destination
) -> None:
    await destination.catch_up(prefer="text/turtle")
    with_turtle(source)
    await destination.catch_up(prefer="text/turtle")
    assert destination.files() == {"a": b"<a> <b> <c> ."}
    assert source.gets[path_of("a")] == 0


async def test_the_handler_hears_which_alternate_it_gets_and_all_links(
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
        listed(source, entry)
        await Subscriber(source.url, handle, state=state, prefer=prefer).catch_up()
    assert [one.alternate for one in received] == [entry.links[0], None]
    assert all(one.resource.links == entry.links for one in received)


async def test_an_alternate_that_is_held_is_not_fetched_again(
    source: SmallSource, destination: Destination
) -> None:
    listed(source, with_turtle(source))
    await destination.catch_up(prefer="text/turtle")
    assert destination.files() == {"a": b"<a> <b> <c> ."}
    await destination.catch_up(prefer="text/turtle", selection=ANEW)
    assert source.gets["/data/resourcelist.xml"] == 2
    assert source.gets["/data/a.ttl"] == 1


async def test_another_preference_is_applied_to_what_is_held(
    source: SmallSource, destination: Destination
) -> None:
    listed(source, with_turtle(source))
    await destination.catch_up()
    assert destination.files() == {"a": b"<p>a b c</p>"}
    await destination.catch_up(prefer=["text/turtle"])
    assert destination.files() == {"a": b"<a> <b> <c> ."}
    await destination.catch_up()
    assert destination.files() == {"a": b"<p>a b c</p>"}


async def test_an_alternate_is_checked_by_its_own_hash(
    source: SmallSource, destination: Destination
) -> None:
    await destination.catch_up(prefer="text/turtle")
    with_turtle(source, hash=sha256(b"something else"))
    with pytest.raises(RsnotifyError, match="has hash"):
        await destination.catch_up(prefer="text/turtle")


# Versions (core §14.6)


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


async def test_a_timegate_is_asked_for_the_version_of_that_time(
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


async def test_a_timegate_that_is_none_is_not_believed(
    source: SmallSource, destination: Destination
) -> None:
    await destination.catch_up(exact=True)
    source.answers["/data/gate"] = body(b"whatever")
    gate = Link(Rel.TIMEGATE, source.base + "gate")
    source.put("a", b"one", lastmod=source.last, links=(gate,))
    source.changes[-1] = replace(source.changes[-1], hash=None, length=None)
    with pytest.raises(RsnotifyError, match="no version of a certain time"):
        await destination.catch_up(exact=True)
    assert destination.files() == {}


# What is asked for only if it has changed


async def test_what_is_listed_without_a_hash_is_asked_for_with_a_condition(
    source: SmallSource, destination: Destination
) -> None:
    conditions = []

    async def answer(request: web.Request) -> web.StreamResponse:
        conditions.append(request.headers.get("If-None-Match"))
        if conditions[-1] == '"1"':
            return web.Response(status=304)
        return web.Response(body=b"content", headers={"ETag": '"1"'})

    def list_at(day: int) -> None:
        listed(source, Resource(source.base + "a", lastmod=datetime(2026, 1, day, tzinfo=UTC)))

    source.put("a", b"content")
    source.changes.clear()
    source.answers[path_of("a")] = answer
    list_at(1)
    await destination.catch_up()
    list_at(2)
    await destination.catch_up(selection=ANEW)
    assert conditions == [None, '"1"']
    await destination.catch_up()  # and then it is held as it is listed now
    assert conditions == [None, '"1"']
    assert destination.equals_source()


async def test_what_a_hash_tells_apart_is_asked_for_without_a_condition(
    source: SmallSource, destination: Destination
) -> None:
    conditions = []

    async def answer(request: web.Request) -> web.StreamResponse:
        conditions.append(request.headers.get("If-None-Match"))
        return web.Response(body=source.contents["a"], headers={"ETag": '"the same"'})

    await destination.catch_up()
    source.answers[path_of("a")] = answer
    source.put("a", b"one")
    source.changes[-1] = replace(source.changes[-1], hash=None, length=None)
    await destination.catch_up()
    source.put("a", b"two")
    await destination.catch_up()
    assert conditions == [None, None]
    assert destination.equals_source()


async def test_a_validator_counts_for_the_representation_that_it_came_with(
    source: SmallSource, destination: Destination
) -> None:
    conditions = []

    async def answer(request: web.Request) -> web.StreamResponse:
        conditions.append(request.headers.get("If-Modified-Since"))
        return web.Response(
            body=request.path.encode(),
            headers={"Last-Modified": "Sun, 01 Feb 2026 00:00:00 GMT"},
        )

    turtle = Link(Rel.ALTERNATE, source.base + "a.ttl", type="text/turtle")
    source.put("a", b"")
    source.changes.clear()
    listed(source, Resource(source.base + "a", links=(turtle,)))
    source.answers |= {path_of("a"): answer, "/data/a.ttl": answer}
    await destination.catch_up()
    await destination.catch_up(prefer="text/turtle")
    assert destination.files() == {"a": b"/data/a.ttl"}
    assert conditions == [None, None]


async def test_a_weak_validator_says_nothing_of_bytes(
    source: SmallSource, destination: Destination
) -> None:
    conditions = []

    async def answer(request: web.Request) -> web.StreamResponse:
        conditions.append(request.headers.get("If-None-Match"))
        return web.Response(body=b"%d" % len(conditions), headers={"ETag": 'W/"1"'})

    await destination.catch_up()
    source.answers[path_of("a")] = answer
    for number in (1, 2):
        source.put("a", b"%d" % number)
        source.changes[-1] = replace(source.changes[-1], hash=None, length=None)
        await destination.catch_up()
    assert conditions == [None, None]
    assert destination.equals_source()


# Hosts


async def test_a_host_that_asks_for_it_is_left_alone_while_others_are_asked(
    source: SmallSource, tmp_path: Path
) -> None:
    source.contents |= {"a": b"a", "b": b"b"}
    other = SmallSource()
    await other.server.start()
    other.contents["c"] = b"c"
    busy = status(503, headers={"Retry-After": "3600"})
    source.answers[path_of("a")] = first(1, busy, body(b"a"))
    try:
        async with Sessions(source.url) as sessions:
            fetcher = Fetcher(sessions, tmp_path)
            for name in ("a", "a", "b"):
                with pytest.raises(Unavailable) as caught:
                    await fetcher.content(Resource(source.base + name))
                assert 3590 < (caught.value.retry_after or 0) <= 3600
            with pytest.raises(Unavailable):
                await fetcher.document(source.url)
            assert (await fetcher.content(Resource(other.base + "c"))).data == b"c"
    finally:
        await other.server.stop()
    assert sum(source.gets.values()) == 1


async def test_a_host_is_asked_again_after_the_time_that_it_named(
    source: SmallSource, destination: Destination
) -> None:
    await destination.catch_up()
    source.put("a", b"content")
    busy = status(429, headers={"Retry-After": "0"})
    source.answers[path_of("a")] = first(1, busy, body(b"content"))
    await destination.catch_up()
    assert destination.equals_source()


async def test_no_more_connections_go_to_a_host_than_are_allowed(
    source: SmallSource, destination: Destination
) -> None:
    both, others = asyncio.Event(), asyncio.Event()

    async def answer(request: web.Request) -> web.StreamResponse:
        if source.in_flight == 2:
            both.set()
        await others.wait()
        return web.Response(body=b"content")

    for number in range(20):
        source.put(f"r{number}", b"content")
        source.answers[path_of(f"r{number}")] = answer
    catching_up = asyncio.create_task(destination.catch_up(per_host=2))
    async with asyncio.timeout(10):
        await both.wait()
    for _ in range(200):
        await asyncio.sleep(0)  # the others would come now
    others.set()
    await catching_up
    assert destination.equals_source()
    assert source.most_in_flight == 2


async def test_content_without_a_length_may_not_fill_the_disk(
    source: SmallSource, destination: Destination
) -> None:
    await destination.catch_up()
    source.put("large", b"x" * 2_000)
    source.put("huge", b"x" * 2_000)
    source.changes[-1] = replace(source.changes[-1], hash=None, length=None)
    with pytest.raises(RsnotifyError, match="more than 1000 bytes"):
        await destination.catch_up(largest=1_000)
    assert destination.files() == {"large": b"x" * 2_000}
    await destination.catch_up()
    assert destination.equals_source()


# Packages


class Empty:
    """Packages that have nothing."""

    async def member(self, package: str, entry: Resource) -> Content:
        raise Unavailable(entry.uri, f"{package} has no {entry.path}")


async def test_what_a_package_does_not_have_is_fetched(
    source: SmallSource, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    source.contents["a"] = b"content"
    entry = Resource(source.base + "a", path="/a", hash=sha256(b"content"))
    change = Change(entry.uri, ChangeType.UPDATED, datetime.now(UTC), entry, "http://p/dump.zip")
    caplog.set_level(logging.INFO, "rsnotify.subscriber")
    async with Sessions(source.url) as sessions:
        bringer = Bringer(Fetcher(sessions, tmp_path), packages=Empty())
        content = await bringer.bring(bringer.wanted(change), None)
    assert content is not None
    assert content.data == b"content"
    assert "http://p/dump.zip has no /a" in caplog.text


class Packed:
    """Packages with one member, and what is held."""

    def __init__(self, fetcher: Fetcher, path: str, member: bytes, held: Path) -> None:
        self._fetcher = fetcher
        self._member = (path, member)
        self._held = held

    async def member(self, package: str, entry: Resource) -> Content:
        path, member = self._member
        assert entry.path == path
        return self._fetcher.at_hand(member, entry.hash)

    def held_content(self, uri: str) -> Path | None:
        return self._held


async def test_a_patch_may_be_in_the_package_of_a_change_dump(
    source: SmallSource, tmp_path: Path
) -> None:
    (tmp_path / "held").write_bytes(BEFORE)
    link = Link(Rel.PATCH, source.base + "patch", type=MERGE_PATCH, path="/changes/patch")
    entry = Resource(source.base + "a", hash=sha256(AFTER), links=(link,))
    change = Change(entry.uri, ChangeType.UPDATED, datetime.now(UTC), entry, "http://p/dump.zip")
    held = Held(entry.uri, 0, "created", sha256(BEFORE), len(BEFORE))
    async with Sessions(source.url) as sessions:
        fetcher = Fetcher(sessions, tmp_path)
        packed = Packed(fetcher, "/changes/patch", PATCH, tmp_path / "held")
        bringer = Bringer(fetcher, packages=packed, holding=packed)
        content = await bringer.bring(bringer.wanted(change), held)
    assert content is not None
    assert content.data == AFTER
    assert not source.gets


# Handing over


class Blocked:
    """A handler in a thread, which cannot take one of the resources at first."""

    def __init__(self) -> None:
        self.applied: dict[str, bytes] = {}
        self.threads: set[int] = set()
        self.failures = 2  # together with others, and alone

    async def apply(self, changes: Sequence[Received]) -> None:
        raise AssertionError("it would be in the way of the event loop")

    def apply_blocking(self, changes: Sequence[Received]) -> None:
        self.threads.add(threading.get_ident())
        for change in changes:
            if change.uri.endswith("bad") and self.failures:
                self.failures -= 1
                raise OSError("the disk is full")
            assert change.content is not None
            self.applied[change.uri] = change.content.read_bytes()


async def test_a_handler_that_blocks_is_called_in_another_thread(
    source: SmallSource, tmp_path: Path
) -> None:
    for name in ("good", "bad"):
        source.put(name, name.encode())
    handler = Blocked()
    await Subscriber(source.url, handler, state=tmp_path / "state", pace=PACE).catch_up()
    assert handler.applied == {source.base + name: name.encode() for name in ("good", "bad")}
    assert handler.failures == 0
    assert threading.get_ident() not in handler.threads
