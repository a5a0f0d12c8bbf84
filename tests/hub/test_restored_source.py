"""A Source that was restored from a backup, and publishes to a hub that knows more than it does."""

from __future__ import annotations

import asyncio
import logging
from functools import partial

import pytest

from rsnotify.format.datetimes import format_datetime
from rsnotify.format.model import Capability
from rsnotify_hub.topic_log import TopicLogs
from tests.hub.helpers import TOPIC, Client, at, chain, fragment, heard, seconds_of
from tests.hub.storing import kept, made, publish


async def memory(hub: Client, since: float) -> tuple[int, list[float]]:
    """Return what the change memory answers, and the seconds of its changes."""
    query = {"topic": TOPIC, "since": format_datetime(at(since))}
    async with hub.session.get(hub.url + "topics", params=query) as answer:
        body = await answer.read()
        return answer.status, seconds_of(body) if answer.status == 200 else []


@pytest.mark.parametrize("lost", [fragment(1, 5), fragment(1, until=5), fragment(1, 2, 5)])
async def test_changes_that_a_restored_source_lost_are_not_delivered(
    hub: Client, lost: bytes, caplog: pytest.LogCaptureFixture
):
    await hub.accepted(*chain(3))
    with caplog.at_level(logging.WARNING):
        await hub.accepted(lost)
    assert "has lost changes" in caplog.text
    assert (await memory(hub, 0))[0] == 410
    assert await memory(hub, 1) == (200, seconds_of(lost))
    socket = await hub.listen(0)
    gap = await socket.receive_json()
    assert (gap["type"], gap["from"]) == ("gap", format_datetime(at(1)))
    assert seconds_of(await socket.receive_str()) == seconds_of(lost)


async def test_a_contradiction_is_found_behind_fragments_that_extend_the_log(topics: TopicLogs):
    await publish(topics, *[made(n, n + 1) for n in range(3)])
    later = [made(3, 4), made(1, 5)]
    await asyncio.gather(*[topics.publish(TOPIC, each) for each in later])
    assert await kept(topics) == later


async def test_notices_about_documents_that_a_restored_source_lost_are_deleted(hub: Client):
    framework = partial(fragment, capability=Capability.FRAMEWORK_NOTIFICATION)
    await hub.accepted(framework(0, 1), framework(1, 2), framework(1, 5))
    assert (await memory(hub, 0))[0] == 410


async def test_changes_of_one_second_may_be_published_one_by_one(hub: Client):
    other = fragment(2, 3).replace(b"data/3", b"data/another")
    await hub.accepted(fragment(1, 2), fragment(2, 3), other)
    assert await memory(hub, 1) == (200, [2, 3, 3])


@pytest.mark.parametrize(
    "again",
    [
        [fragment(1, 2, 3, 4)],
        [fragment(1, 2), fragment(2, 3), fragment(3, 4)],
        [fragment(2, 3, 4)],
        [fragment(3, until=3.5), fragment(3, 4)],
        [fragment(3, 4), fragment(0, 1, until=1.5)],
    ],
)
async def test_a_repeated_fragment_is_no_contradiction(hub: Client, again: list[bytes]):
    await hub.accepted(*chain(3))
    await hub.accepted(*again)
    assert await memory(hub, 0) == (200, [1, 2, 3, 4])
    socket = await hub.listen(since=0)
    assert sorted(set(await heard(socket, 4))) == [1, 2, 3, 4]
