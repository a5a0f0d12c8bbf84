"""A gateway's watch of one origin, whose checks a test makes itself."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any, Self

from rsnotify.format.model import Resource
from rsnotify_gateway import Gateway, OriginSettings
from rsnotify_publisher.journal import Journal
from tests.waiting import until

BASE = "http://gateway.example/"
CONTACT = "mailto:operator@gateway.example"
QUICK: dict[str, Any] = {"poll": 0.05, "poll_most": 0.1, "delay": 0.0}


def origin(type_: str, url: str, **settings: Any) -> OriginSettings:
    return OriginSettings(name="one", type=type_, url=url, **{**QUICK, **settings})  # type: ignore[arg-type]


class Checking:
    """Checks one origin when a test wants it, and shows the changes; can be made again."""

    def __init__(self, folder: Path, settings: OriginSettings) -> None:
        self.gateway = Gateway(folder, BASE, [settings], contact=CONTACT)
        (self.watch,) = self.gateway.watches
        self._through = 0

    async def __aenter__(self) -> Self:
        with self.journal() as journal:
            self._through = journal.state().last_change
        self._stack = AsyncExitStack()
        gateway = self.gateway
        for each in (gateway._connections, gateway._streams, *gateway._clients):
            await self._stack.enter_async_context(each)
        return self

    async def __aexit__(self, *exception: object) -> None:
        await self._stack.aclose()

    def journal(self) -> Journal:
        return self.watch.publisher.source.open_journal()

    async def check(self) -> dict[str, str]:
        """Check the origin, and return the type of each change by URI."""
        await self.watch.check()
        return self.changes()

    def compare_next(self) -> None:
        """Make the comparison with the whole set due at the next check."""
        self.watch.adapter._compare = 1e-6  # type: ignore[attr-defined]

    def changes(self, *, once: bool = True) -> dict[str, str]:
        """Return the type of the last change of each resource since this was called last.

        Each is recorded `once`, unless a check was given up before it acknowledged what it read.
        """
        with self.journal() as journal:
            found = journal.changes(self._through)
            self._through = journal.state().last_change
        if once:
            assert len({change.uri for change in found}) == len(found), "a change is recorded once"
        return {change.uri: str(change.change) for change in found}

    def changes_since_now(self) -> None:
        """Skip the changes until now."""
        with self.journal() as journal:
            self._through = journal.state().last_change

    def resources(self) -> dict[str, Resource]:
        with self.journal() as journal:
            return {resource.uri: resource for resource in journal.resources()}

    @property
    def limits(self) -> str:
        terms = self.watch.adapter.terms()
        return "\n".join([terms.deletions, *terms.limits])


class Reading(Checking):
    """Reads a stream, which does not end, until there are some resources."""

    async def until_there(self, *uris: str) -> dict[str, str]:
        async def reach() -> None:
            await until(lambda: set(self.resources()) == set(uris))

        check = asyncio.create_task(self.watch.check())
        reached = asyncio.create_task(reach())
        await asyncio.wait({check, reached}, return_when=asyncio.FIRST_COMPLETED)
        for task in (check, reached):
            task.cancel()
        await asyncio.wait({check, reached})
        if not check.cancelled():
            check.result()
        return self.changes(once=False)
