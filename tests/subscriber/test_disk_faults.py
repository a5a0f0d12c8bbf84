"""A subscriber waits for a disk that is full or fails for a while."""

from __future__ import annotations

import asyncio
import errno
import resource
import sqlite3
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from rsnotify.errors import NotCopied, StorageError
from rsnotify_subscriber import FollowOptions, Received, Subscriber
from rsnotify_subscriber.storage.state_database import SQLiteDatabase, open_folder
from tests.subscriber.destination import PACE, PATIENCE
from tests.subscriber.source import SmallSource


class FailingFolder:
    """A folder of a state in which the next commits fail; a `Place`."""

    def __init__(self, folder: Path, error: Exception, failures: int) -> None:
        self._folder = folder
        self._error = error
        self.failures = failures

    def open(self) -> SQLiteDatabase:
        database = open_folder(self._folder)
        execute = database.execute

        def failing(sql: str, parameters: Sequence[object] = ()) -> Any:
            if sql == "COMMIT" and self.failures:
                self.failures -= 1
                raise self._error
            return execute(sql, parameters)

        database.execute = failing  # type: ignore[method-assign,assignment]
        return database


def of_sqlite(code: int) -> sqlite3.Error:
    error = sqlite3.OperationalError("the database says no")
    error.sqlite_errorcode = code
    return error


@pytest.fixture
def held() -> dict[str, bytes]:
    return {}


FULL = OSError(errno.ENOSPC, "No space left on device")


def follow(source: SmallSource, place: FailingFolder | Path, held: dict[str, bytes]) -> Subscriber:
    async def hold(received: Received) -> None:
        assert received.content is not None
        held[received.uri.removeprefix(source.base)] = received.content.read_bytes()

    return Subscriber(source.url, hold, state=place, options=FollowOptions(pace=PACE))


@pytest.mark.parametrize(
    "error",
    [
        FULL,
        OSError(errno.EIO, "Input/output error"),
        OSError(errno.EDQUOT, "Disk quota exceeded"),
        of_sqlite(sqlite3.SQLITE_FULL),
        of_sqlite(sqlite3.SQLITE_IOERR_FSYNC),
    ],
    ids=str,
)
async def test_following_continues_once_the_disk_can_be_written_again(
    error: Exception,
    source: SmallSource,
    held: dict[str, bytes],
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
) -> None:
    source.put("a", b"1")
    place = FailingFolder(tmp_path, error, failures=3)
    async with asyncio.timeout(PATIENCE), follow(source, place, held) as subscriber:
        assert await subscriber.until(lambda status: status.level)
        source.put("b", b"2")
        assert await subscriber.until(lambda _: held == source.contents)
    assert place.failures == 0
    assert "waiting for the disk" in caplog.text


async def test_following_ends_in_order_while_it_waits_for_the_disk(
    source: SmallSource, held: dict[str, bytes], tmp_path: Path
) -> None:
    place = FailingFolder(tmp_path, FULL, failures=10**6)
    async with asyncio.timeout(PATIENCE), follow(source, place, held) as subscriber:
        assert await subscriber.until(lambda status: "the disk is full" in str(status.error))
        assert not subscriber.status.level


@pytest.mark.parametrize(
    ("error", "told", "runs"),
    [
        (of_sqlite(sqlite3.SQLITE_CORRUPT), "the database is damaged", True),
        (FULL, "is full", False),
    ],
    ids=["a damaged state while following", "a full disk while catching up"],
)
async def test_a_damaged_state_ends_the_run_at_once_and_a_full_disk_catching_up(
    error: Exception,
    told: str,
    runs: bool,
    source: SmallSource,
    held: dict[str, bytes],
    tmp_path: Path,
) -> None:
    subscriber = follow(source, FailingFolder(tmp_path, error, failures=1), held)
    with pytest.raises(StorageError, match=told):
        async with asyncio.timeout(PATIENCE):
            await (subscriber.run() if runs else subscriber.catch_up())


async def test_t_does_not_pass_content_that_does_not_fit_on_the_disk(
    source: SmallSource, held: dict[str, bytes], tmp_path: Path
) -> None:
    source.put("a", b"1")
    subscriber = follow(source, tmp_path, held)
    await subscriber.catch_up()
    entry = source.put("b", bytes(600_000))
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (500_000, limits[1]))
    try:
        with pytest.raises(NotCopied, match="/b: the file would exceed the maximum size"):
            async with asyncio.timeout(PATIENCE):
                await subscriber.catch_up()
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert subscriber.status.through < entry.datetime
    await subscriber.catch_up()
    assert held == source.contents
