"""A server of events that resumes after the last id that a client has, and can be restarted."""

from __future__ import annotations

import asyncio
import json
from contextlib import suppress
from datetime import datetime
from typing import Any

from aiohttp import web

from rsnotify.format.datetimes import format_datetime
from rsnotify_gateway.adapters.event_streams import EventMapping
from tests.subscriber.source import Server


class EventServer(Server):
    """Sends everything from the beginning to a client without an id.

    Attributes:
        log: The data of all events; the id of an event is its number.
        has_ids: Whether the events have ids.
        resumed: The id that each client had.
    """

    def __init__(self) -> None:
        app = web.Application()
        app.router.add_get("/stream", self._answer)
        super().__init__(app)
        self.url = f"http://127.0.0.1:{self.port}/stream"
        self.log: list[bytes] = []
        self.has_ids = True
        self.resumed: list[str | None] = []
        self._more = asyncio.Condition()

    async def send(self, *events: Any) -> None:
        async with self._more:
            self.log += [json.dumps(event).encode() for event in events]
            self._more.notify_all()

    async def _answer(self, request: web.Request) -> web.StreamResponse:
        last = request.headers.get("Last-Event-ID")
        self.resumed.append(last)
        sent = 0 if last is None else int(last) + 1
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream; charset=utf-8"})
        await response.prepare(request)
        await response.write(b"retry: 10\n: ok\n\n")
        while True:
            async with self._more:
                while len(self.log) <= sent:
                    await self._more.wait()
            found, sent = range(sent, len(self.log)), len(self.log)
            with suppress(ConnectionError):  # then this is cancelled
                await response.write(b"".join(self._event(n, self.log[n]) for n in found))

    def _event(self, number: int, data: bytes) -> bytes:
        return (b"id: %d\n" % number if self.has_ids else b"") + b"data: %s\n\n" % data


#: What says where the events of these tests state a change.
MAPPING: dict[str, Any] = {
    "uri": "/meta/uri",
    "datetime": "/meta/dt",
    "change": "/kind",
    "deleted": ["delete"],
    "only": {"/wiki": "one"},
}


EVENT = EventMapping(**{**MAPPING, "deleted": ("delete",)})


def change(uri: str, at: datetime, kind: str = "edit", **more: Any) -> dict[str, Any]:
    """Return an event in the form of Wikimedia's."""
    meta = {"uri": uri, "dt": format_datetime(at)}
    return {"meta": meta, "kind": kind, "wiki": "one", "rev": len(uri), **more}
