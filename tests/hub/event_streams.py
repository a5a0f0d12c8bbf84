"""Event streams as a browser reads them (WHATWG HTML §9.2.6)."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import aiohttp
from msgspec import Struct

from rsnotify.format.datetimes import format_datetime
from tests.hub.helpers import TOPIC, Client, at, seconds_of
from tests.waiting import PATIENCE


class Event(Struct, frozen=True):
    type: str
    id: str | None
    data: str

    @property
    def json(self) -> Any:
        return json.loads(self.data)


class EventReader:
    def __init__(self, response: aiohttp.ClientResponse) -> None:
        self.response = response
        self.comments = 0
        self.retry: int | None = None
        self._buffer = b""

    async def line(self) -> bytes | None:
        """Return the next line, of any length; None at the end, whatever is before it."""
        while b"\n" not in self._buffer:
            part = await self.response.content.readany()
            if not part:
                return None
            self._buffer += part
        line, _, self._buffer = self._buffer.partition(b"\n")
        self.comments += line.startswith(b":")
        return line

    async def next(self) -> Event | None:
        """Return the next event; None at the end of the stream."""
        fields: dict[str, str] = {}
        data: list[str] = []
        async with asyncio.timeout(PATIENCE):
            while (line := await self.line()) is not None:
                text = line.decode()
                name, _, value = text.partition(":")
                value = value.removeprefix(" ")
                if text == "":
                    if data:
                        event = fields.get("event", "message")
                        return Event(event, fields.get("id"), "\n".join(data))
                    fields = {}
                elif name == "data":
                    data.append(value)
                elif name == "retry":
                    self.retry = int(value)
                else:
                    fields[name] = value
        return None

    async def expect(self, kind: str = "message") -> Event:
        event = await self.next()
        assert event is not None, "the stream has ended"
        assert event.type == kind, event
        return event

    async def heard(self, until: float) -> list[float]:
        """Return the seconds of all changes that arrive in XML, up to the one at `until`."""
        found: list[float] = []
        while not found or found[-1] != until:
            found += seconds_of((await self.expect()).data)
        return found


@asynccontextmanager
async def events(
    hub: Client, since: float | None = None, *, headers: dict[str, str] | None = None, **query: str
) -> AsyncIterator[EventReader]:
    """Open an event stream, before the event `subscribed`."""
    query = {"topic": TOPIC, **query}
    if since is not None:
        query["since"] = format_datetime(at(since))
    async with hub.session.get(hub.url + "events", params=query, headers=headers) as response:
        assert response.status == 200, await response.text()
        yield EventReader(response)


@asynccontextmanager
async def live(
    hub: Client, since: float | None = None, **options: Any
) -> AsyncIterator[EventReader]:
    """Open an event stream, after the event `subscribed`."""
    async with events(hub, since, **options) as reader:
        await reader.expect("subscribed")
        yield reader
