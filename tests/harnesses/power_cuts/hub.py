"""Power cuts of a hub: its log, its subscriptions, and its export."""

from __future__ import annotations

import asyncio
import json
import os
import re
import signal
import sqlite3
import sys
from collections import defaultdict
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, closing
from http.client import HTTPConnection
from pathlib import Path
from urllib.parse import urlsplit

import aiohttp

from rsnotify.format.datetimes import format_datetime, parse_datetime
from rsnotify_hub.config.configuration import IntakeConfig
from rsnotify_hub.export_file import NullLogListener, check_export
from rsnotify_hub.intake import limits_of
from rsnotify_hub.store.sqlite_store import SqliteStore
from tests.harnesses.power_cuts.cuts import Experiment, Loss, PowerCut
from tests.harnesses.power_cuts.trace import Call, read_calls, traced
from tests.hub.helpers import START, Callback, Clock, at, callback_server, fragment, seconds_of
from tests.hub.storing import FOREVER, made
from tests.running import Running, children_of

POSTED = "https://source.example/posted.xml"
STREAMED = "https://source.example/streamed.xml"
PAGE = "https://blog.example/"
TOPICS = (POSTED, STREAMED, PAGE)
#: How many fragments of each topic are published in each of the two runs.
FRAGMENTS = 12
EXPORT = "hub.jsonl"
_ACCEPTED = re.compile(rb'\{"type":"accepted"[^}]*\}')
_DELIVERY = re.compile(rb"POST /callback/(\d) .*?\r\n\r\n", re.DOTALL)
_LENGTH = re.compile(rb"\r\nContent-Length: (\d+)", re.IGNORECASE)


class HubWitness:
    """Sources, callbacks, and who exports.

    Attributes:
        posted: By the port of a connection, what was posted there: topics and numbers.
        accepted: By topic, the number of the last fragment that was acknowledged.
        delivered: By topic, the number of the last fragment that its callback was sent.
        exported: Whether the export was reported.
    """

    def __init__(self, posted: dict[str, list[tuple[str, int]]]) -> None:
        self._posted = {port: list(what) for port, what in posted.items()}
        self._buffers: defaultdict[str, bytes] = defaultdict(bytes)
        self.accepted: dict[str, int] = dict.fromkeys(TOPICS, 0)
        self.delivered: dict[str, int] = {}
        self.exported = False

    def sent(self, stream: str, data: bytes) -> None:
        if stream in self._posted:
            for _ in range(data.count(b"HTTP/1.1 202")):
                topic, number = self._posted[stream].pop(0)
                self.accepted[topic] = max(self.accepted[topic], number)
        elif stream.startswith("socket"):
            self._buffers[stream] += data
            self._take_deliveries(stream)
        elif stream == "stdout":
            self.exported = self.exported or b"exported" in data
        else:
            for frame in _ACCEPTED.findall(data):
                self._take_frame(json.loads(frame))

    def _take_frame(self, frame: dict[str, str]) -> None:
        until = parse_datetime(frame["until"])
        self.accepted[frame["topic"]] = int((until - START).total_seconds())

    def _take_deliveries(self, stream: str) -> None:
        while (head := _DELIVERY.search(self._buffers[stream])) is not None:
            length = _LENGTH.search(head[0])
            assert length is not None
            body = self._buffers[stream][head.end() : head.end() + int(length[1])]
            if len(body) < int(length[1]):
                return
            self._buffers[stream] = self._buffers[stream][head.end() + len(body) :]
            topic = TOPICS[int(head[1])]
            self.delivered[topic] = int(body) if topic == PAGE else int(seconds_of(body)[-1])


class _Load:
    """Those who publish at a hub for a while."""

    def __init__(self, root: Path, callback: Callback) -> None:
        self.root = root
        self.posted: dict[str, list[tuple[str, int]]] = {}
        self.callback = callback

    async def subscribe(self, session: aiohttp.ClientSession, url: str) -> None:
        for number, topic in enumerate(TOPICS):
            callback = f"{self.callback.url}/{number}"
            form = {"hub.mode": "subscribe", "hub.topic": topic, "hub.callback": callback}
            async with session.post(url + "websub", data=form) as answer:
                assert answer.status == 202, await answer.text()
            await self.callback.intent()
        with closing(sqlite3.connect(self.root / "above/hub/hub.sqlite")) as database:
            query = "SELECT count(*) FROM subscription"
            while database.execute(query).fetchone() != (3,):  # noqa: ASYNC110 - another process
                await asyncio.sleep(0.01)

    def post(self, url: str, run: int) -> None:
        """Post fragments and pages over one connection, one after the other."""
        with closing(HTTPConnection(urlsplit(url).netloc)) as connection:
            connection.connect()
            port = str(connection.sock.getsockname()[1])
            for number in range(run * FRAGMENTS + 1, (run + 1) * FRAGMENTS + 1):
                for topic in (POSTED, PAGE):
                    body, kind = b"%d" % number, "text/plain"
                    if topic == POSTED:
                        body, kind = fragment(number - 1, number), "application/xml"
                    self.posted.setdefault(port, []).append((topic, number))
                    headers = {"Content-Type": kind, "Link": f'<{topic}>; rel="self"'}
                    connection.request("POST", "/websub", body, headers)
                    answer = connection.getresponse()
                    assert answer.status == 202, answer.read()
                    answer.read()

    async def stream(self, session: aiohttp.ClientSession, url: str, run: int) -> None:
        """Publish over a WebSocket, all at once."""
        last = (run + 1) * FRAGMENTS
        async with session.ws_connect(url + "ws") as socket:
            await socket.send_json({"type": "publish", "topic": STREAMED})
            await socket.receive_json()
            for number in range(run * FRAGMENTS, last):
                await socket.send_str(fragment(number, number + 1).decode())
            while (await socket.receive_json()).get("until") != format_datetime(at(last)):
                pass

    async def delivered(self, run: int) -> None:
        """Wait until each callback has the last fragment."""
        last, waiting = (run + 1) * FRAGMENTS, set(TOPICS)
        while waiting:
            headers, body = await self.callback.delivery()
            number = int(body) if headers["Content-Type"] == "text/plain" else seconds_of(body)[-1]
            if number == last:
                waiting -= {topic for topic in TOPICS if f"<{topic}>" in headers["Link"]}


@asynccontextmanager
async def traced_hub(folder: Path) -> AsyncIterator[Experiment]:
    """Run a hub twice, then export it."""
    root = folder / "disk"
    root.mkdir()
    calls: list[Call] = []
    async with callback_server() as callback, aiohttp.ClientSession() as session:
        load = _Load(root, callback)
        for run in range(2):
            async with _hub(folder, "--port", "0", "--allow-private-addresses") as hub:
                await asyncio.to_thread(hub.says, re.compile("http://"))
                (url,) = re.findall(r"http://\S+?/(?=\s)", hub.output())[:1]
                if run == 0:
                    await load.subscribe(session, url)
                await asyncio.gather(
                    load.stream(session, url, run),
                    asyncio.to_thread(load.post, url, run),
                    load.delivered(run),
                )
                (program,) = children_of(hub.pid)
                os.kill(program, signal.SIGTERM)
            calls = read_calls(folder / "trace", after=calls)
    async with _hub(folder, "export", str(root / EXPORT)):
        pass
    witness = HubWitness(load.posted)

    async def check(cut: PowerCut) -> None:
        await _check_hub(cut, witness)

    yield Experiment(folder, read_calls(folder / "trace", after=calls), witness, check)


@asynccontextmanager
async def _hub(folder: Path, *arguments: str) -> AsyncIterator[Running]:
    command = [sys.executable, "-m", "rsnotify", "hub", *arguments]
    data = ["--data", str(folder / "disk" / "above" / "hub")]
    running = traced(folder / "trace", [*command, *data], os.environ)
    yield running
    code = await asyncio.to_thread(running.ends)
    assert code == 0, running.output()


async def _check_hub(cut: PowerCut, witness: HubWitness) -> None:
    if witness.exported:
        check_export(cut.remains / EXPORT, limits_of(IntakeConfig()))
    folder = cut.remains / "above" / "hub"
    if not (folder / "hub.sqlite").exists():
        if any(witness.accepted.values()) or witness.delivered:
            raise Loss("the log is gone")
        return
    with closing(sqlite3.connect(folder / "hub.sqlite")) as database:
        result = database.execute("PRAGMA integrity_check").fetchall()
    if result != [("ok",)]:
        raise Loss(f"integrity_check: {result}")
    store = SqliteStore(folder, FOREVER, Clock())
    try:
        await store.start(NullLogListener())
        subscribed = {each.topic: each.position for each in (await store.records()).subscriptions}
        for topic in TOPICS:
            await _check_topic(store, topic, witness, subscribed.get(topic))
    finally:
        await store.close()


async def _check_topic(
    store: SqliteStore, topic: str, witness: HubWitness, cursor: int | None
) -> None:
    entries, position = [], 0
    while page := await store.read(topic, after=position):
        entries += page
        position = page[-1].position
    numbers = [
        int(entry.fragment.body) if topic == PAGE else int(seconds_of(entry.fragment.body)[0])
        for entry in entries
    ]
    last = numbers[-1] if numbers else 0
    if topic != PAGE and numbers != list(range(1, last + 1)):
        raise Loss(f"the log of {topic} has {numbers}")
    if topic != PAGE and any(
        entry.fragment.body != fragment(number - 1, number)
        for entry, number in zip(entries, numbers, strict=True)
    ):
        raise Loss(f"the log of {topic} has other fragments than were published")
    if last < witness.accepted[topic]:
        raise Loss(f"{topic}: {witness.accepted[topic]} was acknowledged, {last} is in the log")
    if topic in witness.delivered:
        if last < witness.delivered[topic]:
            raise Loss(f"{topic}: {witness.delivered[topic]} was delivered, {last} is in the log")
        if cursor is None:
            raise Loss(f"{topic}: the subscription is gone")
    if cursor is not None and topic != PAGE:
        if cursor > position:
            raise Loss(f"{topic}: the cursor is at {cursor}, and the log ends at {position}")
        next_ = made(last, last + 1)
        await store.append(topic, [next_], after=position, replacing=None)
        if [entry.fragment for entry in await store.read(topic, after=cursor)][-1:] != [next_]:
            raise Loss(f"{topic}: the subscription does not receive what is appended")
