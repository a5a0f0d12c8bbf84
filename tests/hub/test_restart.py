"""Starting again costs the same however long the logs are."""

from __future__ import annotations

import sqlite3
from pathlib import Path
from typing import Any

from rsnotify_hub.store.sqlite_store import SqliteStore
from rsnotify_hub.subscriptions import Subscription
from tests.hub.helpers import TOPIC, Clock, at
from tests.hub.storing import FOREVER, made, opened, stored_logs, stored_subscriptions
from tests.hub.test_failing_store import Disk


async def fill(folder: Path, entries: int) -> None:
    async with opened(folder, Clock()) as store:
        fragments = [made(number, number + 1) for number in range(entries)]
        await store.append(TOPIC, fragments, after=0, replacing=None)
        await store.save(Subscription(TOPIC, "https://a.example/", None, at(0), 0))


async def steps_to_start(folder: Path) -> int:
    """Count the instructions of SQLite's machine, in hundreds."""
    steps = 0

    class Connection(sqlite3.Connection):
        def __init__(self, *arguments: Any, **settings: Any) -> None:
            super().__init__(*arguments, **settings)
            self.set_progress_handler(self._count, 100)

        def _count(self) -> int:
            nonlocal steps
            steps += 1
            return 0

    store = SqliteStore(folder, FOREVER, Clock(), connection=Connection)
    assert (await stored_logs(store))[0].kept > 0
    assert len(await stored_subscriptions(store)) == 1
    await store.close()
    return steps


async def test_a_start_reads_the_same_for_a_longer_log(tmp_path: Path):
    await fill(tmp_path / "short", 100)
    await fill(tmp_path / "long", 5_000)
    short, long = [await steps_to_start(tmp_path / name) for name in ("short", "long")]
    assert long <= short + 2


async def test_a_start_without_changes_writes_nothing(tmp_path: Path):
    """So a hub starts, and serves who reads, where its disk is full."""
    await fill(tmp_path, 10)
    disk = Disk()
    store = SqliteStore(tmp_path, FOREVER, Clock(), connection=disk.connection())
    assert len(await store.read(TOPIC, after=0)) == 10
    await store.close()
    assert {asked.split()[0] for asked in disk.asked} == {"PRAGMA", "SELECT"}
    assert "PRAGMA user_version" in disk.asked
