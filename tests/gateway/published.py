"""What a set has published, over HTTP."""

from __future__ import annotations

from datetime import datetime

from aiohttp import ClientSession

from rsnotify.format.model import Document, Resource
from rsnotify.format.reader import read_document


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
