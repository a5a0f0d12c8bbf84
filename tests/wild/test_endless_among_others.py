"""One of many Sources sends a document without end: the others are followed as before.

What does not end is read up to a limit, by few at a time, in small steps between which others have
their turn, and again only after a while that grows.
"""

from __future__ import annotations

import asyncio
import signal
import time
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from pathlib import Path

import pytest

from rsnotify_subscriber.fetching import fetcher as downloading
from rsnotify_subscriber.fetching.fetcher import Fetcher
from rsnotify_subscriber.fetching.sessions import Connections, Sessions
from tests.fork_server import own_interpreter
from tests.subscriber.destination import PATIENCE, files_of
from tests.subscriber.processes import ended, rsnotify
from tests.wild.documents import urlset
from tests.wild.source import Answer, WildSource
from tests.wild.test_hostile_documents import ENDLESS, HEAD, Counted

OTHERS = 5


@pytest.fixture
async def others() -> AsyncIterator[list[WildSource]]:
    async with AsyncExitStack() as stack:
        others = [WildSource() for _ in range(OTHERS)]
        for one in others:
            await one.server.start()
            stack.push_async_callback(one.server.stop)
            one.offer(changelist=None)
            one.file("a", b"first")
            one.list_resources(0)
        yield others


def _peak(pid: int) -> int:
    """Return the most memory that a process has taken, in MiB."""
    status = Path(f"/proc/{pid}/status").read_text()
    line = next(line for line in status.splitlines() if line.startswith("VmHWM"))
    return int(line.split()[1]) // 1024


SLOW = pytest.mark.slow


@pytest.mark.parametrize(
    "what", ["entries", *(pytest.param(what, marks=SLOW) for what in ("blanks", "links"))]
)
async def test_the_others_are_followed_as_before(
    what: str, source: WildSource, others: list[WildSource], tmp_path: Path
) -> None:
    begin, repeated, _ = ENDLESS[what]
    document = Counted(begin, repeated)
    source.offer(changelist=None)
    source.put("resourcelist.xml", document.answer())
    settings = ['[defaults]\ndest = "{name}"']
    for name, one in [("broken", source), *((f"s{n}", one) for n, one in enumerate(others))]:
        settings.append(f'[[source]]\nname = "{name}"\nurl = "{one.url}"')
    (tmp_path / "fleet.toml").write_text("\n".join(settings))
    arguments = ("follow", "--config", tmp_path / "fleet.toml", "--poll", "0.5", "--json")
    with own_interpreter():  # whose memory is all its own
        process = await rsnotify(*arguments)
    assert process.stdout is not None
    draining = asyncio.create_task(process.stderr.read())
    try:
        for step in range(10):
            for one in others:
                one.file("a", b"step %d" % step, step + 1)
                one.list_resources(step + 1)
            async with asyncio.timeout(PATIENCE):
                while not all(
                    files_of(tmp_path / f"s{number}") == one.resources
                    for number, one in enumerate(others)
                ):
                    assert await process.stdout.readline(), "it ended before"
        # It was asked again, but less often than the others, and never read on beyond the limit.
        assert document.sent < 150_000_000
        asked = len(source.requests("resourcelist.xml"))
        assert asked <= 2 + min(len(one.requests("resourcelist.xml")) for one in others) // 2
        assert _peak(process.pid) < 500
        process.send_signal(signal.SIGINT)
        async with asyncio.timeout(PATIENCE):
            while await process.stdout.readline():
                pass
            assert await process.wait() == 0
    finally:
        await ended(process)
        await draining


async def test_only_some_large_documents_are_read_at_a_time(
    source: WildSource, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(downloading, "LARGE_BYTES", 100_000)
    reading = asyncio.Semaphore(0)
    release = asyncio.Event()
    body = HEAD.encode() + b" " * 20_000_000

    def document(number: int) -> Answer:
        async def pieces() -> AsyncIterator[bytes]:
            yield body  # more than the system keeps for a reader
            reading.release()
            await release.wait()
            yield b"</urlset>"

        return Answer(pieces)

    for number in range(6):
        source.put(f"{number}.xml", document(number))
    source.put("small.xml", urlset())
    async with Connections() as shared, AsyncExitStack() as stack:
        fetchers = []
        for _ in range(7):
            sessions = await stack.enter_async_context(Sessions(source.url, shared=shared))
            fetchers.append(Fetcher(sessions, tmp_path))
        large = [
            asyncio.create_task(fetcher.document(source.uri(f"{number}.xml")))
            for number, fetcher in enumerate(fetchers[:6])
        ]
        async with asyncio.timeout(PATIENCE):
            for _ in range(3):
                await reading.acquire()
            # A small one does not wait for them, however many they are.
            await fetchers[6].document(source.uri("small.xml"))
            assert reading.locked()
            release.set()
            await asyncio.gather(*large)


async def test_the_event_loop_has_its_turns_while_a_bomb_is_read(
    source: WildSource, tmp_path: Path
) -> None:
    begin, repeated, _ = ENDLESS["blanks"]
    source.put("bomb.xml", Counted(begin, repeated, packed=True).answer())
    longest = 0.0

    async def watch() -> None:
        nonlocal longest
        while True:
            begun = time.thread_time()
            await asyncio.sleep(0)
            longest = max(longest, time.thread_time() - begun)

    async with Sessions(source.url) as sessions:
        watching = asyncio.create_task(watch())
        with pytest.raises(Exception, match="larger than"):
            await Fetcher(sessions, tmp_path).document(source.uri("bomb.xml"))
        watching.cancel()
    assert longest < 1.0
