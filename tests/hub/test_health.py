from __future__ import annotations

import asyncio

import pytest

from rsnotify.errors import StorageError
from rsnotify_hub.hub import Readiness
from rsnotify_hub.refusals import Refusal
from tests.waiting import PATIENCE


class Disk:
    """A store of which only `check` is used."""

    def __init__(self) -> None:
        self.checks = 0
        self.turns = asyncio.Event()
        self.error: StorageError | None = None

    async def check(self) -> None:
        self.checks += 1
        await self.turns.wait()
        if self.error is not None:
            raise self.error


@pytest.fixture
def disk() -> Disk:
    return Disk()


async def test_concurrent_requests_share_one_check(disk: Disk):
    readiness = Readiness(disk)  # type: ignore[arg-type]
    asking = [asyncio.create_task(readiness.check()) for _ in range(100)]
    await asyncio.wait(asking, timeout=0)
    disk.turns.set()
    async with asyncio.timeout(PATIENCE):
        await asyncio.gather(*asking)
    assert disk.checks == 1
    await readiness.check()
    assert disk.checks == 2


async def test_a_hanging_store_is_not_ready_until_it_recovers(disk: Disk):
    readiness = Readiness(disk, seconds=0.01)  # type: ignore[arg-type]
    for _ in range(3):
        with pytest.raises(Refusal, match="did not answer within"):
            await readiness.check()
    assert disk.checks == 1
    disk.turns.set()
    await readiness.close()
    await readiness.check()
    assert disk.checks == 2


async def test_a_failing_store_is_not_ready_until_it_recovers(disk: Disk):
    readiness = Readiness(disk)  # type: ignore[arg-type]
    disk.turns.set()
    disk.error = StorageError("the disk is full")
    with pytest.raises(StorageError, match="full"):
        await readiness.check()
    disk.error = None
    await readiness.check()


async def test_a_store_that_is_cut_off_is_not_ready_and_the_reason_is_public(disk: Disk):
    troubles: list[str | None] = ["NATS is away", None]
    readiness = Readiness(disk, lambda: troubles[0], seconds=0.01)  # type: ignore[arg-type]
    with pytest.raises(Refusal, match="NATS is away"):
        await readiness.check()
    disk.turns.set()
    with pytest.raises(Refusal, match="NATS is away"):  # it can write, but not read
        await readiness.check()
    troubles.pop(0)
    await readiness.check()


async def test_a_client_that_leaves_does_not_cancel_the_check(disk: Disk):
    readiness = Readiness(disk)  # type: ignore[arg-type]
    leaving, staying = (asyncio.create_task(readiness.check()) for _ in range(2))
    await asyncio.wait([leaving, staying], timeout=0)
    leaving.cancel()
    await asyncio.wait([leaving])
    disk.turns.set()
    async with asyncio.timeout(PATIENCE):
        await staying
    assert disk.checks == 1
