"""What a host is spared: requests before their time, and too many at once."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from aiohttp import web

from rsnotify.errors import Unavailable
from rsnotify.format.model import Resource
from rsnotify_subscriber.fetching.fetcher import Fetcher
from rsnotify_subscriber.fetching.sessions import Sessions
from tests.subscriber.destination import PATIENCE, Destination
from tests.subscriber.source import SmallSource, body, first, path_of, status


async def test_a_host_that_asks_for_it_is_left_alone_while_others_are_asked(
    source: SmallSource, other_source: SmallSource, tmp_path: Path
) -> None:
    source.contents |= {"a": b"a", "b": b"b"}
    other_source.contents["c"] = b"c"
    busy = status(503, headers={"Retry-After": "3600"})
    source.answers[path_of("a")] = first(1, busy, body(b"a"))
    async with Sessions(source.url, allow_private_addresses=True) as sessions:
        fetcher = Fetcher(sessions, tmp_path)
        for name in ("a", "a", "b"):
            with pytest.raises(Unavailable) as caught:
                await fetcher.content(Resource(source.base + name))
            assert 3000 < (caught.value.retry_after or 0) <= 3600
        with pytest.raises(Unavailable):
            await fetcher.document(source.url)
        assert (await fetcher.content(Resource(other_source.base + "c"))).data == b"c"
    assert sum(source.gets.values()) == 1


async def test_a_host_is_asked_again_after_the_time_that_it_named(
    source: SmallSource, destination: Destination
) -> None:
    await destination.catch_up()
    source.put("a", b"content")
    busy = status(429, headers={"Retry-After": "0"})
    source.answers[path_of("a")] = first(1, busy, body(b"content"))
    await destination.become_equal()


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
    async with asyncio.timeout(PATIENCE):
        await both.wait()
    for _ in range(200):
        await asyncio.sleep(0)  # the others would come now
    others.set()
    await catching_up
    assert destination.equals_source()
    assert source.most_in_flight == 2
