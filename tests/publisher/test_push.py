"""Feeding hubs over HTTP POST and WebSocket: at once, in batches, and after interruptions."""

from __future__ import annotations

import asyncio
import logging
import subprocess
import threading
from collections.abc import AsyncGenerator
from concurrent.futures import ThreadPoolExecutor
from itertools import count
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web

from rsnotify.format.datetimes import from_microseconds, to_microseconds
from rsnotify_publisher import parse_hub
from rsnotify_publisher.journal import Recorder
from rsnotify_publisher.push.change_stream import ChangeStream
from rsnotify_publisher.push.hub_feed import OutgoingFragment
from rsnotify_publisher.push.hub_push import ChannelPush, HubPush, NodeRotation
from rsnotify_publisher.push.websocket import HubConnections
from tests.fork_server import forked
from tests.publisher.helpers import (
    BASE,
    PATIENCE,
    FakeHub,
    chain_of,
    push,
    quick_publisher,
    serving,
    update,
)
from tests.publisher.packed import sha256
from tests.publisher.published import recorded

TRANSPORTS = ["websub", "ws"]


def url_of(hub: FakeHub, transport: str) -> str:
    return hub.url + "websub" if transport == "websub" else hub.url.replace("http", "ws") + "ws"


@pytest.fixture(params=TRANSPORTS)
def url(hub: FakeHub, request: pytest.FixtureRequest) -> str:
    return url_of(hub, request.param)


async def test_a_change_is_sent_at_once(tmp_path: Path, hub: FakeHub, url: str):
    async with quick_publisher(tmp_path, url) as publisher:
        change = await publisher.acreated(BASE + "a", length=3, type="text/turtle")
        await hub.has(BASE + "a")
    (fragment,) = hub.fragments
    assert fragment.until == change.datetime
    (entry,) = fragment.resources
    assert (entry.uri, entry.datetime, entry.length) == (BASE + "a", change.datetime, 3)


async def test_fragments_of_many_changes_join_without_a_gap(tmp_path: Path, hub: FakeHub, url: str):
    async with quick_publisher(tmp_path, url, fragment_entries=7) as publisher:
        names = [BASE + str(number) for number in range(100)]
        await publisher.arecord(map(update, range(50)))
        for number in range(50, 100):
            await publisher.aupdated(BASE + str(number))
        await hub.has(*names)
    assert hub.uris() == names
    chain_of(hub.fragments)
    assert all(len(fragment.resources) <= 7 for fragment in hub.fragments)


async def test_changes_while_a_hub_is_busy_are_sent_together(tmp_path: Path, hub: FakeHub):
    async with quick_publisher(tmp_path, hub.url + "websub") as publisher:
        hub.answering.clear()
        for number in range(30):
            await publisher.aupdated(BASE + str(number))
        hub.answering.set()
        await hub.has(BASE + "29")
    assert len(hub.uris()) == 30
    # The first change, those up to the digest, the others, and the last if it arrived later.
    assert len(hub.fragments) <= 4


async def test_a_websocket_does_not_wait_for_acknowledgements(tmp_path: Path, hub: FakeHub):
    hub.answering.clear()
    async with quick_publisher(tmp_path, hub.url, grace=0) as publisher:
        for name in ("a", "b", "c"):
            await push(publisher, name, hub)
    with publisher.source.open_journal() as journal:
        (known,) = publisher.source.hubs
        assert journal.cursor(known.uri) < journal.state().last_change, "nothing was accepted"


async def test_later_changes_are_dated_after_heartbeats(tmp_path: Path, hub: FakeHub, url: str):
    clock_is_back = False

    ticks = count(2_000_000)

    def clock() -> int:
        return 1_000_000 if clock_is_back else next(ticks)

    async with quick_publisher(tmp_path, url, clock=clock, heartbeat=0.05) as publisher:
        await publisher.aupdated(BASE + "a")
        await hub.until(lambda: sum(not f.resources for f in hub.fragments) >= 2)
        promised = hub.fragments[-1].until
        clock_is_back = True
        change = await push(publisher, "b", hub)
    assert change.datetime > promised
    chain_of(hub.fragments)


async def test_no_heartbeat_is_sent_while_the_clock_stands_still(tmp_path: Path, hub: FakeHub):
    now, calls, read_often = 2_000_000, 0, asyncio.Event()

    def clock() -> int:
        nonlocal calls
        calls += 1
        if calls == 20:
            loop.call_soon_threadsafe(read_often.set)
        return now

    loop = asyncio.get_running_loop()

    async with quick_publisher(
        tmp_path, hub.url + "websub", clock=clock, heartbeat=0.01
    ) as publisher:
        await push(publisher, "a", hub)
        calls = 0
        read_often.clear()
        async with asyncio.timeout(PATIENCE):
            await read_often.wait()  # each due heartbeat reads the clock
        assert [len(fragment.resources) for fragment in hub.fragments] == [1]
        now = 3_000_000
        await hub.until(lambda: len(hub.fragments) > 1)
    assert hub.fragments[1].until == from_microseconds(3_000_000)


async def test_a_heartbeat_is_durable_before_it_is_sent(tmp_path: Path, hub: FakeHub):
    async with quick_publisher(tmp_path, hub.url + "websub", heartbeat=0.05) as publisher:
        await hub.until(lambda: hub.fragments)
        with publisher.source.open_journal() as journal:
            state = journal.state()
    last = hub.fragments[0].until
    assert state.promised >= to_microseconds(last)


async def test_a_hub_that_was_down_misses_nothing(tmp_path: Path, hub: FakeHub, url: str):
    async with quick_publisher(tmp_path, url) as publisher:
        await push(publisher, "before", hub)
        await hub.stop()
        hub.through = hub.fragments[-1].until
        for number in range(20):
            await publisher.aupdated(BASE + str(number))
        await hub.start()
        await hub.has(*(BASE + str(number) for number in range(20)))
        await push(publisher, "after", hub)
    chain_of(hub.fragments)


async def test_unsent_changes_are_sent_by_the_next_run(tmp_path: Path, hub: FakeHub, url: str):
    await hub.stop()
    async with quick_publisher(tmp_path, url, grace=0) as publisher:
        await publisher.aupdated(BASE + "a")
    await hub.start()
    async with publisher:
        await hub.has(BASE + "a")


async def test_accepted_changes_are_not_sent_again_by_the_next_run(tmp_path: Path, hub: FakeHub):
    # The Source must receive the acknowledgement before it ends.
    publisher = quick_publisher(tmp_path, hub.url + "websub", grace=PATIENCE)
    for name in ("a", "b"):
        async with publisher:
            await push(publisher, name, hub)
    assert hub.uris() == [BASE + "a", BASE + "b"]


async def test_the_cursor_that_a_hub_reports_takes_precedence(tmp_path: Path, hub: FakeHub):
    await hub.stop()
    async with quick_publisher(tmp_path, hub.url, grace=0) as publisher:
        hub.through = (await publisher.aupdated(BASE + "known")).datetime
        await publisher.aupdated(BASE + "new")
    await hub.start()
    async with publisher:
        await hub.has(BASE + "new")
    assert hub.uris() == [BASE + "new"]
    assert hub.fragments[0].from_ == hub.through


async def test_a_hub_with_part_of_a_batch_receives_the_rest(tmp_path: Path, hub: FakeHub):
    await hub.stop()
    async with quick_publisher(tmp_path, hub.url, clock=lambda: 1_000_000, grace=0) as publisher:
        # Their datetimes follow each other by a microsecond.
        changes = await publisher.arecord([update("a"), update("b"), update("c")])
    hub.through = changes[0].datetime
    await hub.start()
    async with publisher:
        await hub.has(BASE + "c")
    assert hub.uris() == [BASE + "b", BASE + "c"]
    assert hub.fragments[0].from_ == hub.through


async def test_a_hub_that_refuses_is_retried(tmp_path: Path, hub: FakeHub):
    hub.refuse_with = 503
    async with quick_publisher(tmp_path, hub.url + "websub") as publisher:
        await publisher.aupdated(BASE + "a")
        await hub.until(lambda: len(hub.headers) >= 3)
        hub.refuse_with = None
        await hub.has(BASE + "a")


async def test_a_hub_that_does_not_complete_the_closing_handshake_is_retried(tmp_path: Path):
    retried = asyncio.Event()
    topics: list[str] = []

    async def refuse(request: web.Request) -> web.WebSocketResponse:
        socket = web.WebSocketResponse()
        await socket.prepare(request)
        topic = (await socket.receive_json())["topic"]
        if topic in topics:
            retried.set()
        topics.append(topic)
        await socket.send_json({"type": "error", "code": "unavailable", "message": "not now"})
        await retried.wait()  # without reading the close frame
        return socket

    app = web.Application()
    app.router.add_get("/ws", refuse)
    async with (
        serving(app) as url,
        quick_publisher(tmp_path, url.replace("http", "ws") + "/ws", grace=0),
        asyncio.timeout(PATIENCE),
    ):
        await retried.wait()


async def test_the_delay_that_a_hub_requests_is_respected(
    tmp_path: Path, hub: FakeHub, url: str, monkeypatch: pytest.MonkeyPatch
):
    hub.refuse_with, hub.retry_after = 503, "3000"
    waits, has_failed = list[float](), threading.Event()
    failed = NodeRotation.select_next

    def noting(nodes: NodeRotation, now: float, **facts: Any) -> float:
        waits.append(failed(nodes, now, **facts))
        has_failed.set()
        return waits[-1]

    monkeypatch.setattr(NodeRotation, "select_next", noting)
    async with quick_publisher(tmp_path, url, grace=0) as publisher:
        await publisher.aupdated(BASE + "a")
        assert await asyncio.to_thread(has_failed.wait, PATIENCE)
    assert round(waits[0]) >= 3000


async def test_a_hub_that_redirects_the_handshake_is_followed(tmp_path: Path, hub: FakeHub):
    async def redirect(request: web.Request) -> web.StreamResponse:
        raise web.HTTPTemporaryRedirect(url_of(hub, "ws"))

    app = web.Application()
    app.router.add_get("/ws", redirect)
    async with (
        serving(app) as url,
        quick_publisher(tmp_path, url.replace("http", "ws") + "/ws") as publisher,
    ):
        await push(publisher, "a", hub)


async def test_a_hub_that_is_down_does_not_delay_another(
    tmp_path: Path, hub: FakeHub, unused_tcp_port: int
):
    async with quick_publisher(
        tmp_path, f"http://127.0.0.1:{unused_tcp_port}/", hub.url, grace=0
    ) as publisher:
        for number in range(10):
            await push(publisher, str(number), hub)


async def test_the_token_is_only_in_a_header(
    tmp_path: Path, hub: FakeHub, url: str, caplog: pytest.LogCaptureFixture
):
    caplog.set_level(logging.DEBUG, "rsnotify")
    await hub.stop()
    async with quick_publisher(tmp_path, parse_hub(url, "hunter2")) as publisher:
        await publisher.aupdated(BASE + "a")
        await publisher.await_published(PATIENCE)
        await hub.start()
        await hub.has(BASE + "a")
    assert hub.headers[0]["Authorization"] == "Bearer hunter2"
    assert "hunter2" not in caplog.text
    for path in tmp_path.rglob("*"):
        assert path.is_dir() or b"hunter2" not in path.read_bytes()


async def test_a_post_links_to_topic_and_hub(tmp_path: Path, hub: FakeHub):
    uri = hub.url + "websub"
    async with quick_publisher(tmp_path, uri) as publisher:
        await push(publisher, "a", hub)
    headers = hub.headers[0]
    assert headers["Content-Type"] == "application/xml"
    assert headers["Link"] == f'<{BASE}channel.xml>; rel="self", <{uri}>; rel="hub"'


async def test_content_is_sent_inline_and_not_in_the_lists(tmp_path: Path, hub: FakeHub):
    content = b"small"
    file, gone = tmp_path / "file", tmp_path / "gone"
    file.write_bytes(content)
    contents: dict[str, bytes | Path] = {"a": content, "file": file, "gone": gone}
    async with quick_publisher(
        tmp_path / "state", hub.url, content=lambda uri: contents.get(uri.removeprefix(BASE))
    ) as publisher:
        for name in ("a", "b", "file", "gone"):
            await publisher.aupdated(BASE + name, hash=sha256(content), length=5)
        await hub.has(BASE + "a", BASE + "b", BASE + "file", BASE + "gone")
        assert not any(change.links for change in recorded(publisher))
    links = {entry.uri: entry.links for f in hub.fragments for entry in f.resources}
    for name in ("a", "file"):
        assert links[BASE + name][0].href == "data:application/octet-stream;base64,c21hbGw="
    assert links[BASE + "b"] == links[BASE + "gone"] == ()


OTHER = """
import sys, time
from rsnotify_publisher import Options, Publisher
options = Options(refresh=0.02, grace=0)
publisher = Publisher(
    sys.argv[1], "http://source.example/data/", hubs=[sys.argv[2]], options=options
)
with publisher:
    publisher.wait_published()
    print("ready", flush=True)
    for line in sys.stdin:
        publisher.updated(line.strip())
        print("done", flush=True)
"""


class Other:
    def __init__(self, folder: Path, hub: FakeHub) -> None:
        self._process = subprocess.Popen(
            [*forked(OTHER), str(folder), hub.url],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    async def read_line(self) -> str:
        async with asyncio.timeout(PATIENCE):
            return await asyncio.to_thread(self._process.stdout.readline)

    async def updates(self, uri: str) -> None:
        self._process.stdin.write(uri + "\n")
        self._process.stdin.flush()
        assert await self.read_line() == "done\n"

    def kill(self) -> None:
        self._process.kill()
        for pipe in (self._process.stdin, self._process.stdout):
            pipe.close()
        self._process.wait(PATIENCE)


async def test_one_process_pushes_for_all_and_another_takes_over_when_it_is_killed(
    tmp_path: Path, hub: FakeHub
):
    leader = Other(tmp_path, hub)
    assert await leader.read_line() == "ready\n"
    async with quick_publisher(tmp_path, hub.url) as publisher:
        await leader.updates(BASE + "by-leader")
        await publisher.aupdated(BASE + "by-other")
        await hub.has(BASE + "by-leader", BASE + "by-other")
        assert hub.connections == 1, "only one process may emit"
        hub.through = hub.fragments[-1].until
        leader.kill()
        await push(publisher, "after", hub)
        assert hub.connections == 2
    chain_of(hub.fragments)
    assert set(hub.uris()) == {BASE + name for name in ("by-leader", "by-other", "after")}


async def test_the_leader_notices_at_once_what_another_process_records(
    tmp_path: Path, hub: FakeHub
):
    # So that the leader has no other reason to read the journal, not even a heartbeat.
    async with quick_publisher(tmp_path, hub.url, resource_list_every=900, heartbeat=900):
        other = Other(tmp_path, hub)
        assert await other.read_line() == "ready\n"
        await other.updates(BASE + "a")
        await hub.has(BASE + "a")
        other.kill()
    assert hub.connections == 1


async def test_a_connection_lost_during_the_cancellation_does_not_prevent_it(hub: FakeHub):
    class Breaking:
        cursor = 0
        requested, broken = asyncio.Event(), asyncio.Event()

        async def fragments(self, through: object = None) -> AsyncGenerator[OutgoingFragment, None]:
            self.requested.set()
            await self.broken.wait()
            raise ConnectionResetError("lost")
            yield

    feed = Breaking()
    channel = ChannelPush(BASE, [(parse_hub(url_of(hub, "ws")), feed)], HubConnections())
    pushing = asyncio.create_task(channel.keep_feeding(*channel.feeds[0]))
    async with asyncio.timeout(PATIENCE):
        await feed.requested.wait()
    feed.broken.set()
    pushing.cancel()
    done, _ = await asyncio.wait({pushing}, timeout=PATIENCE)
    pushing.cancel()
    assert done
    assert pushing.cancelled()


async def test_the_grace_of_hubs_is_not_longer_on_a_slow_machine(tmp_path: Path):
    async with quick_publisher(tmp_path, "http://127.0.0.1:1/", grace=0.2) as publisher:
        await publisher.aupdated(BASE + "a")
    iterations = 0

    async def be_slow() -> None:
        nonlocal iterations
        while True:
            iterations += 1
            threading.Event().wait(0.1)
            await asyncio.sleep(0)

    with publisher.source.open_journal() as journal:
        pool = ThreadPoolExecutor(1)
        recorder = Recorder(publisher.source.open_journal, lambda _: None, pool)
        changes = ChangeStream(None, asyncio.get_running_loop().call_soon, pool.submit)
        push = HubPush(publisher.source, journal, recorder, changes, HubConnections())
        slow = asyncio.create_task(be_slow())
        await push.drain()
        slow.cancel()
    assert iterations < 10
