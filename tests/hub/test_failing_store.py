"""A database that fails at its N-th call, for every N: nothing acknowledged is lost, nothing
half-applied, and the hub goes on."""

from __future__ import annotations

import asyncio
import sqlite3
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from rsnotify.errors import StorageError
from rsnotify_hub.fragments import Fragment
from rsnotify_hub.intake import read_content
from rsnotify_hub.statistics import Statistics
from rsnotify_hub.store import group_commit
from rsnotify_hub.store.group_commit import CursorWriter
from rsnotify_hub.websub_subscription import Subscription
from tests.hub.failing_disk import Disk, again, hub
from tests.hub.helpers import TOPIC, Clock, LogWatch, at
from tests.hub.storing import made, opened, stored_subscriptions
from tests.waiting import PATIENCE

PAGE = "https://blog.example/"
PARTS = [made(0, 1), made(1, 2), made(2, until=3), made(2, 4), made(4, 5), made(5, 6)]
SUBSCRIPTION = Subscription(TOPIC, "https://a.example/", "secret", at(10**6), 0)


def content(text: str) -> Fragment:
    return read_content(text.encode(), content_type="text/plain", received=at(0))


async def life(folder: Path, disk: Disk) -> None:
    """Use all functions of a store, retrying each until it is acknowledged."""
    async with hub(folder, disk) as (store, topics, listener):
        for part in PARTS:
            await again(lambda part=part: topics.publish(TOPIC, part))
        heard = [fragment for fragment in listener.fragments if not fragment.heartbeat]
        assert heard == [part for part in PARTS if not part.heartbeat]
        for text in ("one", "two"):
            await again(lambda text=text: topics.publish(PAGE, content(text)))
        await again(lambda: topics.publish("https://gone.example/", PARTS[0]))
        await again(lambda: topics.delete("https://gone.example/"))
        await again(lambda: store.save(SUBSCRIPTION))
        await again(lambda: store.save(replace(SUBSCRIPTION, callback="https://b.example/")))
        await again(lambda: store.delete(TOPIC, "https://b.example/"))
        await again(topics.trim)
        assert (await again(lambda: topics.store.backlogs(TOPIC, [0])))[0].fragments == 5
        assert len(await again(lambda: topics.store.changes(TOPIC, since=at(0)))) == 5
        assert len(await again(lambda: store.read(TOPIC, after=0))) == 5
        await again(store.check)
        store.move_cursor(TOPIC, SUBSCRIPTION.callback, 3)


async def aftermath(folder: Path) -> None:
    """Read the data with a working database."""
    database = sqlite3.connect(folder / "hub.sqlite")
    assert database.execute("PRAGMA integrity_check").fetchall() == [("ok",)]
    assert (
        database.execute(
            "SELECT kept - (SELECT count(*) FROM fragment WHERE topic = id),"
            " size - (SELECT sum(length(body)) FROM fragment WHERE topic = id),"
            " position - (SELECT max(position) FROM fragment WHERE topic = id) FROM topic"
        ).fetchall()
        == [(0, 0, 0)] * 2
    )
    database.close()
    async with opened(folder, Clock()) as store:
        kept = [entry.fragment for entry in await store.read(TOPIC, after=0)]
        assert kept == [part for part in PARTS if not part.heartbeat]
        assert [entry.fragment.body for entry in await store.read(PAGE, after=0)] == [b"two"]
        (subscription,) = await stored_subscriptions(store)
        assert replace(subscription, position=0) == SUBSCRIPTION
        assert subscription.position in (0, 3)


@pytest.mark.parametrize(
    ("kinds", "failures", "late"),
    [
        (("",), (0,), False),
        (("INSERT", "DELETE", "COMMIT"), (0, 1), False),  # and its rollback
        (("COMMIT",), (0,), True),
    ],
    ids=["any call", "also the rollback", "a commit that was done"],
)
async def test_nothing_is_lost_whichever_call_fails(
    tmp_path: Path, kinds: tuple[str, ...], failures: tuple[int, ...], late: bool
):
    counted = Disk()
    await life(tmp_path / "counted", counted)
    await aftermath(tmp_path / "counted")
    assert len(counted.asked) > 100
    for number, asked in enumerate(counted.asked):
        if asked.startswith(kinds):
            folder = tmp_path / str(number)
            await life(folder, Disk([number + each for each in failures], late=late))
            await aftermath(folder)


async def test_a_deletion_that_was_reported_as_failed_does_no_harm(tmp_path: Path):
    async with hub(tmp_path, disk := Disk(late=True)) as (_, topics, listener):
        await topics.publish(PAGE, content("one"))
        disk.failing = {len(disk.asked) + 5}
        with pytest.raises(StorageError):
            await topics.delete(PAGE)
        assert disk.asked[-1] == "COMMIT"
        await asyncio.gather(topics.trim(), topics.publish(TOPIC, PARTS[0]))
        assert [state.topic for state in topics.states()] == [TOPIC]
        await topics.publish(PAGE, content("one"))
        assert [each.body for each in listener.fragments][-1] == b"one"


async def test_the_reason_of_a_failure_is_reported_until_a_write_succeeds(tmp_path: Path):
    statistics = Statistics()
    async with hub(tmp_path, disk := Disk(), statistics) as (_, topics, _):
        disk.failing = {len(disk.asked)}
        with pytest.raises(StorageError) as raised:
            await topics.publish(TOPIC, PARTS[0])
        assert statistics.store_failure is not None
        assert statistics.store_failure.reason == str(raised.value)
        await topics.publish(TOPIC, PARTS[0])
        assert statistics.store_failure is None


async def test_concurrent_publications_fail_independently(tmp_path: Path):
    disk = Disk()
    await publish_at_once(tmp_path / "counted", disk)
    for number in range(len(disk.asked)):
        acknowledged = await publish_at_once(tmp_path / str(number), Disk([number]))
        async with opened(tmp_path / str(number), Clock()) as store:
            kept = {entry.fragment.body for entry in await store.read(TOPIC, after=0)}
        assert acknowledged == kept


async def publish_at_once(folder: Path, disk: Disk) -> set[bytes]:
    parts = [made(number, number + 1) for number in range(20)]
    async with hub(folder, disk) as (_, topics, listener):
        results = await asyncio.gather(
            *[topics.publish(TOPIC, part) for part in parts], return_exceptions=True
        )
        acknowledged = {
            part.body for part, result in zip(parts, results, strict=True) if result is None
        }
        assert {fragment.body for fragment in listener.fragments} == acknowledged
    return acknowledged


class Writer:
    """A writer whose transactions end when the test decides."""

    def __init__(self) -> None:
        self.submitted: list[asyncio.Future[Any]] = []

    def submit(self, operation: object) -> asyncio.Future[Any]:
        self.submitted.append(asyncio.get_running_loop().create_future())
        return self.submitted[-1]


async def turns() -> None:
    """Run all callbacks that are ready."""
    for _ in range(9):
        await asyncio.sleep(0)


async def test_cursors_are_written_one_after_another(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(group_commit, "FLUSH_DELAY_SECONDS", 0)
    writer = Writer()
    moving = CursorWriter(writer, "")  # type: ignore[arg-type]
    moving.move(TOPIC, "https://a.example/", 1)
    await turns()
    moving.forget(TOPIC, "https://a.example/")  # nothing of the running write remains
    moving.move(TOPIC, "https://b.example/", 1)
    await turns()
    assert len(writer.submitted) == 1
    writer.submitted[0].set_result(None)
    await turns()
    assert len(writer.submitted) == 2


async def test_cursors_are_written_again_after_a_failure(
    tmp_path: Path, watch: LogWatch, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(group_commit, "FLUSH_DELAY_SECONDS", 0)
    monkeypatch.setattr(group_commit, "RETRY_DELAY_SECONDS", 0)
    async with hub(tmp_path, disk := Disk()) as (store, _, _):
        await store.save(SUBSCRIPTION)
        disk.failing = {len(disk.asked)}
        store.move_cursor(TOPIC, SUBSCRIPTION.callback, 7)
        await watch.line("cannot save cursors")
        async with asyncio.timeout(PATIENCE):
            while (await stored_subscriptions(store))[0].position != 7:
                pass
