"""Server-side request forgery: no client can make the hub connect to private addresses."""

from __future__ import annotations

import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

import rsnotify_hub.http.client
from rsnotify.runtime.addresses import refusal
from tests.hub.attacks.helpers import Names, Server, confirm, obliging, raw_server, sending_to
from tests.hub.helpers import TOPIC, Client, LogWatch, RunHub, fragment
from tests.ports import free_port

#: Spellings of 127.0.0.1, which resolvers, browsers and C libraries understand.
SPELLINGS = [
    "127.0.0.1",
    "127.0.0.1.",
    "127.1",
    "127.0.1",
    "2130706433",
    "0x7f000001",
    "0x7f.0.0.1",
    "0x7f.1",
    "017700000001",
    "0177.0.0.1",
    "0177.0.0x0.01",
    "127.0.0.01",
    "%31%32%37.0.0.1",
    "127.0.0.1%00.source.example",
    "127。0。0。1",
    "①②⑦.0.0.1",
    "localhost",
    "LOCALHOST",
    "localhost.",
    "0",
    "0.0.0.0",
    "[::ffff:127.0.0.1]",
    "[::ffff:7f00:1]",
    "[0:0:0:0:0:ffff:127.0.0.1]",
    "[::127.0.0.1]",
    "[64:ff9b::7f00:1]",
    "[2002:7f00:1::]",
    "[::1]",
    "[::]",
    "[::1%25lo]",
    "[::1%lo]",
    "[::ffff:127.0.0.1%25lo]",
    "[fe80::1%25lo]",
    "source.example@127.0.0.1",
    "127.0.0.1#@source.example",
    "127.0.0.1\\@source.example",
]


@asynccontextmanager
async def at_ipv6(port: int) -> AsyncIterator[Server]:
    """A server at the loopback address of IPv6; None on a machine without IPv6."""
    try:
        socket.create_server(("::1", 0), family=socket.AF_INET6).close()
    except OSError:
        yield Server()
        return
    async with raw_server(obliging, host="::1", port=port) as server:
        yield server


@asynccontextmanager
async def hub_and_victims(run_hub: RunHub) -> AsyncIterator[tuple[Client, Server, Server]]:
    """A hub, and a server on one port of both loopback addresses."""
    async with (
        raw_server(obliging, port=free_port()) as four,
        at_ipv6(four.port) as six,
        run_hub(allow_private_addresses=False) as hub,
    ):
        yield hub, four, six


async def test_a_hub_that_allows_private_addresses_would_connect_to_them(
    run_hub: RunHub, watch: LogWatch, names: Names
):
    names.addresses["callback.test"] = ["127.0.0.1"]
    async with raw_server(obliging) as victim, run_hub(allow_private_addresses=True) as hub:
        for number, host in enumerate(("127.0.0.1", "localhost", "callback.test")):
            await refused(hub, watch, f"http://{host}:{victim.port}/", number)
            assert victim.connections == number + 1


async def refused(hub: Client, watch: LogWatch, url: str, number: int) -> None:
    """Wait until the hub has refused a callback: at once, or when it would connect."""
    topic = f"{TOPIC}?{number}"
    status, _ = await hub.form(mode="subscribe", topic=topic, callback=url)
    assert status in (202, 400)
    if status == 202:
        await watch.line("did not confirm", topic)


async def test_no_spelling_of_a_private_callback_is_connected_to(run_hub: RunHub, watch: LogWatch):
    async with hub_and_victims(run_hub) as (hub, four, six):
        for number, spelling in enumerate(SPELLINGS):
            await refused(hub, watch, f"http://{spelling}:{four.port}/callback", number)
        assert four.connections + six.connections == 0


async def test_no_spelling_of_a_private_topic_is_connected_to(run_hub: RunHub):
    async with hub_and_victims(run_hub) as (hub, four, six):
        for spelling in SPELLINGS:
            status, reason = await hub.form(
                mode="publish", url=f"http://{spelling}:{four.port}/channel.xml"
            )
            assert status in (400, 502), (spelling, status, reason)
            assert "secret" not in reason
        assert four.connections + six.connections == 0


@pytest.mark.parametrize(
    "address",
    ["127.0.0.1", "::1", "::ffff:127.0.0.1", "64:ff9b::127.0.0.1", "2002:7f00:1::", "::127.0.0.1"],
)
async def test_a_name_of_a_private_address_is_not_connected_to(
    run_hub: RunHub, watch: LogWatch, names: Names, address: str
):
    names.addresses["callback.test"] = [address]
    async with hub_and_victims(run_hub) as (hub, four, six):
        await refused(hub, watch, f"http://callback.test:{four.port}/", 0)
        assert names.asked
        assert four.connections + six.connections == 0


@pytest.fixture
def public(monkeypatch: pytest.MonkeyPatch) -> str:
    """An address of this machine that counts as public."""
    address = "127.0.0.2"
    monkeypatch.setattr(
        rsnotify_hub.http.client,
        "refusal",
        lambda each: None if each == address else refusal(each),
    )
    return address


async def test_a_name_that_changes_to_a_private_address_is_not_connected_to(
    run_hub: RunHub, watch: LogWatch, names: Names, public: str
):
    """DNS rebinding: public during verification, private during delivery."""
    names.addresses["callback.test"] = [public]
    async with (
        raw_server(confirm, host=public, port=free_port()) as callback,
        raw_server(obliging, port=callback.port) as victim,
    ):
        url = f"http://callback.test:{callback.port}/"
        async with run_hub(allow_private_addresses=False) as hub:
            assert await hub.form(mode="subscribe", topic=TOPIC, callback=url) == (202, "")
            await callback.until(lambda: len(callback.requests) == 1)
            await hub.accepted(fragment(0, 1))
            await callback.until(lambda: len(callback.requests) == 2)
        names.addresses["callback.test"] = ["127.0.0.1"]
        async with run_hub(allow_private_addresses=False) as hub:
            await hub.accepted(fragment(1, 2))
            await watch.line("callback.test", "is not dialled")
        assert (victim.connections, callback.connections) == (0, 2)


async def test_only_the_public_addresses_of_a_name_are_connected_to(
    run_hub: RunHub, names: Names, public: str
):
    names.addresses["callback.test"] = ["127.0.0.1", "::1", public]
    async with (
        raw_server(confirm, host=public, port=free_port()) as callback,
        raw_server(obliging, port=callback.port) as four,
        at_ipv6(callback.port) as six,
        run_hub(allow_private_addresses=False) as hub,
    ):
        url = f"http://callback.test:{callback.port}/"
        assert await hub.form(mode="subscribe", topic=TOPIC, callback=url) == (202, "")
        await callback.until(lambda: len(callback.requests) == 1)
        assert four.connections + six.connections == 0


@pytest.mark.parametrize("status", [301, 302, 303, 307, 308])
async def test_a_callback_cannot_redirect_the_hub(
    run_hub: RunHub, watch: LogWatch, public: str, status: int
):
    async with raw_server(obliging) as victim:
        async with (
            raw_server(sending_to(status, victim.url()), host=public) as callback,
            run_hub(allow_private_addresses=False) as hub,
        ):
            await refused(hub, watch, callback.url(), 0)
        assert (callback.connections, victim.connections) == (1, 0)


@pytest.mark.parametrize(
    "location",
    [
        "http://127.0.0.1:{port}/",
        "http://2130706433:{port}/",
        "http://[::ffff:127.0.0.1]:{port}/",
        "//127.0.0.1:{port}/",
        "http://localhost:{port}/",
        "file:///etc/passwd",
        "gopher://127.0.0.1:{port}/",
        "data:application/xml,<urlset/>",
    ],
)
async def test_a_topic_cannot_redirect_the_hub_to_a_private_address(
    run_hub: RunHub, public: str, location: str
):
    async with raw_server(obliging) as victim:
        target = location.format(port=victim.port)
        async with (
            raw_server(sending_to(302, target), host=public) as source,
            run_hub(allow_private_addresses=False) as hub,
        ):
            status, reason = await hub.form(mode="publish", url=source.url("/channel.xml"))
            assert (status, "secret" in reason) == (502, False)
        assert (source.connections > 0, victim.connections) == (True, 0)


async def test_a_redirect_loop_of_a_topic_ends_soon(run_hub: RunHub, public: str):
    async with (
        raw_server(sending_to(302, "/channel.xml"), host=public) as source,
        run_hub(allow_private_addresses=False) as hub,
    ):
        status, _ = await hub.form(mode="publish", url=source.url("/channel.xml"))
        assert status == 502
        assert len(source.requests) <= 5
