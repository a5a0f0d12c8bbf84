"""The web pages that may open a WebSocket."""

from __future__ import annotations

import pytest

from rsnotify_hub.live.connections import Origins
from tests.hub.conftest import RunHub
from tests.hub.raw_sockets import connect

ORIGINS = Origins("https://hub.example/", ["https://page.example", "http://other.example:8080"])


@pytest.mark.parametrize(
    ("origin", "host"),
    [
        (None, "hub.example"),
        ("https://hub.example", "hub.example"),
        ("https://hub.example", "10.0.0.7:8080"),  # a proxy asks
        ("https://hub.example:443", "hub.example"),
        ("HTTPS://HUB.EXAMPLE", "hub.example"),
        ("https://page.example", "hub.example"),
        ("http://other.example:8080", "hub.example"),
        ("http://127.0.0.1:8080", "127.0.0.1:8080"),
        ("http://localhost:8080", "localhost:8080"),
        ("http://[::1]:8080", "[::1]:8080"),
        ("http://192.168.1.4", "192.168.1.4"),
    ],
)
def test_allowed_origins(origin: str | None, host: str):
    assert ORIGINS.allows(origin, host)


@pytest.mark.parametrize(
    ("origin", "host"),
    [
        ("https://evil.example", "hub.example"),
        ("http://hub.example", "hub.example"),  # another scheme is another origin
        ("https://hub.example:444", "hub.example:444"),
        ("https://hub.example.evil.example", "hub.example"),
        ("https://hub.example@evil.example", "hub.example"),
        ("https://sub.page.example", "hub.example"),
        ("http://evil.example", "evil.example"),  # a name that was made to lead here
        ("http://evil.example", "127.0.0.1:8080"),
        ("http://127.0.0.1:8081", "127.0.0.1:8080"),
        ("http://127.0.0.1.evil.example", "127.0.0.1"),
        ("http://localhost.evil.example", "localhost"),
        ("null", "hub.example"),
        ("", "hub.example"),
        ("file://", "hub.example"),
        ("https://", "hub.example"),
        ("http://[::1", "[::1"),
        ("http://a:b", "a:b"),
        ("http://127.0.0.1", "127.0.0.1:x"),
    ],
)
def test_refused_origins(origin: str, host: str):
    assert not ORIGINS.allows(origin, host)


async def test_a_refused_page_gets_403_and_an_allowed_page_gets_fragments(run_hub: RunHub):
    async with run_hub(websocket_origins=["https://page.example"]) as hub:
        async with connect(hub, "Origin: https://evil.example") as (head, socket):
            assert head.startswith("HTTP/1.1 403")
            assert b"this origin" in await socket.reader.readline()
        await hub.listen(Origin="https://page.example")
