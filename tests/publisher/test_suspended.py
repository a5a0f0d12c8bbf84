"""Processes of one Source that are suspended while they hold a lock, and resumed."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise
from pathlib import Path

from tests.publisher.helpers import BASE, PATIENCE, eventually, quick_publisher
from tests.publisher.published import read, recorded, uris
from tests.suspending import suspended

# The leader, which is suspended while it writes a Resource List.
LEAD = """
from rsnotify.format.model import Resource
from rsnotify_publisher import Publisher

def resources():
    suspend()
    return [Resource("http://source.example/data/old")]

with Publisher(sys.argv[1], "http://source.example/data/", resources=resources) as publisher:
    publisher.updated("http://source.example/data/old")
    publisher.wait_published()
"""
# The clock is read within the transaction that records a change.
RECORD = """
import threading, time
from rsnotify_publisher import Publisher

def clock():
    if threading.current_thread().name.startswith("rsnotify-recorder") and publisher_started:
        suspend()
    return time.time_ns() // 1000

publisher_started = False
with Publisher(sys.argv[1], "http://source.example/data/", clock=clock) as publisher:
    publisher.wait_published()
    publisher_started = True
    publisher.updated("http://source.example/data/first")
"""


def test_documents_of_a_suspended_leader_never_replace_newer_ones(tmp_path: Path):
    with suspended(LEAD, str(tmp_path)) as leader:
        with quick_publisher(tmp_path, resources=list) as publisher:
            publisher.updated(BASE + "new")
            # It must not lead: the suspended process could overwrite newer documents.
            assert not publisher.wait_published(0.5)
            assert leader.resume() == 0
            assert publisher.wait_published(PATIENCE)
            both = [BASE + "old", BASE + "new"]
            eventually(lambda: uris(read(publisher, "changelist.xml")) == both)
            eventually(lambda: uris(read(publisher, "resourcelist.xml")) == [])
        assert uris(read(publisher, "changelist.xml")) == both


def test_others_wait_for_a_process_suspended_while_it_records(tmp_path: Path):
    with quick_publisher(tmp_path) as publisher, ThreadPoolExecutor(1) as thread:
        with suspended(RECORD, str(tmp_path)) as recording:
            waiting = thread.submit(publisher.updated, BASE + "second")
            assert recording.resume() == 0
        waiting.result(PATIENCE)
        changes = recorded(publisher)
    assert [change.uri for change in changes] == [BASE + "first", BASE + "second"]
    assert all(a.datetime < b.datetime for a, b in pairwise(changes))
