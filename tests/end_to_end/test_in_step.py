"""A Source that changes all the time, and a Destination that knows itself in step with it."""

from __future__ import annotations

import asyncio
from hashlib import sha256
from pathlib import Path
from random import Random

from aiohttp import web
from msgspec.structs import replace

from rsnotify.format.model import ChangeType
from rsnotify_publisher import Publisher, application
from rsnotify_publisher.changes import change_record
from rsnotify_subscriber import Audited, Event, FolderMirror, PushState, Subscriber
from tests.publisher.helpers import PATIENCE, QUICK, serving

ROUNDS = 40
NAMES = [f"r{number}" for number in range(12)]


class LiveSource:
    def __init__(self, folder: Path, hub: str, port: int) -> None:
        self.base = f"http://127.0.0.1:{port}/"
        self.contents: dict[str, bytes] = {}
        self._random = Random(1)
        self.publisher = Publisher(
            folder,
            self.base,
            hubs=[hub],
            options=replace(QUICK, heartbeat=0.1),
            content=lambda uri: self.contents.get(uri.removeprefix(self.base)),
        )

    async def change_some(self) -> None:
        """Create, update and delete, several at once and one of them more than once."""
        changes = []
        for _ in range(self._random.randint(1, 5)):
            name = self._random.choice(NAMES)
            kind = ChangeType.UPDATED if name in self.contents else ChangeType.CREATED
            if name in self.contents and self._random.random() < 0.3:
                del self.contents[name]
                changes.append(change_record(self.base + name, ChangeType.DELETED, {}))
                continue
            self.contents[name] = content = self._random.randbytes(20)
            digest = "sha-256:" + sha256(content).hexdigest()
            changes.append(change_record(self.base + name, kind, {"hash": digest, "length": 20}))
        await self.publisher.arecord(changes)

    def application(self) -> web.Application:
        async def answer(request: web.Request) -> web.Response:
            content = self.contents.get(request.match_info["name"])
            return web.Response(status=404) if content is None else web.Response(body=content)

        app = application(self.publisher)
        app.router.add_get("/{name:r[0-9]+}", answer)
        return app


async def test_under_constant_change_there_is_no_false_alarm_and_at_rest_it_is_in_step(
    hub: str, tmp_path: Path, unused_tcp_port: int
):
    events: list[Event] = []
    source = LiveSource(tmp_path / "source", hub, unused_tcp_port)
    mirror = FolderMirror(tmp_path / "copy")
    subscriber = Subscriber(source.base, mirror, state=tmp_path / "state", on_event=events.append)
    async with serving(source.application(), unused_tcp_port):
        await source.change_some()
        assert await asyncio.to_thread(source.publisher.wait_published, PATIENCE)
        async with subscriber, asyncio.timeout(PATIENCE):
            await subscriber.until(lambda now: now.level and now.push is PushState.UP)
            for _ in range(ROUNDS):
                await source.change_some()
            last = (await source.publisher.acreated(source.base + "last")).datetime
            await source.publisher.adeleted(source.base + "last")
            assert last is not None
            await subscriber.until(
                lambda now: now.through is not None and now.through > last and now.in_step is True
            )
    copied = {path.name: path.read_bytes() for path in (tmp_path / "copy").iterdir()}
    assert copied == source.contents
    assert [event.in_step for event in events if isinstance(event, Audited)] == [True]
