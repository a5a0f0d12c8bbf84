"""Helpers for a Source, its hubs and a Destination."""

from __future__ import annotations

from contextlib import AbstractAsyncContextManager

from msgspec.structs import replace

from rsnotify.format.datetimes import MICROSECOND
from rsnotify.format.hashes import SetDigest
from rsnotify.format.reader import read_document
from rsnotify.format.writer import write_document
from rsnotify_subscriber import Subscriber
from tests.subscriber.destination import PACE, Destination
from tests.subscriber.hub import SmallHub
from tests.subscriber.source import SmallSource

#: Polls so rare that only push, or what follows from it, can bring a copy in step.
RARE = replace(PACE, poll=600, poll_with_push=600)
LIST = "/data/changelist.xml"


def followed(
    destination: Destination, **options: object
) -> AbstractAsyncContextManager[Subscriber]:
    """Follow; enter once the copy is level and a hub is joined."""
    return destination.following(**{"pace": RARE} | options)


async def beat(source: SmallSource, hub: SmallHub) -> None:
    until = source.last + MICROSECOND
    await hub.publish(source.fragment((), source.last, until), source.last, until)


async def sum_up(source: SmallSource, hub: SmallHub) -> None:
    """Push the last change, and what the set is, as only a Source does that has heartbeats."""
    fragment, from_, until = source.latest()
    digest = SetDigest(5, "0" * 32, hash="other")
    summed = replace(read_document(fragment), attributes=digest.attributes)
    await hub.publish(write_document(summed), from_, until)
