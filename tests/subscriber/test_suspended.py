"""A follower that is suspended in its handler, and resumed after another one tried to follow."""

from __future__ import annotations

import asyncio
from contextlib import ExitStack
from pathlib import Path

import psycopg
import pytest

from rsnotify.errors import ConfigurationError
from rsnotify_subscriber import FolderMirror, FollowOptions, PostgreSQLState, Subscriber
from tests.subscriber import aggregator
from tests.subscriber.aggregator import PACE, Aggregator
from tests.subscriber.source import PATIENCE, SmallSource
from tests.suspending import Suspended, suspended

INTO_POSTGRESQL = """
import asyncio
from rsnotify.errors import StorageError
from rsnotify_subscriber import FollowOptions, Subscriber
from rsnotify_subscriber.storage.postgresql import PostgreSQLState
from tests.subscriber.aggregator import PACE, Aggregator

class Suspending(Aggregator):
    def apply_within(self, connection, changes):
        super().apply_within(connection, changes)
        suspend()

state = PostgreSQLState(sys.argv[2] + "?application_name=suspended")
try:
    options = FollowOptions(pace=PACE)
    asyncio.run(Subscriber(sys.argv[1], Suspending(), state=state, options=options).catch_up())
except StorageError:
    sys.exit(3)
"""
INTO_A_FOLDER = """
import asyncio
from pathlib import Path
from rsnotify_subscriber import FolderMirror, FollowOptions, Subscriber
from tests.subscriber.aggregator import PACE

class Suspending(FolderMirror):
    def apply(self, changes):
        suspend()
        super().apply(changes)

handler, state = Suspending(Path(sys.argv[2])), Path(sys.argv[3])
options = FollowOptions(pace=PACE)
asyncio.run(Subscriber(sys.argv[1], handler, state=state, options=options).catch_up())
"""


async def start(stack: ExitStack, program: str, *arguments: object) -> Suspended:
    manager = suspended(program, *map(str, arguments))
    return await asyncio.to_thread(stack.enter_context, manager)


async def resume(process: Suspended) -> int:
    return await asyncio.to_thread(process.resume)


async def test_a_follower_whose_database_session_ended_commits_nothing(
    source: SmallSource, postgresql: str
) -> None:
    aggregator.prepare(postgresql)
    source.put("a", b"old")
    with ExitStack() as stack:
        first = await start(stack, INTO_POSTGRESQL, source.url, postgresql)
        with psycopg.connect(postgresql) as connection:
            connection.execute(
                "SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
                " WHERE application_name = 'suspended'"
            )
        source.put("a", b"new")
        state, options = PostgreSQLState(postgresql), FollowOptions(pace=PACE)
        async with asyncio.timeout(PATIENCE):
            await Subscriber(source.url, Aggregator(), state=state, options=options).catch_up()
        assert await resume(first) == 3
    with psycopg.connect(postgresql) as connection:
        assert connection.execute("SELECT content FROM copy").fetchall() == [(b"new",)]
        assert connection.execute("SELECT content FROM effects").fetchall() == [(b"new",)]


async def test_a_suspended_follower_still_locks_its_folder(
    source: SmallSource, tmp_path: Path
) -> None:
    source.put("a", b"old")
    with ExitStack() as stack:
        copy, state = tmp_path / "copy", tmp_path / "state"
        first = await start(stack, INTO_A_FOLDER, source.url, copy, state)
        source.put("a", b"new")
        options = FollowOptions(pace=PACE)
        other = Subscriber(source.url, FolderMirror(copy), state=state, options=options)
        with pytest.raises(ConfigurationError, match="in use by another follower"):
            await other.catch_up()
        assert await resume(first) == 0
    async with asyncio.timeout(PATIENCE):
        await Subscriber(source.url, FolderMirror(copy), state=state, options=options).catch_up()
    assert (copy / "a").read_bytes() == b"new"


async def test_the_state_of_a_mirror_is_kept_where_only_the_end_of_the_process_unlocks_it(
    source: SmallSource, postgresql: str, tmp_path: Path
) -> None:
    with pytest.raises(ConfigurationError, match="the state of a mirror must be in a folder"):
        Subscriber(source.url, FolderMirror(tmp_path), state=PostgreSQLState(postgresql))
