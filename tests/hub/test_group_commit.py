"""Group commit: what shares a transaction shares its failure, and nothing else."""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import AsyncIterator
from typing import Any

import pytest

from rsnotify.errors import StorageError
from rsnotify_hub.store.group_commit import GroupCommit


@pytest.fixture
async def writer() -> AsyncIterator[GroupCommit]:
    database = sqlite3.connect(":memory:", isolation_level=None, check_same_thread=False)
    database.execute("CREATE TABLE word (text TEXT NOT NULL)")
    writer = GroupCommit(database)
    yield writer
    await writer.close()


def write(writer: GroupCommit, text: str | None) -> asyncio.Future[Any]:
    return writer.submit(lambda database: database.execute("INSERT INTO word VALUES (?)", (text,)))


async def words(writer: GroupCommit) -> list[str]:
    rows = await writer.submit(lambda database: database.execute("SELECT * FROM word").fetchall())
    return [text for (text,) in rows]


async def written(writer: GroupCommit, *texts: str | None) -> list[Any]:
    """Write all but the first in one transaction, and return what became of them."""
    first = write(writer, "first")
    results = await asyncio.gather(*[write(writer, each) for each in texts], return_exceptions=True)
    await first
    return results


async def test_a_failing_operation_does_not_fail_the_others(writer: GroupCommit):
    one, wrong, other = await written(writer, "one", "no character: \udcff", "other")
    assert isinstance(wrong, UnicodeEncodeError)
    assert not isinstance(one, Exception)
    assert not isinstance(other, Exception)
    assert await words(writer) == ["first", "one", "other"]


async def test_a_failing_transaction_fails_all_its_operations(writer: GroupCommit):
    assert [type(each) for each in await written(writer, "one", None)] == [StorageError] * 2
    assert await words(writer) == ["first"]


async def test_a_write_after_the_end_is_refused(writer: GroupCommit):
    await writer.close()
    with pytest.raises(StorageError, match="closed"):
        await writer.submit(lambda database: database.execute("SELECT 1"))
