"""The start-up time of a hub with a long log and many subscriptions."""

from __future__ import annotations

import asyncio
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path

import targets

from rsnotify.format.model import Capability, ChangeType, Document, Resource
from rsnotify.format.writer import write_document
from rsnotify.runtime.processes import Process
from rsnotify_hub.export_file import NullLogListener
from rsnotify_hub.fragments import Fragment, read_fragment
from rsnotify_hub.store.interface import LogEntry, LogRetention, LogState
from rsnotify_hub.store.sqlite_store import SqliteStore
from rsnotify_hub.websub_subscription import Subscription

ENTRIES, SUBSCRIPTIONS, TOPICS = 100_000, 10_000, 10
BATCH = 1_000
TRIES = 5


def main() -> None:
    """Print how long a hub takes to serve with nothing, and with much."""
    print(f"# restart: {ENTRIES:,} entries of the log, {SUBSCRIPTIONS:,} subscriptions")
    with tempfile.TemporaryDirectory() as name:
        empty, full = Path(name, "empty"), Path(name, "full")
        asyncio.run(fill(full, ENTRIES, SUBSCRIPTIONS))
        for what, folder in (("nothing", empty), ("all of it", full)):
            passed, worked = map(
                min, zip(*(asyncio.run(start(folder)) for _ in range(TRIES)), strict=True)
            )
            print(
                f"serves after {passed:.2f} s, {worked:.2f} s of them a processor's,"
                f" at best of {TRIES} with {what}",
                flush=True,
            )
    targets.compare(f"start of a hub with {ENTRIES:,} log entries", passed, 1, "s")
    _compare_help()


def _compare_help() -> None:
    """Compare the processor time of the command line alone."""
    took = []
    for _ in range(TRIES):
        before = _processor_seconds()
        subprocess.run(
            [sys.executable, "-m", "rsnotify", "--help"], capture_output=True, check=True
        )
        took.append(_processor_seconds() - before)
    targets.compare("rsnotify --help", min(took), 0.3, "s of CPU")


async def start(folder: Path) -> tuple[float, float]:
    """Start a hub, and end it once it serves.

    Returns:
        The seconds that passed until it served, and those of a processor that it has taken.
    """
    before = _processor_seconds()
    started = time.perf_counter()
    process = await Process.start(
        "hub", "--port", "0", "--data", str(folder), log=folder.with_suffix(".log")
    )
    try:
        await process.url()
        passed = time.perf_counter() - started
    finally:
        await process.kill()
    return passed, _processor_seconds() - before


def _processor_seconds() -> float:
    """Return what the processes that were started and have ended took."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


async def fill(folder: Path, entries: int, subscriptions: int) -> None:
    """Store entries of ten topics, and subscriptions to them."""
    now = datetime.now(UTC)
    store = SqliteStore(folder, LogRetention(size=10**9, age=timedelta(days=9)), lambda: now)
    await store.start(logs := _Logs())
    for number in range(TOPICS):
        topic = _topic(number)
        for first in range(0, entries // TOPICS, BATCH):
            fragments = [
                _fragment(now, number, each)
                for each in range(first, min(first + BATCH, entries // TOPICS))
            ]
            after = logs.ends.get(topic, 0)
            await store.append(topic, fragments, after=after, replacing=None)
    await asyncio.gather(
        *(store.save(_subscription(number, now, logs.ends)) for number in range(subscriptions))
    )
    await store.close()


class _Logs(NullLogListener):
    """Where each log ends."""

    def __init__(self) -> None:
        self.ends: dict[str, int] = {}

    def appended(
        self, topic: str, entries: Sequence[LogEntry], state: LogState, replaced: int | None
    ) -> None:
        self.ends[topic] = state.position


def _topic(number: int) -> str:
    return f"https://source.example/{number}/channel.xml"


def _fragment(now: datetime, topic: int, number: int) -> Fragment:
    before = now + timedelta(milliseconds=number)
    at = before + timedelta(milliseconds=1)
    change = Resource(
        f"https://source.example/{topic}/{number}", change=ChangeType.UPDATED, datetime=at
    )
    return read_fragment(
        write_document(Document(Capability.CHANGE_NOTIFICATION, (change,), from_=before, until=at))
    )


def _subscription(number: int, now: datetime, ends: dict[str, int]) -> Subscription:
    topic = _topic(number % TOPICS)
    callback = f"https://destination{number}.example/callback"
    return Subscription(topic, callback, "secret", now + timedelta(days=9), ends[topic])


if __name__ == "__main__":
    main()
