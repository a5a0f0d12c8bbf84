"""What a set has published, over HTTP."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from datetime import datetime

from aiohttp import ClientSession

from rsnotify.format.model import Document, Resource
from rsnotify.format.reader import read_document
from tests.waiting import PATIENCE

#: The lastmod of each resource of some sets, by the names of the sets.
Sets = dict[str, dict[str, datetime | None]]


async def read(session: ClientSession, url: str) -> Document:
    async with session.get(url) as answer:
        answer.raise_for_status()
        return read_document(await answer.read())


async def changes_of(session: ClientSession, url: str) -> list[Resource]:
    """Return all changes that a set has published, in their order."""
    # The open list first: what is closed meanwhile is in the archive then.
    newest = await read(session, url + "changelist.xml")
    closed = [
        await read(session, entry.uri)
        for entry in (await read(session, url + "changelist-archive.xml")).resources
    ]
    found = {one.datetime: one for each in (*closed, newest) for one in each.resources}
    return [found[at] for at in sorted(at for at in found if at is not None)]


def replayed(changes: list[Resource]) -> dict[str, datetime | None]:
    """Return the lastmod of each resource after all changes; none of them may be invented."""
    present: dict[str, datetime | None] = {}
    for change in changes:
        if change.change == "deleted":
            assert change.uri in present
            del present[change.uri]
        else:
            assert (change.change == "created") == (change.uri not in present)
            present[change.uri] = change.lastmod
    return present


async def listed(session: ClientSession, url: str) -> set[str]:
    return {entry.uri for entry in (await read(session, url)).resources}


async def until_replayed(
    url: str, names: Sequence[str], are_right: Callable[[Sets], bool], *, seconds: float = PATIENCE
) -> Sets:
    """Wait until the changes of some sets lead to what they should, and their lists say the same.

    Args:
        url: The base URL of the gateway.
        names: The sets.
        are_right: Whether the sets have what they should.
        seconds: How long that may take.
    """
    found: Sets = {}
    async with ClientSession() as session, asyncio.timeout(seconds):
        while not are_right(found):
            await asyncio.sleep(0.1)
            for name in names:
                async with session.get(f"{url}{name}/changelist.xml") as answer:
                    if answer.status == 200:
                        found[name] = replayed(await changes_of(session, f"{url}{name}/"))
            print({name: len(each) for name, each in found.items()})
        # The next Resource List says the same as all changes together.
        for name, each in found.items():
            while await listed(session, f"{url}{name}/resourcelist.xml") != set(each):  # noqa: ASYNC110
                await asyncio.sleep(0.1)
    return found
