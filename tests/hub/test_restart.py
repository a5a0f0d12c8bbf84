"""Starting again costs the same however long the logs are."""

from __future__ import annotations

from pathlib import Path

from rsnotify_hub.store.sqlite_store import SqliteStore
from rsnotify_hub.websub_subscription import Subscription
from tests.hub.failing_disk import Disk
from tests.hub.helpers import TOPIC, Clock, at
from tests.hub.storing import FOREVER, Counted, made, opened, stored_logs, stored_subscriptions


async def fill(folder: Path, entries: int) -> None:
    async with opened(folder, Clock()) as store:
        fragments = [made(number, number + 1) for number in range(entries)]
        await store.append(TOPIC, fragments, after=0, replacing=None)
        await store.save(Subscription(TOPIC, "https://a.example/", None, at(0), 0))


async def steps_to_start(folder: Path) -> int:
    Counted.steps = 0
    store = SqliteStore(folder, FOREVER, Clock(), connection=Counted)
    assert (await stored_logs(store))[0].kept > 0
    assert len(await stored_subscriptions(store)) == 1
    await store.close()
    return Counted.steps


async def test_a_start_reads_the_same_for_a_longer_log(tmp_path: Path):
    await fill(tmp_path / "short", 100)
    await fill(tmp_path / "long", 1_000)
    short, long = [await steps_to_start(tmp_path / name) for name in ("short", "long")]
    assert 0 < long <= short + 200


async def test_a_start_without_changes_writes_nothing(tmp_path: Path):
    """So a hub starts, and serves who reads, where its disk is full."""
    await fill(tmp_path, 10)
    disk = Disk()
    store = SqliteStore(tmp_path, FOREVER, Clock(), connection=disk.connection())
    assert len(await store.read(TOPIC, after=0)) == 10
    await store.close()
    assert {asked.split()[0] for asked in disk.asked} == {"PRAGMA", "SELECT"}
    assert "PRAGMA user_version" in disk.asked
