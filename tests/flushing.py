"""Does what has to be on the disk when it is done, and marks in the trace of its calls when it is.

`test_flushes` runs this under strace. Each piece of work is done twice: SQLite flushes the first
commit to a file in most of its modes.
"""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path

from rsnotify.format.datetimes import to_microseconds
from rsnotify.format.model import ChangeType, Resource
from rsnotify.runtime.backup import copy_state
from rsnotify.sync.progress import Progress
from rsnotify_hub.export_file import write_export
from rsnotify_hub.fragments import Fragment
from rsnotify_hub.store.interface import LogRetention
from rsnotify_hub.store.sqlite_store import SqliteStore
from rsnotify_hub.topic_log import TopicLogs
from rsnotify_publisher import Record
from rsnotify_publisher.files import write_atomically
from rsnotify_publisher.journal import Journal
from rsnotify_subscriber.storage.destination_state import DestinationState
from rsnotify_subscriber.storage.resource_state import ResourceState

BASE = "http://source.example/data/"
START = datetime(2026, 1, 1, tzinfo=UTC)


@contextmanager
def marked(name: str) -> Iterator[None]:
    """Mark in the trace where a piece of work begins and ends."""
    for mark in (f"begin {name}", f"end {name}"):
        with suppress(FileNotFoundError):
            os.readlink(mark)
        if mark.startswith("begin"):
            yield


def record_changes(folder: Path) -> None:
    with Journal(folder / "journal.sqlite3", BASE) as journal:
        for number in range(2):
            with marked(f"record {number}"), journal.transaction():
                journal.record([Record(Resource(BASE, change=ChangeType.UPDATED))])
        journal.bring_up_to_date()  # which flushes nothing
        with marked("record after that"), journal.transaction():
            journal.record([Record(Resource(BASE, change=ChangeType.UPDATED))])


def write_documents(folder: Path) -> None:
    folder.mkdir()
    with marked("write a document"):
        write_atomically(folder / "document.xml", [b"<urlset/>"])


async def publish(folder: Path) -> None:
    retention = LogRetention(size=10**9, age=timedelta(days=1))
    store = SqliteStore(folder, retention, lambda: START)
    topics = TopicLogs(store)
    await topics.start(())
    for number in range(2):
        begin, end = START + timedelta(seconds=number), START + timedelta(seconds=number + 1)
        fragment = Fragment(b"%d" % number, "application/xml", begin, end, begin, heartbeat=False)
        with marked(f"publish {number}"):
            await topics.publish(BASE, fragment)
    with marked("export"):
        await write_export(folder / "export.jsonl", store)
    await topics.close()
    await store.close()


def commit_progress(folder: Path) -> None:
    state = DestinationState(folder)
    for number in range(2):
        at = START + timedelta(seconds=number)
        held = [ResourceState(f"{BASE}{n}", to_microseconds(at), "updated", None) for n in "ab"]
        with marked(f"commit {number}"):
            state.store_intent([one.uri for one in held], ())
            state.commit(held, Progress(at, at), {}, None)
    state.close()
    with marked("back up"):
        copy_state(folder, folder.with_name("backup"))


def main() -> None:
    folder = Path(sys.argv[1])
    record_changes(folder / "source")
    write_documents(folder / "documents")
    asyncio.run(publish(folder / "hub"))
    commit_progress(folder / "state")


if __name__ == "__main__":
    main()
