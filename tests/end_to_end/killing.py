"""Kill a hub at any instant under load, again and again; nothing that it acknowledged is lost.

    python tests/end_to_end/killing.py --rounds 300

Sources publish by POST and over WebSocket, and send again what was not acknowledged. Every
fragment that was must be in the log after each kill, and reach every subscription in the end: a
WebSub callback, and a Destination that comes back over WebSocket with its `since`.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import shutil
import sqlite3
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from pathlib import Path

import aiohttp

from rsnotify.format.datetimes import format_datetime, parse_datetime, to_microseconds
from rsnotify.runtime.processes import Process
from tests.hub.helpers import START, Callback, at, callback_server, fragment, seconds_of
from tests.ports import free_port

#: Seconds that all may take to arrive after the last kill.
PATIENCE = 60.0
#: How many fragments of one Source may wait for their acknowledgement.
WINDOW = 20
POSTED = "https://source.example/posted.xml"
STREAMED = "https://source.example/streamed.xml"
PAGE = "https://blog.example/"
_LOST = (aiohttp.ClientError, OSError, TimeoutError)


class Wrong(Exception):
    """The hub broke its word."""


class Killing:
    """A hub that is killed, and those around it that live on."""

    def __init__(self, folder: Path, session: aiohttp.ClientSession, callback: Callback) -> None:
        self._folder = folder
        self._session = session
        self._callback = callback
        self._port = free_port()
        self.url = f"http://127.0.0.1:{self._port}/"
        self._up = asyncio.Event()
        self._process: Process | None = None
        self._changed = asyncio.Condition()
        self._publishing = True
        self.acknowledged = dict.fromkeys((POSTED, STREAMED, PAGE), 0)
        self.heard = dict.fromkeys((POSTED, STREAMED), 0)
        self.delivered = dict.fromkeys((POSTED, STREAMED, PAGE), 0)
        #: What was acknowledged when the hub was last killed.
        self._durable = dict(self.acknowledged)

    async def spawn(self) -> None:
        """Start the hub, without waiting until it serves."""
        self._process = await Process.start(
            *("hub", "--port", str(self._port), "--data", str(self._folder / "hub")),
            *("--config", str(self._folder / "hub.toml"), "--allow-private-addresses"),
            log=self._folder / "hub.log",
        )

    async def serve(self) -> None:
        await self.spawn()
        assert self._process is not None
        await self._process.url()
        self._up.set()

    async def kill(self) -> None:
        """Kill -9 the hub, and look at what it leaves behind."""
        self._up.clear()
        assert self._process is not None
        await self._process.kill()
        self._durable = dict(self.acknowledged)
        await asyncio.to_thread(self._look, self._durable)

    def _look(self, durable: dict[str, int]) -> None:
        """Look at a copy: reading would repair the original, which is the hub's to do."""
        copy = self._folder / "copy"
        shutil.rmtree(copy, ignore_errors=True)
        shutil.copytree(self._folder / "hub", copy)
        database = sqlite3.connect(copy / "hub.sqlite")
        try:
            result = database.execute("PRAGMA integrity_check").fetchall()
            if result != [("ok",)]:
                raise Wrong(f"integrity_check: {result}")
            for topic in (POSTED, STREAMED):
                _check_log(database, topic, durable[topic])
        finally:
            database.close()

    async def subscribe(self) -> None:
        for topic in self.delivered:
            form = {"hub.mode": "subscribe", "hub.topic": topic, "hub.callback": self._callback.url}
            async with self._session.post(self.url + "websub", data=form) as answer:
                assert answer.status == 202, await answer.text()
            await self._callback.intent()
        database = sqlite3.connect(self._folder / "hub" / "hub.sqlite")
        while database.execute("SELECT count(*) FROM subscription").fetchone() != (3,):
            async with self._session.get(self.url + "healthz"):
                pass
        database.close()

    async def again(self, work: Callable[[], Awaitable[None]]) -> None:
        """Do something as long as there is something to do, whenever the hub serves."""
        while True:
            await self._up.wait()
            try:
                await work()
            except _LOST:
                await asyncio.sleep(0.01)

    async def _post(self, topic: str, body: bytes, content_type: str) -> None:
        headers = {"Content-Type": content_type, "Link": f'<{topic}>; rel="self"'}
        async with self._session.post(self.url + "websub", data=body, headers=headers) as answer:
            if answer.status == 202:
                self.acknowledged[topic] += 1

    async def post(self) -> None:
        await self._pause()
        number = self.acknowledged[POSTED]
        await self._post(POSTED, fragment(number, number + 1), "application/xml")

    async def post_page(self) -> None:
        await self._pause()
        await self._post(PAGE, b"%d" % (self.acknowledged[PAGE] + 1), "text/plain")

    async def _pause(self) -> None:
        await asyncio.sleep(0.001)
        if not self._publishing:
            await asyncio.Event().wait()

    async def stream(self) -> None:
        """Publish over one WebSocket until it is lost, without waiting for each."""
        async with self._session.ws_connect(self.url + "ws") as socket:
            await socket.send_json({"type": "publish", "topic": STREAMED})
            _text(await socket.receive())
            sent = self.acknowledged[STREAMED]
            while True:
                while sent < self.acknowledged[STREAMED] + WINDOW:
                    await self._pause()
                    await socket.send_str(fragment(sent, sent + 1).decode())
                    sent += 1
                await self._accept(await socket.receive())

    async def _accept(self, message: aiohttp.WSMessage) -> None:
        until = parse_datetime(json.loads(_text(message))["until"])
        self.acknowledged[STREAMED] = int((until - START).total_seconds())

    async def listen(self, topic: str) -> None:
        """Listen over one WebSocket until it is lost, from where it was before."""
        async with self._session.ws_connect(self.url + "ws", max_msg_size=0) as socket:
            since = format_datetime(at(self.heard[topic]))
            await socket.send_json({"type": "subscribe", "topic": topic, "since": since})
            # A hub that is killed while it writes what it sent sends that a second time.
            repeated = list(range(self._durable[topic] + 1, self.heard[topic] + 1))
            while True:
                text = _text(await socket.receive())
                if text[0] != "{":
                    await self._hear(topic, text, repeated)

    async def _hear(self, topic: str, body: str, repeated: list[int]) -> None:
        for number in seconds_of(body):
            if number in repeated:
                repeated.remove(int(number))
            elif number == self.heard[topic] + 1:
                self.heard[topic] = int(number)
            else:
                raise Wrong(f"{topic}: {number} came by WebSocket after {self.heard[topic]}")
        async with self._changed:
            self._changed.notify_all()

    async def take_deliveries(self) -> None:
        """Take what the callback gets. It may come twice, but with no hole."""
        while True:
            headers, body = await self._callback.deliveries.get()
            if headers["Content-Type"] == "text/plain":
                numbers, topic = [float(body)], PAGE
            else:
                topic = POSTED if POSTED in headers["Link"] else STREAMED
                numbers = seconds_of(body)
            if topic is not PAGE and numbers[0] > self.delivered[topic] + 1:
                raise Wrong(f"{topic}: {numbers[0]} delivered after {self.delivered[topic]}")
            self.delivered[topic] = max(self.delivered[topic], int(numbers[-1]))
            async with self._changed:
                self._changed.notify_all()

    async def under_load(self) -> None:
        async with asyncio.timeout(PATIENCE), self._changed:
            await self._changed.wait_for(lambda: all(self.acknowledged.values()))

    async def all_arrived(self) -> None:
        """Stop publishing, and wait until all that was acknowledged arrived everywhere."""
        self._publishing = False
        async with asyncio.timeout(PATIENCE), self._changed:
            await self._changed.wait_for(self._is_level)

    def _is_level(self) -> bool:
        return all(
            arrived[topic] >= self.acknowledged[topic]
            for arrived in (self.heard, self.delivered)
            for topic in arrived
        )

    async def stop(self) -> None:
        if self._process is not None:
            await self._process.stop()


def _text(message: aiohttp.WSMessage) -> str:
    if message.type is not aiohttp.WSMsgType.TEXT:
        raise ConnectionError
    text: str = message.data
    return text


def _check_log(database: sqlite3.Connection, topic: str, last: int) -> None:
    """Check that the log has every fragment up to the last that was acknowledged."""
    (count,) = database.execute(
        "SELECT count(*) FROM fragment WHERE topic = (SELECT id FROM topic WHERE uri = ?)"
        " AND until <= ?",
        (topic, to_microseconds(at(last))),
    ).fetchone()
    if count != last:
        raise Wrong(f"{topic}: {last} fragments were acknowledged, {count} are in the log")


async def killing(folder: Path, *, rounds: int, chance: random.Random) -> Killing:
    """Kill a hub so many times, and check that nothing was lost."""
    (folder / "hub.toml").write_text("retry_seconds = 0.05\nmax_retry_seconds = 0.5\n")
    async with AsyncExitStack() as stack:
        callback = await stack.enter_async_context(callback_server())
        session = await stack.enter_async_context(aiohttp.ClientSession())
        run = Killing(folder, session, callback)
        stack.push_async_callback(run.stop)
        await run.serve()
        await run.subscribe()
        async with asyncio.TaskGroup() as group:
            tasks = [
                group.create_task(run.again(run.post)),
                group.create_task(run.again(run.post_page)),
                group.create_task(run.again(run.stream)),
                *(group.create_task(run.again(lambda t=t: run.listen(t))) for t in run.heard),
                group.create_task(run.take_deliveries()),
            ]
            await run.under_load()
            for number in range(rounds):
                await _kill_once(run, chance, at_start=number % 4 == 3)
            await run.all_arrived()
            for task in tasks:
                task.cancel()
        await run.kill()
        return run


async def _kill_once(run: Killing, chance: random.Random, *, at_start: bool) -> None:
    # At any instant: this wait stands for no event.
    await asyncio.sleep(chance.uniform(0.0, 0.5))
    await run.kill()
    if at_start:
        await run.spawn()
        await asyncio.sleep(chance.uniform(0.0, 1.0))
        await run.kill()
    await run.serve()


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=300, help="how often the hub is killed")
    parser.add_argument("--seed", type=int, default=random.randrange(10**6))
    arguments = parser.parse_args()
    print(f"seed {arguments.seed}", flush=True)
    started = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="rsnotify-killing-") as name:
        chance = random.Random(arguments.seed)
        run = asyncio.run(killing(Path(name), rounds=arguments.rounds, chance=chance))
    print(
        f"killed {arguments.rounds} times in {time.monotonic() - started:.0f} s;"
        f" {sum(run.acknowledged.values())} acknowledged, all kept, all arrived"
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
