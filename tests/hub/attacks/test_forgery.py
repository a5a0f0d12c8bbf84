"""Forged requests: without a right, in another's name, replayed, or with injected headers."""

from __future__ import annotations

from collections.abc import AsyncIterator
from urllib.parse import urlsplit

import pytest
from yarl import URL

from rsnotify.format.links import parse_links
from tests.hub.attacks.helpers import raw_server, sending
from tests.hub.helpers import TOPIC, Callback, Client, LogWatch, RunHub, fragment
from tests.hub.raw_sockets import answer_to

TOKEN = "a token of this test"
GRANTED = "https://source.example/a"

#: Topics that resemble granted ones; `test_authorization.py` has all kinds of them.
HIJACKED = [
    "https://source.example/ab",
    "https://source.example/a/../b",
    "https://source.example@evil.example/a/b",
    "https://evil.example#https://source.example/a/b",
    "https://sourc\u0435.example/a/b",
]


@pytest.fixture
async def guarded(run_hub: RunHub) -> AsyncIterator[Client]:
    async with run_hub(publishers=[{"token": TOKEN, "topics": [GRANTED]}]) as hub:
        yield hub


async def test_no_topic_outside_the_grant_can_be_published_on(guarded: Client):
    token = {"Authorization": f"Bearer {TOKEN}"}
    for topic in HIJACKED:
        status, _ = await guarded.publish(fragment(0, 1), topic=topic, **token)
        assert status in (400, 403), topic
        status, _ = await guarded.form(headers=token, mode="publish", url=topic)
        assert status in (400, 403), topic
        socket = await guarded.websocket(**token)
        await socket.send_json({"type": "publish", "topic": topic})
        frame = await socket.receive_json()
        assert frame["type"] == "error", topic
        assert frame["code"] in ("forbidden", "bad-request"), topic
        await socket.close()


async def test_two_topics_in_one_request_are_not_confused(guarded: Client):
    for links in (
        f'<{GRANTED}/b>; rel="self", <https://other.example/>; rel="self"',
        f'<https://other.example/>; rel="self", <{GRANTED}/b>; rel="self"',
        f'<https://other.example/>; rel="hub self", <{GRANTED}/b>; rel="self"',
        f'<https://other.example/>; title="<{GRANTED}/b>; rel=self"; rel=self',
        f'<https://other.example/>; rel=self; rel="hub", <{GRANTED}/b>; rel="hub"',
    ):
        status, _ = await guarded.publish(
            fragment(0, 1), Link=links, Authorization=f"Bearer {TOKEN}"
        )
        assert status in (400, 403), links


async def test_only_the_exact_token_is_accepted(guarded: Client):
    for authorization in (
        "Bearer",
        "Bearer ",
        f"Basic {TOKEN}",
        f"Bearer {TOKEN}x",
        f"Bearer {TOKEN[:-1]}",
        f"Bearer {TOKEN.upper()}",
        "Bearer \x80\xff",
        "Bearer null",
        "Bearer " + "x" * 4000,
    ):
        status, reason = await guarded.publish(
            fragment(0, 1), topic=GRANTED, Authorization=authorization
        )
        assert (status in (401, 403), TOKEN in reason) == (True, False), authorization


async def raw(hub: Client, head: list[str], body: bytes) -> int:
    """Send a request that no HTTP library would send; return the status, 0 without an answer."""
    lines = ["POST /websub HTTP/1.1", f"Content-Length: {len(body)}", "Connection: close", *head]
    answer = await answer_to(hub.url, "\r\n".join([*lines, "", ""]).encode("latin-1") + body)
    return int(answer.split(b" ")[1]) if answer else 0


CONTENT_TYPES = [
    "text/plain\x0bX-Evil: 1",
    "text/plain\x00",
    "text/plain\xff\xfe",
    "text/plain; a=\x01",
    "text/plain\r X-Evil: 1",
    "text/plain\n X-Evil: 1",
    "text/plain;" + "x" * 7000,
    "text",
    "",
    "; charset=utf-8",
    'text/plain; charset="\\"\r\n"',
]


async def test_a_content_type_cannot_inject_a_header_into_a_delivery(
    hub: Client, callback: Callback
):
    head = [f"Host: {urlsplit(hub.url).netloc}"]
    for number, content_type in enumerate(CONTENT_TYPES):
        topic = f"{TOPIC}?{number}"
        await hub.subscribe(callback, topic=topic)
        lines = [*head, f'Link: <{topic}>; rel="self"', f"Content-Type: {content_type}"]
        status = await raw(hub, lines, b"odd")
        assert status in (0, 202, 400, 415), content_type
        await hub.accepted(fragment(0, 1), topic=topic)  # in any case, the next one is delivered
        body = b""
        while body != fragment(0, 1):
            headers, body = await callback.delivery()
            assert "X-Evil" not in headers
            assert status == 202 or body == fragment(0, 1)


async def test_the_host_header_is_not_trusted(hub: Client, callback: Callback):
    """Links contain the configured URL of the hub, whatever the Host of a request."""
    await hub.subscribe(callback)
    assert (await hub.publish(fragment(0, 1), Host="localhost:1"))[0] == 202
    headers, _ = await callback.delivery()
    assert parse_links([headers["Link"]]) == [("self", TOPIC), ("hub", hub.url + "websub")]


#: Header fields that a browser adds to the request of a page, or a proxy to any request.
NOT_LOCAL = [
    {"Origin": "https://evil.example"},
    {"Origin": "null"},
    {"Sec-Fetch-Site": "cross-site"},
    {"Host": "rebound.example", "Origin": "http://rebound.example"},
    {"X-Forwarded-For": "203.0.113.9"},
    {"Forwarded": "for=203.0.113.9"},
    {"Via": "1.1 proxy"},
]


async def test_a_page_of_another_site_may_not_use_a_local_hub_without_tokens(hub: Client):
    """A browser on this machine can reach the hub with the page of any site."""
    form = {"hub.mode": "publish", "hub.url": TOPIC}
    redeliver = "admin/subscriptions/0123456789abcdef0123456789abcdef/redeliver"
    for headers in NOT_LOCAL:
        status, _ = await hub.publish(fragment(0, 1), **headers)
        assert status == (421 if "Host" in headers else 401), headers
        for method, path, data in (
            ("POST", "websub", form),
            ("GET", "admin/subscriptions", None),
            ("POST", redeliver, None),
        ):
            async with hub.session.request(
                method, hub.url + path, data=data, headers=headers
            ) as response:
                assert response.status in (401, 403, 421), (headers, path)
                assert "Access-Control-Allow-Origin" not in response.headers


async def test_no_text_of_a_client_becomes_markup(hub: Client):
    """Errors are plain text, which no browser interprets as markup."""
    script = "<script>alert(1)</script>"
    for fields in ({"mode": script}, {"mode": "publish", "url": script}, {"mode": "subscribe"}):
        data = {"hub." + name: value for name, value in fields.items()}
        async with hub.session.post(hub.url + "websub", data=data) as response:
            assert response.content_type == "text/plain"
            assert response.headers["X-Content-Type-Options"] == "nosniff"
            assert script not in await response.text()
    for path in (f"?{script}", f"{script}", f"topics?topic={script}", f"admin/topics/{script}"):
        async with hub.session.get(URL(hub.url + path, encoded=True)) as response:
            assert script not in await response.text() or response.content_type != "text/html"


async def test_the_hub_cannot_be_its_own_callback(hub: Client, watch: LogWatch):
    """A callback at the hub itself would cause an endless loop."""
    paths = ("", "websub", "ws", "topics", "healthz", "metrics", "admin/status", "nowhere")
    for number, path in enumerate(paths):
        topic = f"{TOPIC}?{number}"
        status, _ = await hub.form(mode="subscribe", topic=topic, callback=hub.url + path)
        assert status in (202, 400)
        if status == 202:
            await watch.line("did not confirm", topic)
    assert await hub.subscriptions() == []


async def test_the_answer_of_a_callback_is_logged_on_one_line(hub: Client, watch: LogWatch):
    nasty = b"HTTP/1.1 500 \x1b[31mred\x07\xff\r\nX: \x1b]0;\r\nContent-Length: 0\r\n\r\n"
    async with raw_server(sending(nasty)) as callback:
        assert (await hub.form(mode="subscribe", topic=TOPIC, callback=callback.url()))[0] == 202
        await watch.line("did not confirm")
        await hub.form(mode="publish", url=callback.url())
    assert all(line.isprintable() for line in watch.lines)
