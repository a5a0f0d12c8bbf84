"""`GET /ws`: subscribing to a selection from a topic."""

from __future__ import annotations

import asyncio
import random
from typing import Any

import aiohttp
import pytest

from rsnotify.format.datetimes import format_datetime
from rsnotify_hub import filtering as cutting
from rsnotify_hub import filtering as sieve
from rsnotify_hub.admin.schema_conversion import topic_id
from rsnotify_hub.filtering import FilterCache
from rsnotify_hub.store.interface import LogEntry
from rsnotify_hub.topic_log import TopicLogs
from tests.hub.conftest import RunHub
from tests.hub.helpers import TOPIC, Callback, Client, at, fragment, heard, send
from tests.hub.selections import BASE, MAPS, named, span

TOKEN = "t" * 16
#: A hub behind a proxy.
PROXIED: dict[str, Any] = {
    "trusted_proxies": ["127.0.0.1"],
    "publishers": [{"token": TOKEN, "topics": [TOPIC]}],
}


async def next_fragment(
    socket: aiohttp.ClientWebSocketResponse,
) -> tuple[float, float, list[float]]:
    return span(await socket.receive_str())


async def test_changes_outside_the_selection_are_not_sent_and_still_move_until(hub: Client):
    socket, said = await hub.subscribed(select=MAPS)
    assert said["select"] == MAPS
    await hub.accepted(named(0, maps_a=1, b=2), named(2, b=3))
    await hub.accepted(named(3, maps_c=4))
    assert await next_fragment(socket) == (0, 2, [1])
    assert (await next_fragment(socket))[1] == 3
    begin, until, seconds = await next_fragment(socket)
    assert (until, seconds) == (4, [4])
    assert begin <= 3


async def test_a_replay_too_large_to_filter_is_sent_whole_and_live_fragments_are_filtered(
    hub: Client, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(sieve, "_OLD_BYTES_PER_SECOND", 0)
    await hub.accepted(*(named(second, b=second + 1) for second in range(3)))
    socket, said = await hub.subscribed(0, select=MAPS)
    assert said["select"] == MAPS
    assert await heard(socket, 3) == [1, 2, 3]
    await hub.accepted(named(3, b=4, maps_a=5))
    assert (await next_fragment(socket))[2] == [5]


async def test_nothing_of_the_selection_is_missed_or_repeated(
    hub: Client, monkeypatch: pytest.MonkeyPatch
):
    total, chosen, lag = 150, random.Random(7), random.Random(7)
    left = FilterCache.filtered

    async def lagging(self: FilterCache, *args: Any, old: bool = False) -> list[LogEntry]:
        for _ in range(0 if old else lag.choice([0, 0, 10, 50])):
            await asyncio.sleep(0)  # lets the others in between
        return await left(self, *args, old=old)

    monkeypatch.setattr(FilterCache, "filtered", lagging)

    def body(second: int) -> bytes:
        name = "maps_a" if second % 3 == 0 else "b"
        if second % 50:
            return named(second, **{name: second + 1})
        # More than is read at once.
        return named(second, **{name: second + 1}) + b"\n" * 20_000

    async def publish() -> None:
        source = await hub.source()
        for second in range(total):
            await source.send_str(body(second).decode())
            if second % 7 == 0:
                await hub.get("healthz")  # lets the subscribers in between

    async def follow(start: int) -> tuple[int, list[float]]:
        if start:
            through = format_datetime(at(start))[:19]
            await hub.topics(lambda rows: bool(rows) and rows[0]["through"][:19] >= through)
        since = chosen.randint(0, start)
        socket, _ = await hub.subscribed(since, select=MAPS)
        reached, found = float(since), list[float]()
        while reached < total:
            begin, until, seconds = await next_fragment(socket)
            assert begin <= reached < until
            reached = until
            found += seconds
        return since, found

    async with asyncio.TaskGroup() as group:
        group.create_task(publish())
        follower = [group.create_task(follow(start)) for start in range(0, total - 50, 10)]
    for task in follower:
        since, seconds = task.result()
        assert seconds == [n + 1 for n in range(0, total, 3) if n + 1 > since]


@pytest.fixture
def lagging(monkeypatch: pytest.MonkeyPatch) -> asyncio.Event:
    """New fragments are filtered and sent only once this event is set."""
    may, left = asyncio.Event(), FilterCache.filtered

    async def wait(self: FilterCache, *args: Any, old: bool = False) -> list[LogEntry]:
        if not old:
            await may.wait()
        return await left(self, *args, old=old)

    monkeypatch.setattr(FilterCache, "filtered", wait)
    return may


@pytest.mark.parametrize("since", [None, 0, 1, 2, 3])
async def test_a_client_that_joins_a_group_that_is_behind_gets_nothing_before_its_instant(
    hub: Client, lagging: asyncio.Event, since: float | None
):
    first, _ = await hub.subscribed(select=MAPS)
    await hub.accepted(*(named(second, maps_a=second + 1) for second in range(3)))
    late, said = await hub.subscribed(since, select=MAPS)
    assert said["through"] == format_datetime(at(3))
    lagging.set()
    await hub.accepted(named(3, maps_a=4))
    assert await heard(late, 4) == [n for n in (1, 2, 3, 4) if n > (3 if since is None else since)]
    assert await heard(first, 4) == [1, 2, 3, 4]


@pytest.mark.parametrize("since", [None, 1, 2, 3])
async def test_a_client_that_joins_while_a_fragment_is_held_back_gets_nothing_before_its_instant(
    hub: Client, monkeypatch: pytest.MonkeyPatch, since: float | None
):
    monkeypatch.setattr(cutting, "QUIET_SECONDS", 1_000.0)
    first, _ = await hub.subscribed(select=MAPS)
    await hub.accepted(named(0, b=1))
    assert await next_fragment(first) == (0, 1, [])
    await hub.accepted(*(named(second, b=second + 1) for second in (1, 2)))
    late, _ = await hub.subscribed(since, select=MAPS)
    # It is too large to be joined with the fragment that was held back.
    await hub.accepted(named(3, maps_a=4) + b"\n" * 20_000)
    reached = 3.0 if since is None else since
    while reached < 4:
        begin, until, _ = await next_fragment(late)
        assert begin == reached
        reached = until
    assert [await next_fragment(first) for _ in range(2)] == [(1, 3, []), (3, 4, [4])]


async def test_a_client_that_leaves_a_group_that_is_behind_leaves_nothing_behind(
    hub: Client, lagging: asyncio.Event
):
    first, _ = await hub.subscribed(select=MAPS)
    await hub.accepted(named(0, maps_a=1))
    late, _ = await hub.subscribed(1, select=MAPS)
    await late.close()
    await hub.topics(lambda rows: rows[0]["websockets"] == 1)
    lagging.set()
    await hub.accepted(named(1, maps_a=2))
    assert await heard(first, 2) == [1, 2]


async def test_a_flood_outside_the_selection_causes_few_frames(
    hub: Client, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(cutting, "QUIET_SECONDS", 1_000.0)
    socket, _ = await hub.subscribed(select=MAPS)
    source = await hub.source()
    await send(source, *(named(second, b=second + 1) for second in range(500)))
    begin, first, seconds = await next_fragment(socket)
    assert (begin, seconds) == (0, [])
    await source.send_str(named(500, maps_a=501).decode())
    begin, until, seconds = await next_fragment(socket)
    assert (begin, until, seconds) == (first, 501, [501])


async def test_a_fragment_that_is_held_back_is_sent_even_if_none_follows(
    hub: Client, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(cutting, "QUIET_SECONDS", 0.1)
    socket, _ = await hub.subscribed(select=MAPS)
    await hub.accepted(*(named(second, b=second + 1) for second in range(5)))
    reached = 0.0
    while reached < 5:
        begin, until, seconds = await next_fragment(socket)
        assert (begin, seconds) == (reached, [])
        reached = until


@pytest.mark.parametrize("nothing", [None, {}, {"types": ["*/*"]}])
async def test_a_subscriber_with_an_empty_selection_gets_everything(hub: Client, nothing: Any):
    socket, said = await hub.subscribed(select=nothing)
    assert "select" not in said
    await hub.accepted(fragment(0, 1))
    assert (await socket.receive_str()).encode() == fragment(0, 1)


async def test_a_selection_beyond_the_limit_gets_everything_until_another_has_ended(
    run_hub: RunHub,
):
    async with run_hub(max_selections=1) as hub:
        first, said = await hub.subscribed(select=MAPS)
        assert said["select"] == MAPS
        same, said = await hub.subscribed(select=MAPS)
        assert said["select"] == MAPS
        other = {"prefixes": [BASE + "b"]}
        socket, said = await hub.subscribed(select=other)
        assert "select" not in said
        await hub.accepted(named(0, maps_a=1))
        assert await heard(socket, 1) == [1]
        await first.close()
        await same.close()
        await hub.topics(lambda rows: rows[0]["websockets"] == 1)
        _, said = await hub.subscribed(select=other)
        assert said["select"] == other


async def of_client(hub: Client, client: int, part: str) -> aiohttp.ClientWebSocketResponse | None:
    """Request a selection; return None if everything is sent instead."""
    address = {"X-Forwarded-For": f"192.0.2.{client}"}
    socket, said = await hub.subscribed(select={"prefixes": [BASE + part]}, **address)
    return socket if "select" in said else None


async def test_no_client_can_use_up_the_selections_of_a_topic(run_hub: RunHub):
    async with run_hub(max_selections=7, **PROXIED) as hub:
        granted = [
            sum([await of_client(hub, client, f"{client}/{n}") is not None for n in range(8)])
            for client in (1, 2, 3, 4)
        ]
        assert granted == [4, 2, 1, 0]
        assert await of_client(hub, 4, "1/0"), "any client may join an existing group"


async def test_a_selection_counts_for_its_oldest_remaining_member(run_hub: RunHub):
    async with run_hub(max_selections=2, **PROXIED) as hub:
        status, _ = await hub.publish(named(0, b=1), Authorization=f"Bearer {TOKEN}")
        assert status == 202
        first = await of_client(hub, 1, "maps/")
        assert await of_client(hub, 2, "maps/")
        await first.close()
        await hub.topics(lambda rows: rows[0]["websockets"] == 1)
        assert await of_client(hub, 2, "b") is None
        assert await of_client(hub, 1, "b")


@pytest.mark.parametrize(
    "select",
    [{"prefixes": ["maps/"]}, {"types": ["turtle"]}, {"changes": ["moved"]}, {"prefixes": "x"}, []],
)
async def test_an_invalid_selection_is_refused(hub: Client, select: Any):
    _, said = await hub.subscribed(select=select)
    assert (said["type"], said["code"]) == ("error", "bad-request")


async def test_the_audience_counts_subscribers_with_and_without_a_selection(
    hub: Client, callback: Callback
):
    await hub.accepted(fragment(0, 1))
    await hub.subscribe(callback)
    await hub.listen()
    _, said = await hub.subscribed(select=MAPS)
    assert said["audience"] == 3


async def test_a_selection_continues_after_its_log_was_deleted(hub: Client):
    socket, _ = await hub.subscribed(select=MAPS)
    await hub.accepted(named(0, maps_a=1))
    await hub.admin("DELETE", f"topics/{topic_id(TOPIC)}")
    await hub.accepted(named(1, maps_a=2))
    assert await heard(socket, 2) == [1, 2]


@pytest.mark.parametrize("select", [None, MAPS])
async def test_a_log_may_be_deleted_while_it_is_replayed(
    hub: Client, monkeypatch: pytest.MonkeyPatch, select: Any
):
    may, read = asyncio.Event(), TopicLogs.read

    async def wait(self: TopicLogs, *args: Any, **options: Any) -> list[LogEntry]:
        await may.wait()
        return await read(self, *args, **options)

    monkeypatch.setattr(TopicLogs, "read", wait)
    await hub.accepted(named(0, maps_a=1))
    socket, _ = await hub.subscribed(0, select=select)
    await hub.admin("DELETE", f"topics/{topic_id(TOPIC)}")
    may.set()
    await hub.accepted(named(1, maps_a=2))
    assert await heard(socket, 2) == [2]


async def test_a_large_fragment_does_not_overtake_or_fall_behind(hub: Client):
    socket, _ = await hub.subscribed(select=MAPS)
    source = await hub.source()
    for second in range(0, 40, 2):
        many = {f"maps_a{n}": second + 1 for n in range(300)} | {"b": second + 1}
        await source.send_str(named(second, **many).decode())
        await source.send_str(named(second + 1, maps_b=second + 2, c=second + 2).decode())
    found = await heard(socket, 40)
    assert found == [second + extra for second in range(0, 40, 2) for extra in [1] * 300 + [2]]
