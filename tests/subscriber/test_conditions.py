"""What is asked for only if it has changed."""

from __future__ import annotations

from datetime import UTC, datetime

from aiohttp import web
from msgspec.structs import replace

from rsnotify.format.model import Link, Rel, Resource
from tests.subscriber.destination import ANEW, Destination
from tests.subscriber.source import SmallSource, path_of


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
        source.list_only(Resource(source.base + "a", lastmod=datetime(2026, 1, day, tzinfo=UTC)))

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
    source.list_only(Resource(source.base + "a", links=(turtle,)))
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


async def test_what_is_listed_as_modified_earlier_than_what_is_held_is_asked_for_without_one(
    source: SmallSource, destination: Destination
) -> None:
    """A server may answer 304 to all that is no later than the date it is asked with."""
    days = [2, 1]  # it is restored from a copy

    async def answer(request: web.Request) -> web.StreamResponse:
        if "If-Modified-Since" in request.headers:
            return web.Response(status=304)
        modified = "Fri, 02" if days[0] == 2 else "Thu, 01"
        headers = {"Last-Modified": f"{modified} Jan 2026 00:00:00 GMT"}
        return web.Response(body=b"of day %d" % days[0], headers=headers)

    def list_it() -> None:
        modified = datetime(2026, 1, days[0], tzinfo=UTC)
        source.list_only(Resource(source.base + "a", lastmod=modified))
        source.contents["a"] = b"of day %d" % days[0]

    source.put("a", b"")
    source.changes.clear()
    source.answers[path_of("a")] = answer
    list_it()
    await destination.catch_up()
    assert destination.equals_source()
    days.pop(0)
    list_it()
    await destination.catch_up(selection=ANEW)
    assert destination.equals_source()
