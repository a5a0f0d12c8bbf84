"""Documents that make a parser loop or use much memory do not block the hub."""

from __future__ import annotations

import asyncio
import gzip
import signal
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path

import pytest

from tests.hub.attacks.helpers import raw_server, response, sending
from tests.hub.helpers import TOPIC, Callback, Client, fragment
from tests.hub.processes import Process, hub_process
from tests.waiting import PATIENCE
from tests.wild.test_hostile_documents import DATA, ENTRY, HEAD

XML = "Content-Type: application/xml"
IMAGE = '<image:image xmlns:image="urn:i"><image:loc>a:b</image:loc></image:image>'
FOREIGN = "<rs:md xmlns:x='urn:x' x:y='z'/>"
BODIES = {
    "blanks": f"{HEAD}<url>{' ' * 300}",
    "many blanks": f"{HEAD}<url>{' ' * 900_000}",
    "an indented entry": f"{HEAD}\n{' ' * 8}<url>\n{' ' * 16}{IMAGE}\n{' ' * 8}</url></urlset>",
    "a comment": f"{HEAD}<url>{' ' * 300}<!-- -->{' ' * 300}</url></urlset>",
    "a location": f"{HEAD}<url><loc>{'x' * 900_000}",
    "a tag": f"{HEAD}{ENTRY}<rs:md{' ' * 900_000}",
    "attributes": f"{HEAD}{ENTRY}{FOREIGN * 25_000}</url></urlset>",
    "links": f"{HEAD}{ENTRY}" + f'<rs:ln rel="a" href="{DATA}"/>',
    "references": f"{HEAD}{ENTRY}<lastmod>{'&#48;' * 150_000}</lastmod></url></urlset>",
    "entries": f"{HEAD}{'<url><loc>a:b</loc></url>' * 30_000}</urlset>",
    "other XML": "<a>" * 300_000,
    "other XML of one tag": "<a b='" + "x" * 900_000,
}


@pytest.fixture(params=["closed", "open_topics"])
async def served(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[tuple]:
    config = tmp_path / "hub.toml"
    config.write_text(
        'open_topics = ["http://127.0.0.1/"]' if request.param == "open_topics" else ""
    )
    async with hub_process(tmp_path / "data", "--config", str(config)) as (hub, process):
        yield hub, process


async def ends(process: Process) -> None:
    process.send_signal(signal.SIGINT)
    async with asyncio.timeout(PATIENCE):
        assert await process.wait() == 0


async def check_not_blocked(
    served: tuple[Client, Process],
    send: Callable[[bytes, int], Awaitable[tuple[int, str]]],
    refusal: int,
) -> None:
    """Send each body; meanwhile the hub serves another topic."""
    hub, process = served
    other = TOPIC + "?other"
    socket = await hub.listen(topic=other)
    for second, (name, body) in enumerate(BODIES.items()):
        hostile = asyncio.create_task(send(body.encode(), second))
        sent = fragment(second, second + 1)
        await hub.accepted(sent, topic=other)
        assert await socket.receive_str() == sent.decode(), name
        async with asyncio.timeout(PATIENCE):
            assert (await hostile)[0] == refusal, name
    await socket.close()
    await ends(process)


async def test_a_hostile_fragment_does_not_block_the_hub(served: tuple[Client, Process]):
    await check_not_blocked(served, lambda body, _: served[0].publish(body), 400)


async def test_a_hostile_topic_does_not_block_the_hub(
    served: tuple[Client, Process], callback: Callback
):
    callback.headers = {"Content-Type": "application/xml"}

    def ping(body: bytes, number: int) -> Awaitable[tuple[int, str]]:
        callback.document = body
        return served[0].form(mode="publish", url=f"{callback.url}?{number}")

    await check_not_blocked(served, ping, 502)


async def test_fetching_a_topic_that_does_not_end_is_stopped(served: tuple[Client, Process]):
    hub, process = served
    sent = 0

    async def endless(head: bytes, reader: asyncio.StreamReader, writer: asyncio.StreamWriter):
        nonlocal sent
        writer.write(f"HTTP/1.1 200 OK\r\n{XML}\r\n\r\n{HEAD}".encode())
        while True:
            writer.write(b"<url><loc>a:b</loc></url>\n" * 10_000)
            sent += 260_000
            await writer.drain()

    bomb = gzip.compress(HEAD.encode() + b" " * 10_000_000)
    packed = sending(response(bomb, XML, "Content-Encoding: gzip"))
    for answer in (endless, packed):
        async with raw_server(answer) as server, asyncio.timeout(PATIENCE):
            assert (await hub.form(mode="publish", url=server.url()))[0] == 502
    assert sent < 80_000_000  # of which the system keeps some
    await hub.accepted(fragment(0, 1))
    await ends(process)
