"""A Source that is killed at one instant of a change: before its flush, and at each step after.

The last step applies changes to the current set.
"""

from __future__ import annotations

import asyncio
import signal
import sys
from pathlib import Path

import pytest

from rsnotify.format.reader import read_document
from rsnotify_publisher import Options, Publisher
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


KILLED_WHILE_APPLYING = """
import os, signal, sys
from rsnotify.format.model import Resource
from rsnotify_publisher import Options, Publisher

folder, commits = sys.argv[1], int(sys.argv[2])
base = "http://source.example/data/"
publisher = Publisher(folder, base, options=Options(resource_list_every=900))
publisher.start()
publisher.wait_published()
publisher.record(Resource(f"{base}{number % 900}", change="updated") for number in range(1_200))
publisher.record([Resource(f"{base}7", change="deleted")])

def trace(statement):
    global commits
    commits -= statement == "COMMIT"
    if commits == 0:
        os.kill(os.getpid(), signal.SIGKILL)

with publisher.source.open_journal() as journal:
    journal._db.set_trace_callback(trace)
    journal.bring_up_to_date()
"""


@pytest.mark.parametrize("commits", [1, 2, 3])
async def test_a_source_killed_while_changes_are_applied_offers_the_same_set(
    tmp_path: Path, commits: int
) -> None:
    killed = await asyncio.create_subprocess_exec(
        sys.executable, "-c", KILLED_WHILE_APPLYING, str(tmp_path), str(commits)
    )
    async with asyncio.timeout(PATIENCE):
        assert await killed.wait() == -signal.SIGKILL
    publisher = Publisher(tmp_path, BASE, options=Options(resource_list_every=900))
    async with publisher:
        assert await publisher.await_published(PATIENCE)
    listed = read_document((tmp_path / "documents/resourcelist.xml").read_bytes()).resources
    expected = {f"{BASE}{number}" for number in range(900)} - {f"{BASE}7"}
    assert {resource.uri for resource in listed} == expected
    with publisher.source.open_journal() as journal:
        assert journal.count() == 899
        assert journal.state().sum.startswith("899 ")
