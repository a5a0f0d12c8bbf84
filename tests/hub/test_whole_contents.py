"""Whole contents in a log: what gives way to what, and what may not stand beside it."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from pathlib import Path

from rsnotify_hub.fragments import Fragment
from rsnotify_hub.intake import read_content
from rsnotify_hub.store.interface import LogRetention
from rsnotify_hub.topic_log import TopicLogs
from tests.hub.helpers import TOPIC, Clock, at
from tests.hub.storing import Listener, kept, logs


def content(body: bytes, second: float = 100) -> Fragment:
    return read_content(body, content_type="text/plain", received=at(second))


async def test_of_concurrent_whole_contents_only_the_last_is_kept(
    topics: TopicLogs, listener: Listener
):
    bodies = [b"%d" % number for number in range(50)]
    await asyncio.gather(*[topics.publish(TOPIC, content(body)) for body in bodies])
    assert listener.fragments[-1].body == b"49"
    assert len(listener.fragments) < 5


async def test_whole_contents_are_in_order_of_arrival_whatever_the_clock(
    topics: TopicLogs, listener: Listener
):
    for body, second in ((b"one", 9), (b"two", 9), (b"three", 1)):
        await topics.publish(TOPIC, content(body, second))
    times = [each.until for each in listener.fragments]
    assert times == [at(9), at(9.000001), at(9.000002)]
    assert [each.body for each in await kept(topics, since=9)] == [b"three"]


async def test_a_whole_content_is_kept_beyond_the_retention_of_changes(
    tmp_path: Path, clock: Clock
):
    async with logs(tmp_path, clock, LogRetention(size=1, age=timedelta(hours=1))) as (topics, _):
        await topics.publish(TOPIC, content(b"one"))
        clock.advance(days=9)
        await topics.trim()
        assert [each.body for each in await kept(topics)] == [b"one"]
