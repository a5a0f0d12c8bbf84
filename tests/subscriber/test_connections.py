"""What subscribers of one process share of HTTP."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from aiohttp import web

from rsnotify.errors import RefusedAddress, Unavailable
from rsnotify.format.model import Resource
from rsnotify_subscriber.fetching.fetcher import Fetcher
from rsnotify_subscriber.fetching.sessions import Connections, Sessions
from tests.resolving import not_answering, resolve
from tests.subscriber.destination import Destination
from tests.subscriber.source import PATIENCE, SmallSource, body, first, path_of, status


class Crowd:
    """Requests that a server holds until it lets them go."""

    def __init__(self) -> None:
        self.paths: list[str] = []
        self.gone = 0
        self.most = 0
        self.open = asyncio.Event()
        self.changed = asyncio.Condition()

    async def answer(self, request: web.Request) -> web.StreamResponse:
        async with self.changed:
            self.paths.append(request.path)
            self.most = max(self.most, len(self.paths) - self.gone)
            self.changed.notify_all()
        await self.open.wait()
        self.gone += 1
        return web.Response()

    async def until(self, *paths: str) -> None:
        async with asyncio.timeout(PATIENCE), self.changed:
            await self.changed.wait_for(lambda: sorted(self.paths) == sorted(paths))

    async def until_there_are(self, count: int) -> None:
        async with asyncio.timeout(PATIENCE), self.changed:
            await self.changed.wait_for(lambda: len(self.paths) == count)


@pytest.fixture
def crowd(source: SmallSource) -> Crowd:
    crowd = Crowd()
    for name in "ab":
        for number in range(8):
            source.answers[f"/{name}{number}"] = crowd.answer
    return crowd


def ask(sessions: Sessions, uri: str) -> asyncio.Task[None]:
    async def get() -> None:
        async with sessions.get(uri, {}):
            pass

    return asyncio.create_task(get())


async def test_no_more_is_asked_at_once_than_all_together_may(
    source: SmallSource, crowd: Crowd
) -> None:
    async with (
        Connections(most=3) as shared,
        Sessions(source.url, shared=shared) as a,
        Sessions(source.url, shared=shared) as b,
    ):
        tasks = [
            ask(one, f"{source.site}{name}{number}")
            for name, one in (("a", a), ("b", b))
            for number in range(8)
        ]
        # Which three is not determined: each resolves the host in a thread before its turn.
        await crowd.until_there_are(3)
        crowd.open.set()
        await asyncio.gather(*tasks)
        assert (len(crowd.paths), crowd.most) == (16, 3)


async def test_who_asks_for_much_leaves_room_for_the_others(
    source: SmallSource, crowd: Crowd
) -> None:
    async with (
        Connections(most=3) as shared,
        Sessions(source.url, per_host=2, shared=shared) as greedy,
        Sessions(source.url, per_host=2, shared=shared) as other,
    ):
        tasks = [ask(greedy, f"{source.site}a{number}") for number in range(8)]
        await crowd.until("/a0", "/a1")
        tasks.append(ask(other, f"{source.site}b0"))
        await crowd.until("/a0", "/a1", "/b0")
        crowd.open.set()
        await asyncio.gather(*tasks)


async def test_a_host_that_does_not_answer_holds_up_no_other(
    source: SmallSource, other_source: SmallSource, crowd: Crowd
) -> None:
    slow = Crowd()
    other_source.answers["/b0"] = slow.answer
    async with (
        Connections(most=4, per_host=2) as shared,
        Sessions(source.url, per_host=100, shared=shared, allow_private_addresses=True) as sessions,
    ):
        tasks = [ask(sessions, f"{source.site}a{number}") for number in range(8)]
        await crowd.until("/a0", "/a1")
        tasks.append(ask(sessions, f"{other_source.site}b0"))
        await slow.until("/b0")
        assert crowd.most == 2
        slow.open.set()
        crowd.open.set()
        await asyncio.gather(*tasks)


async def test_a_connection_to_a_private_address_is_nobody_elses(source: SmallSource) -> None:
    async with (
        Connections() as shared,
        Sessions(source.url, shared=shared) as own,
        Sessions("http://a.example/", shared=shared) as stranger,
    ):
        await ask(own, source.url)
        with pytest.raises(RefusedAddress):
            await ask(stranger, source.url)


async def test_nor_do_requests_for_documents_reach_it_that_waited_for_a_connection(
    source: SmallSource,
) -> None:
    source.answers["/busy"] = status(503, headers={"Retry-After": "60"})
    async with (
        Connections(per_host=1) as shared,
        Sessions(source.url, shared=shared) as sessions,
    ):
        requests = [ask(sessions, source.site + "busy") for _ in range(3)]
        errors = await asyncio.gather(*requests, return_exceptions=True)
    assert [getattr(error, "retry_after", None) is not None for error in errors].count(True) == 2
    assert source.gets["/busy"] == 1


async def test_a_name_with_an_address_that_does_not_answer_is_reached_at_another(
    source: SmallSource, monkeypatch: pytest.MonkeyPatch
) -> None:
    resolve(monkeypatch, "source.example", "127.0.0.3", "127.0.0.2", "127.0.0.1")
    url = source.url.replace("127.0.0.1", "source.example")
    with not_answering("127.0.0.3", source.server.port):
        async with Sessions(url) as sessions, sessions.get(url, {}) as response:
            assert response.status == 200


# What a host is spared: requests before their time, and too many at once.


async def test_a_host_that_asked_one_to_wait_is_left_alone_by_all_while_others_are_asked(
    source: SmallSource, other_source: SmallSource, tmp_path: Path
) -> None:
    source.contents |= {"a": b"a", "b": b"b"}
    other_source.contents["c"] = b"c"
    busy = status(503, headers={"Retry-After": "3600"})
    source.answers[path_of("a")] = first(1, busy, body(b"a"))
    async with (
        Connections() as shared,
        Sessions(source.url, allow_private_addresses=True, shared=shared) as sessions,
        Sessions(source.url, shared=shared) as others,
    ):
        fetcher = Fetcher(sessions, tmp_path)
        for name in ("a", "a", "b"):
            with pytest.raises(Unavailable) as caught:
                await fetcher.content(Resource(source.base + name))
            assert 3000 < (caught.value.retry_after or 0) <= 3600
        for one in (fetcher, Fetcher(others, tmp_path)):
            with pytest.raises(Unavailable, match="does not accept requests now"):
                await one.document(source.url)
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
    source: SmallSource, destination: Destination, crowd: Crowd
) -> None:
    for number in range(20):
        source.put(f"r{number}", b"")
        source.answers[path_of(f"r{number}")] = crowd.answer
    catching_up = asyncio.create_task(destination.become_equal(per_host=2))
    await crowd.until_there_are(2)
    for _ in range(200):
        await asyncio.sleep(0)  # the others would come now
    crowd.open.set()
    await catching_up
    assert crowd.most == 2
