"""After a fragment whose write failed, the log gets none that its Source published later.

The Source continues at the end of the log, so what failed would never be sent again.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

import pytest

from rsnotify.errors import StorageError
from rsnotify_hub.fragments import Fragment, read_fragment
from rsnotify_hub.refusals import Code, Refusal
from rsnotify_hub.websocket.websocket_handler import WebSocketPublication
from tests.hub.failing_disk import Disk, hub
from tests.hub.helpers import TOPIC, at, fragment
from tests.hub.storing import made
from tests.waiting import PATIENCE


class SlowDisk(Disk):
    """Begins no transaction until the test permits it."""

    def __init__(self) -> None:
        super().__init__()
        self.begun, self.go = threading.Event(), threading.Event()
        self.go.set()

    async def fail_slowly(self, write: Callable[..., Any], *arguments: Any) -> Any:
        """Begin a write whose transaction fails once the test permits it."""
        self.begun.clear()
        self.go.clear()
        self.failing = {len(self.asked)}
        result = write(*arguments)
        await asyncio.to_thread(self.begun.wait, PATIENCE)
        return result

    def run(self, asked: str, do: Any) -> Any:
        if asked == "BEGIN IMMEDIATE":
            self.begun.set()
            self.go.wait(PATIENCE)
        return super().run(asked, do)


async def test_nothing_that_was_published_later_is_stored(tmp_path: Path):
    async with hub(tmp_path, disk := SlowDisk()) as (_, topics, listener):
        await topics.publish(TOPIC, made(0, 1))
        first = await disk.fail_slowly(topics.publish, TOPIC, made(1, 2))
        later = [topics.publish(TOPIC, made(2, 3)), topics.publish(TOPIC, made(3, 4))]
        disk.go.set()
        results = await asyncio.gather(first, *later, return_exceptions=True)
        assert [type(each) for each in results] == [StorageError] * 3
        state = topics.state(TOPIC)
        assert state.through == at(1)
        for seconds in ((1, 2), (2, 3), (3, 4)):
            await topics.publish(TOPIC, made(*seconds))
        assert listener.fragments == [made(0, 1), made(1, 2), made(2, 3), made(3, 4)]


async def test_a_deletion_is_not_given_up_with_the_fragments_around_it(tmp_path: Path):
    async with hub(tmp_path, disk := SlowDisk()) as (_, topics, _):
        await topics.publish(TOPIC, made(0, 1))
        first = await disk.fail_slowly(topics.publish, TOPIC, made(1, 2))
        deleting = asyncio.create_task(topics.delete(TOPIC))
        await asyncio.sleep(0)
        disk.go.set()
        with pytest.raises(StorageError):
            await first
        await deleting
        assert topics.state(TOPIC) is None


class Publishing:
    """A publication whose store, connection and thread are the test."""

    max_small = 1000
    is_paused = False

    def __init__(self) -> None:
        self.writes: list[asyncio.Future[None]] = []
        self.read_in_thread: asyncio.Future[Fragment] = asyncio.get_running_loop().create_future()
        self.refused: list[Refusal] = []
        fake = cast(Any, self)
        self.publication = WebSocketPublication(
            fake, TOPIC, fake, fake, lambda: None, self.refused.append
        )

    def publish(self, topic: str, fragment: Fragment) -> asyncio.Future[None]:
        self.writes.append(asyncio.get_running_loop().create_future())
        return self.writes[-1]

    def read_small_fragment(self, body: bytes) -> Fragment | None:
        return read_fragment(body) if len(body) <= self.max_small else None

    async def read_large_fragment(self, body: bytes) -> Fragment:
        return await self.read_in_thread

    def send_message(self, message: object) -> None:
        raise AssertionError("nothing was acknowledged")

    def send(self, body: bytes) -> None:
        self.publication.received(body, is_text=True)


async def test_a_fragment_that_arrives_as_a_write_fails_is_not_published():
    publishing = Publishing()
    publishing.send(fragment(0, 1))
    publishing.writes[0].set_exception(StorageError("full"))
    publishing.send(fragment(1, 2))
    await publishing.publication.ended
    assert len(publishing.writes) == 1
    assert [refusal.code for refusal in publishing.refused] == [Code.UNAVAILABLE]


async def test_a_fragment_that_is_read_in_a_thread_as_a_write_fails_is_not_published():
    publishing = Publishing()
    publishing.send(fragment(0, 1))
    large = fragment(1, 2, padding=2000)
    publishing.send(large)
    publishing.send(fragment(2, 3))
    publishing.writes[0].set_exception(StorageError("full"))
    await publishing.publication.ended
    publishing.read_in_thread.set_result(read_fragment(large))
    for _ in range(9):
        await asyncio.sleep(0)
    assert len(publishing.writes) == 1
    assert len(publishing.refused) == 1
