"""Comparing the copy with the count and digest of the set, by push and with a real state."""

from __future__ import annotations

import asyncio
import logging
import sqlite3
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, closing
from datetime import UTC, datetime
from functools import partial
from typing import Any

import pytest
from msgspec.structs import replace

from rsnotify.format.datetimes import Instant
from rsnotify.format.hashes import SetSum
from rsnotify.format.model import Capability, Document
from rsnotify.format.writer import write_document
from rsnotify.selection import Selection
from rsnotify_subscriber import Audited, Status, Subscriber
from tests.subscriber.destination import PACE, PATIENCE, Destination
from tests.subscriber.hub import SmallHub
from tests.subscriber.source import SmallSource, path_of, sha256

#: Polls do not interfere; lists may lag for a moment.
RARE = replace(PACE, poll=0.05, poll_with_push=600, repair=0.2)


@pytest.fixture
def offered(source: SmallSource, hub: SmallHub) -> None:
    source.hubs = [hub.url]
    source.put_some()


class Pushing:
    """What the hub is given to send."""

    def __init__(self, source: SmallSource, hub: SmallHub) -> None:
        self._source = source
        self._hub = hub
        self._last = source.last

    async def changes(self, count: int) -> None:
        """Push the last changes. If there were more before, the interval hides that."""
        await self._send(self._source.changes[-count:], self._source.last)

    async def heartbeat(self) -> Instant:
        """Send a heartbeat with the count and digest of the set."""
        until = max(datetime.now(UTC), self._source.last)
        await self._send([], until)
        return until

    async def _send(self, changes: list[Any], until: Instant) -> None:
        total = SetSum()
        held = self._source.contents.items()
        total.add((self._source.base + name, sha256(content)) for name, content in held)
        digest = total.digest()
        assert digest is not None
        fragment = Document(
            Capability.CHANGE_NOTIFICATION,
            tuple(changes),
            from_=self._last,
            until=until,
            attributes=digest.attributes if not changes else (),
        )
        await self._hub.publish(write_document(fragment), self._last, until)
        self._last = self._source.last


@pytest.fixture
def pushing(source: SmallSource, hub: SmallHub, offered: None) -> Pushing:
    return Pushing(source, hub)


@pytest.fixture
async def pushed(destination: Destination, pushing: Pushing) -> AsyncIterator[Subscriber]:
    async with following(destination) as subscriber:
        yield subscriber


@asynccontextmanager
async def following(destination: Destination, **options: Any) -> AsyncIterator[Subscriber]:
    async with destination.subscriber(pace=RARE, **options) as subscriber:
        await destination.until_pushed(relaxed=True)
        yield subscriber


async def until_in_step(destination: Destination) -> None:
    await destination.until(lambda: destination.current.status.in_step is True)


def audits(destination: Destination) -> list[bool | None]:
    return [event.in_step for event in destination.events_of(Audited)]


async def test_a_heartbeat_proves_that_the_copy_is_in_step(
    destination: Destination, pushing: Pushing, pushed: Subscriber
) -> None:
    assert pushed.status.in_step is None
    await pushing.heartbeat()
    await until_in_step(destination)
    assert audits(destination) == [True]


@pytest.mark.usefixtures("pushed")
async def test_the_next_heartbeat_reveals_a_change_that_a_hub_hid(
    source: SmallSource, destination: Destination, pushing: Pushing
) -> None:
    before = source.gets["/data/resourcelist.xml"]
    source.put("withheld", b"not announced")
    source.put("told", b"somebody is")
    await pushing.changes(1)
    await destination.until(lambda: "told" in destination.files())
    assert "withheld" not in destination.files()
    await pushing.heartbeat()
    await until_in_step(destination)
    assert destination.equals_source()
    assert source.gets["/data/resourcelist.xml"] == before
    assert audits(destination) == [False, True]
    told = destination.events_of(Audited)[0]
    assert "the Source has 7 resources, but the copy has 6" in told.reason


@pytest.mark.usefixtures("pushed")
async def test_deletions_and_repeated_changes_in_a_fragment_leave_the_copy_in_step(
    source: SmallSource, destination: Destination, pushing: Pushing
) -> None:
    source.put("r1", b"once")
    source.put("r1", b"twice")
    source.delete("r2")
    source.put("r3", b"for a moment")
    source.delete("r3")
    await pushing.changes(5)
    await pushing.heartbeat()
    await until_in_step(destination)
    assert destination.equals_source()
    assert audits(destination) == [True]


def tamper(destination: Destination, *statements: str) -> None:
    file = destination.folder.with_name("mirror.rsnotify") / "state.sqlite"
    with closing(sqlite3.connect(file)) as state:
        for statement in statements:
            state.execute(statement)
        state.commit()


@pytest.mark.parametrize(
    "damage",
    [
        "DELETE FROM resources WHERE uri LIKE '%r1'",
        "UPDATE resources SET hash = 'sha-256:' || hex(zeroblob(32)) WHERE uri LIKE '%r1'",
        "UPDATE resources SET uri = uri || 'x' WHERE uri LIKE '%r1'",
    ],
)
async def test_a_damaged_state_is_repaired_from_the_resource_list(
    source: SmallSource, destination: Destination, pushing: Pushing, damage: str
) -> None:
    await destination.catch_up()
    tamper(destination, damage, "DELETE FROM facts WHERE name = 'sum'")
    async with following(destination) as subscriber:
        await beats_until_in_step(subscriber, pushing)
        assert destination.equals_source()
    assert audits(destination)[-1] is True
    assert source.gets[path_of("r1")] == 2


def reached(until: Instant, status: Status) -> bool:
    return status.through is not None and status.through >= until


async def beats_until_in_step(subscriber: Subscriber, pushing: Pushing) -> None:
    """Send a heartbeat whenever the last one was received."""
    async with asyncio.timeout(PATIENCE):
        while subscriber.status.in_step is not True:
            until = await pushing.heartbeat()
            assert await subscriber.until(partial(reached, until))


async def test_a_wrong_sum_is_computed_again_and_nothing_is_fetched(
    source: SmallSource, destination: Destination, pushing: Pushing
) -> None:
    await destination.catch_up()
    wrong = f"""UPDATE facts SET value = '"5 0 {"0" * 32}"' WHERE name = 'sum'"""
    tamper(destination, wrong)
    before = sum(source.gets[path_of(f"r{n}")] for n in range(5))
    async with following(destination) as subscriber:
        await beats_until_in_step(subscriber, pushing)
    assert sum(source.gets[path_of(f"r{n}")] for n in range(5)) == before


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"selection": Selection(only=("r1",))}, "only a selection of the set is followed"),
        ({"prefer": "text/turtle"}, "the copy has alternates instead of resources"),
    ],
)
async def test_a_part_of_the_set_is_not_compared_and_this_is_reported_once(
    source: SmallSource,
    destination: Destination,
    pushing: Pushing,
    caplog: pytest.LogCaptureFixture,
    options: dict[str, Any],
    reason: str,
) -> None:
    caplog.set_level(logging.INFO)
    async with following(destination, **options) as subscriber:
        for _ in range(3):
            await pushing.heartbeat()
        await destination.until(lambda: subscriber.status.difference == reason)
        assert subscriber.status.in_step is None
        source.put("r1", b"after all heartbeats")
        await pushing.changes(1)
        await destination.until(lambda: destination.files()["r1"] == b"after all heartbeats")
    (record,) = [each for each in caplog.records if reason in each.getMessage()]
    assert record.levelno == logging.INFO  # it is what the user asked for
