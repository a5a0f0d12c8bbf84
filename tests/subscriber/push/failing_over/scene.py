"""Helpers for a Source, its hubs and a Destination."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from msgspec.structs import replace

from rsnotify.format.datetimes import MICROSECOND
from rsnotify.format.digest import SetDigest
from rsnotify.format.reader import read_document
from rsnotify.format.writer import write_document
from rsnotify_subscriber import PushState, Subscriber
from tests.subscriber.destination import PACE, Destination
from tests.subscriber.hub import SmallHub
from tests.subscriber.source import SmallSource

#: Polls so rare that only push, or what follows from it, can bring a copy in step.
RARE = replace(PACE, poll=600, poll_with_push=600)
LIST = "/data/changelist.xml"


@asynccontextmanager
async def followed(destination: Destination, **options: object) -> AsyncIterator[Subscriber]:
    """Follow; enter once the baseline is complete and a connection is up."""
    async with destination.subscriber(**{"pace": RARE} | options) as subscriber:
        await destination.until(lambda: subscriber.status.level)
        await destination.until(lambda: subscriber.status.push is PushState.UP)
        yield subscriber


async def until_by(destination: Destination, *hubs: str) -> None:
    await destination.until(lambda: destination.current.status.way == hubs)


async def push(source: SmallSource, *hubs: SmallHub) -> None:
    """Push the last change through each of these hubs."""
    before, until = source.changes[-2].changed_at, source.changes[-1].changed_at
    assert before is not None
    assert until is not None
    for hub in hubs:
        await hub.publish(source.fragment(source.changes[-1:], before), before, until)


async def beat(source: SmallSource, hub: SmallHub) -> None:
    """Push a heartbeat."""
    last = source.changes[-1].changed_at
    assert last is not None
    until = last + MICROSECOND
    await hub.publish(source.fragment((), last, until), last, until)


async def sum_up(source: SmallSource, hub: SmallHub) -> None:
    """Push the last change, and what the set is, as only a Source does that has heartbeats."""
    before, until = source.changes[-2].changed_at, source.changes[-1].changed_at
    assert before is not None
    assert until is not None
    change = read_document(source.fragment(source.changes[-1:], before))
    summed = replace(change, attributes=SetDigest(5, "0" * 32, hash="other").attributes)
    await hub.publish(write_document(summed), before, until)
