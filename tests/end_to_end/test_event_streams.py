"""An event stream that resumes by its last id has every change once, while the hub is killed."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack, suppress
from pathlib import Path
from random import Random

import aiohttp
import pytest

from rsnotify.format.datetimes import parse_datetime
from rsnotify_publisher import Publisher
from tests.gateway.history import sweet
from tests.hub.event_streams import Event, EventReader
from tests.hub.helpers import PATIENCE
from tests.hub.processes import hub_process
from tests.ports import free_port
from tests.publisher.helpers import QUICK

BASE = "https://source.example/data/"
CHANGES = 200


class Follower:
    """What a page does that keeps a copy: it follows `until`, and notices gaps."""

    def __init__(self, url: str, format: str) -> None:
        self._query = {"topic": BASE + "channel.xml", "format": format}
        self._url = url + "events"
        self._last_id: str | None = None
        self._news = asyncio.Condition()
        self.changes: list[str] = []
        self.gaps = 0
        self.connected = asyncio.Event()

    async def run(self) -> None:
        async with aiohttp.ClientSession() as session:
            while True:
                headers = {} if self._last_id is None else {"Last-Event-ID": self._last_id}
                with suppress(aiohttp.ClientError):
                    async with session.get(
                        self._url, params=self._query, headers=headers
                    ) as response:
                        if response.status == 200:
                            await self._read(EventReader(response))
                await asyncio.sleep(0.01)  # as `retry`, which is meant for browsers

    async def _read(self, stream: EventReader) -> None:
        while (event := await stream.next()) is not None:
            async with self._news:
                self._apply(event)
                self._news.notify_all()

    def _apply(self, event: Event) -> None:
        self.connected.set()
        if event.type == "message":
            fragment = event.json
            through = self._last_id
            self.gaps += through is not None and fragment["from"] > through
            self.changes += [
                change["uri"]
                for change in fragment["changes"]
                if through is None or change["datetime"] > through
            ]
        self.gaps += event.type == "gap"
        if event.id is not None and (self._last_id is None or event.id > self._last_id):
            assert parse_datetime(event.id)
            self._last_id = event.id

    async def until(self, count: int) -> None:
        async with self._news, asyncio.timeout(PATIENCE):
            await self._news.wait_for(lambda: len(self.changes) >= count)


def names_of(history: str) -> list[str]:
    if history == "made up":
        return [str(number) for number in range(CHANGES)]
    return [step.name for step in sweet(8_068)]


@pytest.mark.parametrize(
    ("history", "kills"), [("made up", 1), pytest.param("SWEET", 12, marks=pytest.mark.slow)]
)
async def test_no_change_is_lost_or_doubled_while_the_hub_is_killed(
    tmp_path: Path, history: str, kills: int
):
    random, port = Random(kills), free_port()
    url = f"http://127.0.0.1:{port}/"
    uris = [BASE + name for name in names_of(history)]
    ends = sorted(random.sample(range(1, len(uris)), kills))
    follower = Follower(url, "json")
    async with AsyncExitStack() as stack:
        publisher = Publisher(tmp_path / "source", BASE, hubs=[url], options=QUICK)
        await stack.enter_async_context(publisher)
        following = asyncio.create_task(follower.run())
        stack.callback(following.cancel)
        done = 0
        for end in [*ends, len(uris)]:
            async with hub_process(tmp_path / "hub", "--port", str(port)) as (_, process):
                async with asyncio.timeout(PATIENCE):
                    await follower.connected.wait()
                for uri in uris[done:end]:
                    await publisher.aupdated(uri)
                done = end
                # The rest of them is on its way when the hub is killed.
                await follower.until(end if end == len(uris) else random.randint(1, end))
                process.kill()
        assert not following.done()
    assert follower.changes == uris
    assert follower.gaps == 0
