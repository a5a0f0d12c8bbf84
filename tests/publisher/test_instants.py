"""A Source that is killed at one instant of a change: before its flush, and at each step after."""

from __future__ import annotations

import asyncio
import signal
import sys
from pathlib import Path

import pytest

from rsnotify_publisher import Publisher
from tests.publisher.helpers import BASE, PATIENCE, QUICK, FakeHub, chain_of

KILLED = """
import asyncio, os, signal, sys
from rsnotify_publisher import Options, Publisher

folder, hub, instant = sys.argv[1:]
base = "http://source.example/data/"
digest = "sha-256:" + "0" * 64
now = False

def let_others_run():
    # If something was on its way to the hub already, it would be sent now.
    for _ in range(20):
        publisher._pool.threads.contents.submit(int).result()
        publisher._pool.spawn(asyncio.sleep(0)).result()

def die():
    let_others_run()
    os.kill(os.getpid(), signal.SIGKILL)

def content(uri):
    if now and instant == "contents":
        os.kill(os.getpid(), signal.SIGKILL)
    return b""

def trace(statement):
    global recording
    recording = recording or statement.startswith("INSERT INTO changes")
    if instant == "flush" and recording and statement == "COMMIT":
        die()

options = Options(heartbeat=900, resource_list_every=900)
publisher = Publisher(folder, base, hubs=[hub], options=options, content=content)
publisher.start()
publisher.wait_published()
publisher.updated(base + "before", hash=digest, length=0)
print("before", flush=True)
sys.stdin.readline()
now, recording = True, False
recorder = publisher._recorder
recorder._journal._db.set_trace_callback(trace)
if instant == "recorded":
    recorder.on_recorded = lambda recorded: recorded and os.kill(os.getpid(), signal.SIGKILL)
publisher.updated(base + "after", hash=digest, length=0)
publisher.close()
"""


@pytest.mark.parametrize("instant", ["flush", "recorded", "contents"])
async def test_only_what_was_flushed_is_ever_sent(
    tmp_path: Path, hub: FakeHub, instant: str
) -> None:
    killed = await asyncio.create_subprocess_exec(
        *(sys.executable, "-c", KILLED, str(tmp_path), hub.url, instant),
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
    )
    assert killed.stdin is not None
    assert killed.stdout is not None
    async with asyncio.timeout(PATIENCE):
        assert await killed.stdout.readline() == b"before\n"
        await hub.has(BASE + "before")
        killed.stdin.write(b"go on\n")
        assert await killed.wait() == -signal.SIGKILL
        await hub.until_disconnected()
    if instant == "flush":
        assert hub.uris() == [BASE + "before"]
    hub.through = hub.fragments[-1].until
    publisher = Publisher(tmp_path, BASE, hubs=[hub.url], options=QUICK)
    with publisher.source.open_journal() as journal:
        kept = [change.uri for change in journal.changes(0)]
    assert kept == [BASE + "before"] + ([] if instant == "flush" else [BASE + "after"])
    async with publisher:
        await publisher.aupdated(BASE + "last")
        await hub.has(*kept, BASE + "last")
    chain_of(hub.fragments)
