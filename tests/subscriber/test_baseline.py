from __future__ import annotations

import asyncio
import errno
import os
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

import pytest
from aiohttp import web
from msgspec.structs import replace

from rsnotify.errors import ConfigurationError, RsnotifyError, Unavailable
from rsnotify_subscriber import FollowOptions, HeldResource, Received, Subscriber
from tests.subscriber.destination import PACE, Destination
from tests.subscriber.source import PATIENCE, SmallSource, path_of, status


async def test_a_baseline_copies_every_resource(
    source: SmallSource, destination: Destination
) -> None:
    for n in range(200):
        source.put(f"folder{n % 7}/r{n}.ttl", b"content %d" % n)
    await destination.become_equal()


async def test_a_baseline_reads_every_list_of_an_index(
    source: SmallSource, destination: Destination
) -> None:
    source.per_list = 30
    source.put_some(100)
    await destination.become_equal()
    assert source.gets["/data/resourcelist-3.xml"] == 1


async def test_many_gets_are_in_flight_at_once(
    source: SmallSource, destination: Destination
) -> None:
    together = asyncio.Barrier(20)

    async def answer(request: web.Request) -> web.StreamResponse:
        await together.wait()
        return web.Response(body=b"x")

    for n in range(40):
        source.put(f"r{n}", b"x")
        source.answers[path_of(f"r{n}")] = answer
    await destination.become_equal()


async def test_resources_that_are_no_longer_listed_are_deleted(
    source: SmallSource, destination: Destination
) -> None:
    source.archive = False
    source.put("a/stays", b"1")
    source.put("b/goes", b"2")
    await destination.catch_up()
    source.delete("b/goes")
    source.put("c/comes", b"3")
    source.rotate()  # and with no archive, nothing tells of the time before
    await destination.become_equal()
    assert not (destination.folder / "b").exists()


async def interrupt(source: SmallSource, destination: Destination, *, after: int) -> None:
    """Interrupt the first copy once so many changes are applied and committed."""
    subscriber = destination.subscriber()
    catching_up = asyncio.create_task(subscriber.catch_up())
    await destination.until(lambda: subscriber.status.applied == after)
    catching_up.cancel()
    with pytest.raises(asyncio.CancelledError):
        await catching_up
    source.answers.clear()


async def test_an_interrupted_baseline_continues_where_it_stopped(
    source: SmallSource, destination: Destination
) -> None:
    source.put_some(30)
    for n in range(20, 30):
        source.hold(path_of(f"r{n}"))
    await interrupt(source, destination, after=20)
    before = source.gets[path_of("r0")]
    await destination.become_equal()
    assert source.gets[path_of("r0")] == before


async def test_what_is_deleted_while_a_first_copy_is_interrupted_is_removed_from_it(
    source: SmallSource, destination: Destination
) -> None:
    source.archive = False
    for name in ("goes", "stays", "waits"):
        source.put(name, name.encode())
    source.hold(path_of("waits"))
    await interrupt(source, destination, after=2)
    assert set(destination.files()) == {"goes", "stays"}
    source.delete("goes")
    source.rotate()  # no list tells of the deletion
    await destination.become_equal()


async def test_a_resource_that_cannot_be_fetched_does_not_stop_the_others(
    source: SmallSource, destination: Destination
) -> None:
    source.put_some(150)
    source.answers[path_of("r7")] = status(403)
    with pytest.raises(Unavailable, match=r"data/r7: the server says 403"):
        await destination.catch_up()
    assert set(source.contents) - set(destination.files()) == {"r7"}
    del source.answers[path_of("r7")]
    await destination.become_equal()


async def test_the_change_list_corrects_a_list_that_is_older_than_the_resources(
    source: SmallSource, destination: Destination
) -> None:
    """More resources than may be in flight no longer have the hash that is listed."""
    for n in range(2 * PACE.in_flight):
        source.put(f"r{n}", b"old")
    listed = source.resource_list()
    for n in range(2 * PACE.in_flight):
        source.put(f"r{n}", b"new %d" % n)
    source.publish("resourcelist.xml", listed)
    await destination.become_equal()


async def test_a_custom_handler_receives_each_resource_with_its_content(
    source: SmallSource, destination: Destination
) -> None:
    source.put("a", b"content of a")
    seen: dict[str, bytes | None] = {}

    async def take(received: Received) -> None:
        seen[received.uri] = received.content.read_bytes() if received.content else None

    state, options = destination.folder / "state", FollowOptions(pace=PACE)
    await Subscriber(source.url, take, state=state, options=options).catch_up()
    source.delete("a")
    await Subscriber(source.url, take, state=state, options=options).catch_up()
    assert seen == {source.base + "a": None}
    assert list((state / "incoming").iterdir()) == []


# Files that are there before the first run


async def test_a_first_copy_adopts_the_files_that_have_the_listed_hash(
    source: SmallSource, destination: Destination
) -> None:
    for name in ("same", "differs", "large"):
        source.put(name, name.encode() * (100_000 if name == "large" else 1))
    source.put("without", b"without")
    source.described["without"] = replace(source.described["without"], hash=None)
    source.changes.clear()  # only the Resource List shows that a file differs
    destination.folder.mkdir()
    for name in ("same", "differs", "large", "without"):
        (destination.folder / name).write_bytes(source.contents[name])
    (destination.folder / "differs").write_bytes(b"DIFFERS")
    with pytest.raises(ConfigurationError, match="must be empty"):
        await destination.catch_up()
    source.gets.clear()
    await destination.catch_up(adopt=True)
    assert destination.equals_source()
    names = ("same", "differs", "large", "without")
    assert [source.gets[path_of(name)] for name in names] == [0, 1, 0, 1]


async def test_a_first_copy_ends_if_nothing_can_be_stored_and_leaves_no_files(
    source: SmallSource, tmp_path: Path
) -> None:
    class FullStore:
        """Stores nothing, and so cannot be compared with the state of a copy."""

        async def apply(self, changes: Sequence[Received]) -> None:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

        def find_lost(self, held: Mapping[str, HeldResource]) -> Iterable[str]:
            return held

    source.put("a", b"1")
    subscriber = Subscriber(
        source.url, FullStore(), state=tmp_path / "state", options=FollowOptions(pace=PACE)
    )
    async with asyncio.timeout(PATIENCE):
        with pytest.raises(RsnotifyError, match="No space left"):
            await subscriber.catch_up()
    assert list((tmp_path / "state" / "incoming").iterdir()) == []
