"""Topic content, published by POST and by ping: exact, once, and only the newest of a page."""

from __future__ import annotations

import asyncio
import gzip
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web

from rsnotify.format.model import Document
from rsnotify.format.reader import read_document
from rsnotify.format.writer import write_document
from rsnotify_hub.access.grants import prefixes_grant
from rsnotify_hub.config.loading import load_configuration
from rsnotify_hub.topic_log import TopicLogs
from rsnotify_hub.websub.callback_requests import open_client
from rsnotify_hub.websub.pings import TopicFetcher
from tests.hub.conftest import RunHub
from tests.hub.helpers import TOPIC, Callback, Client, Clock, at, changes, fragment, serving
from tests.hub.storing import opened
from tests.waiting import PATIENCE

HTML = "text/html; charset=utf-8"
XML = {"Content-Type": "application/xml"}
XHTML = (
    b'<!DOCTYPE html PUBLIC "-//W3C//DTD XHTML 1.0 Strict//EN" "http://www.w3.org/x.dtd">'
    b'<html xmlns="http://www.w3.org/1999/xhtml"><p>&copy;</p></html>'
)


class TopicServer:
    """A web site with one page, and redirects to it."""

    def __init__(self) -> None:
        self.url = ""
        self.body = b"<p>one"
        self.headers = {"Content-Type": HTML}
        self.requests: list[web.Request] = []
        self.bodies_sent = 0
        self.open = asyncio.Event()
        self.open.set()
        self.asked = asyncio.Event()

    async def get(self, request: web.Request) -> web.StreamResponse:
        self.requests.append(request)
        self.asked.set()
        await self.open.wait()
        number = request.path.partition("/redirect/")[2]
        if number:
            left = int(number) - 1
            return web.Response(
                status=302, headers={"Location": f"/redirect/{left}" if left else "/page"}
            )
        tag = self.headers.get("ETag")
        if tag is not None and request.headers.get("If-None-Match") == tag:
            return web.Response(status=304, headers=self.headers)
        self.bodies_sent += 1
        return web.Response(body=self.body, headers=self.headers)


@pytest.fixture
async def site() -> AsyncIterator[TopicServer]:
    server = TopicServer()
    async with serving(get=server.get) as url:
        server.url = url + "/page"
        yield server
        server.open.set()


async def ping(hub: Client, topic: str) -> None:
    assert await hub.form(mode="publish", url=topic) == (202, "")


async def refused(hub: Client, topic: str, *parts: str) -> None:
    status, reason = await hub.form(mode="publish", url=topic)
    assert status == 502
    assert all(part in reason for part in parts), reason


async def delivered(callback: Callback) -> tuple[str, bytes]:
    headers, body = await callback.delivery()
    return headers["Content-Type"], body


def change_list(from_: float, *seconds: float) -> bytes:
    return write_document(
        Document(capability="changelist", from_=at(from_), resources=changes(*seconds))
    )


async def test_the_hub_fetches_a_pinged_topic_and_delivers_what_is_new(
    hub: Client, site: TopicServer
):
    socket = await hub.listen(topic=site.url)
    site.headers, site.body = XML, change_list(0, 1, 2)
    await ping(hub, site.url)
    assert (await socket.receive_str()).encode() == site.body
    site.body = change_list(0, 1, 2, 3, 4)
    await ping(hub, site.url)
    news = read_document((await socket.receive_str()).encode())
    assert (news.from_, news.until, len(news.resources)) == (at(2), at(4), 2)


async def test_changes_too_large_for_a_fragment_are_announced_as_a_gap(
    run_hub: RunHub, site: TopicServer
):
    async with run_hub(max_fragment_bytes=2000) as hub:
        socket = await hub.listen(topic=site.url)
        site.headers, site.body = XML, change_list(0, *range(1, 50))
        await ping(hub, site.url)
        heard = read_document((await socket.receive_str()).encode())
        assert (heard.from_, heard.until, heard.resources) == (at(49), at(49), ())


@pytest.mark.parametrize(
    ("headers", "body", "reason"),
    [
        (XML, b"", "/page"),
        (XML, b"<html>", "/page"),
        (XML, fragment(0, 2, 1), "/page"),
        (XML, b"<!DOCTYPE urlset>" + change_list(0, 1), "/page"),
        ({"Content-Encoding": "gzip"}, gzip.compress(change_list(0, 1)), "Content-Encoding"),
    ],
    ids=["empty", "HTML", "out of order", "a DOCTYPE", "compressed"],
)
async def test_a_topic_that_is_no_change_list_is_refused(
    hub: Client, site: TopicServer, headers: dict[str, str], body: bytes, reason: str
):
    site.headers, site.body = headers, body
    await refused(hub, site.url, reason)


async def test_a_topic_that_cannot_be_fetched_is_refused(hub: Client):
    await refused(hub, "http://127.0.0.1:9/")


@pytest.mark.parametrize(
    ("content_type", "body"),
    [
        (HTML, b"<p>not <b>closed"),
        ("application/json", b'{"type": "gap"}'),
        ("image/png", bytes(range(256))),
        ("application/xhtml+xml", XHTML),
        ("application/atom+xml;type=feed", b'<feed xmlns="http://www.w3.org/2005/Atom"/>'),
        ("text/plain", b""),
    ],
)
async def test_any_content_is_delivered_exactly_as_it_was_posted(
    hub: Client, callback: Callback, content_type: str, body: bytes
):
    await hub.subscribe(callback)
    assert await hub.publish(body, Content_Type=content_type) == (202, "")
    assert await delivered(callback) == (content_type, body)


async def test_unchanged_content_is_not_sent_twice(
    run_hub: RunHub, callback: Callback, site: TopicServer
):
    async with run_hub() as hub:
        await hub.subscribe(callback, topic=site.url)
        for _ in range(2):
            await ping(hub, site.url)
        assert await delivered(callback) == (HTML, b"<p>one")
    async with run_hub() as hub:
        await ping(hub, site.url)
        site.body = b"<p>two"
        await ping(hub, site.url)
        assert await delivered(callback) == (HTML, b"<p>two")
    assert callback.deliveries.empty()


async def test_content_that_did_not_change_is_not_even_transferred(hub: Client, site: TopicServer):
    site.headers |= {"ETag": '"1"', "Last-Modified": "Sat, 21 Nov 2026 12:00:00 GMT"}
    for _ in range(3):
        await ping(hub, site.url)
    assert site.bodies_sent == 1
    asked = site.requests[-1].headers
    assert asked["If-None-Match"] == '"1"'
    assert asked["If-Modified-Since"] == "Sat, 21 Nov 2026 12:00:00 GMT"


async def test_a_ping_replaces_what_was_posted_since(
    hub: Client, callback: Callback, site: TopicServer
):
    site.headers["ETag"] = '"1"'
    await hub.subscribe(callback, topic=site.url)
    await ping(hub, site.url)
    assert (await delivered(callback))[1] == b"<p>one"
    await hub.publish(b"posted", topic=site.url, Content_Type=HTML)
    assert (await delivered(callback))[1] == b"posted"
    await ping(hub, site.url)
    assert (await delivered(callback))[1] == b"<p>one"


@asynccontextmanager
async def pinging(
    folder: Path, clock: Clock, **settings: Any
) -> AsyncIterator[Callable[[str], Awaitable[None]]]:
    configuration = load_configuration(None, **settings)
    async with (
        opened(folder, clock) as store,
        open_client(allow_private_addresses=True) as client,
    ):
        topics = TopicLogs(store)
        await topics.start(())
        pings = TopicFetcher(
            topics,
            client,
            configuration.websub,
            configuration.intake,
            is_open=partial(prefixes_grant, configuration.access.open_topics),
            clock=clock,
        )
        yield pings.fetch
        await pings.close()


async def test_pings_during_a_fetch_share_the_next_one(
    tmp_path: Path, clock: Clock, site: TopicServer
):
    async with pinging(tmp_path, clock) as fetch:
        site.open.clear()
        first = asyncio.create_task(fetch(site.url))
        async with asyncio.timeout(PATIENCE):
            await site.asked.wait()
        more = [asyncio.create_task(fetch(site.url)) for _ in range(20)]
        await asyncio.sleep(0)  # each has begun
        site.open.set()
        await asyncio.gather(first, *more)
        assert len(site.requests) == 2


async def test_fetches_of_an_open_topic_are_spaced(tmp_path: Path, clock: Clock, site: TopicServer):
    async with pinging(tmp_path, clock, open_topics=[site.url], ping_seconds=3600) as fetch:
        await fetch(site.url)
        later = [asyncio.create_task(fetch(site.url)) for _ in range(5)]
        await fetch(site.url + "?another")
        assert [request.path_qs for request in site.requests] == ["/page", "/page?another"]
        assert not any(task.done() for task in later)
    await asyncio.gather(*later, return_exceptions=True)


async def test_a_subscription_that_is_behind_gets_only_the_newest_content(
    hub: Client, callback: Callback, site: TopicServer
):
    await hub.subscribe(callback, topic=site.url)
    callback.open.clear()
    for number in range(9):
        site.body = b"%d" % number
        await ping(hub, site.url)
    assert (await delivered(callback))[1] == b"0"
    callback.open.set()
    assert (await delivered(callback))[1] == b"8"
    site.body = b"last"
    await ping(hub, site.url)
    assert (await delivered(callback))[1] == b"last"


async def test_few_redirects_are_followed(hub: Client, site: TopicServer):
    base = site.url.removesuffix("page")
    await ping(hub, base + "redirect/3")
    assert site.bodies_sent == 1
    await refused(hub, base + "redirect/4", "redirects more than 3 times")


def redirecting(status: int, location: str) -> Callable[[web.Request], Awaitable[web.Response]]:
    async def get(request: web.Request) -> web.Response:
        return web.Response(status=status, headers={"Location": location})

    return get


async def test_a_redirect_to_an_unusable_url_is_not_followed(hub: Client):
    urls = "file:///etc/passwd gopher://a.example/ http:// //user@a.example/ \u00e4 http://[::1"
    for location in ["", "data:application/xml,<urlset/>", *urls.split()]:
        async with serving(get=redirecting(302, location)) as url:
            await refused(hub, url + "/")


async def test_a_page_larger_than_a_fragment_may_be_is_refused(run_hub: RunHub, site: TopicServer):
    async with run_hub(max_fragment_bytes=1000) as hub:
        site.body = b"x" * 1001
        await refused(hub, site.url, "larger than 1000 bytes")
        site.body = b"x" * 1000
        await ping(hub, site.url)


async def test_an_error_page_in_the_place_of_a_change_list_is_refused(
    hub: Client, site: TopicServer
):
    socket = await hub.listen(topic=site.url)
    site.body, site.headers = fragment(0, 1), XML
    await ping(hub, site.url)
    site.body, site.headers = b"<p>Sorry", {"Content-Type": HTML}
    await refused(hub, site.url, "about changes")
    status, reason = await hub.publish(b"<p>Sorry", topic=site.url, Content_Type=HTML)
    assert (status, "about changes" in reason) == (400, True)
    site.body, site.headers = fragment(1, 2), XML
    await ping(hub, site.url)
    assert [(await socket.receive_str()).encode() for _ in range(2)] == [
        fragment(0, 1),
        fragment(1, 2),
    ]


async def test_a_content_without_a_type_is_refused(hub: Client):
    async with hub.session.post(
        hub.url + "websub",
        data=b"x",
        headers={"Link": f'<{TOPIC}>; rel="self"'},
        skip_auto_headers=["Content-Type"],
    ) as response:
        assert response.status == 415
        assert "Content-Type" in await response.text()


async def test_pings_create_no_more_open_topics_than_the_limit(run_hub: RunHub, site: TopicServer):
    async with run_hub(open_topics=[site.url], max_open_topics=2, ping_seconds=0) as hub:
        for query in ("?1", "?2"):
            await ping(hub, site.url + query)
        status, reason = await hub.form(mode="publish", url=site.url + "?3")
        assert (status, "too many open topics" in reason) == (503, True)
        await ping(hub, site.url + "?1")


async def test_a_ping_is_handled_even_if_its_sender_has_left(
    hub: Client, callback: Callback, site: TopicServer
):
    await hub.subscribe(callback, topic=site.url)
    site.open.clear()
    sent = asyncio.create_task(hub.form(mode="publish", url=site.url))
    async with asyncio.timeout(PATIENCE):
        await site.asked.wait()
    sent.cancel()
    await asyncio.gather(sent, return_exceptions=True)
    site.open.set()
    assert (await delivered(callback))[1] == b"<p>one"
