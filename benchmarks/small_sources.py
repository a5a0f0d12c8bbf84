"""Many small Sources on one port for `fleet.py` and `shared_fleet.py`, in memory.

    python small_sources.py PORT HUB COUNT

Each has a Resource List, a Change List and a channel to the hub; without one, for an empty HUB.
`POST /change` changes a resource in each, and `GET /seen` returns all contents, and how many
requests each Source had.
"""

from __future__ import annotations

import hashlib
import sys
from datetime import UTC, datetime

import aiohttp
from aiohttp import web

from rsnotify.format.datetimes import Instant
from rsnotify.format.links import format_links
from rsnotify.format.model import Capability, ChangeType, Document, Link, Rel, Resource
from rsnotify.format.writer import write_document

RESOURCES = 5


class SmallSet:
    """A set of resources.

    Args:
        base: The base of its URIs.
        hub: The hub for publishing and for subscribers.
    """

    def __init__(self, base: str, hub: str) -> None:
        self._base = base
        self._hub = hub
        self.requests = 0
        self._contents = {f"r{n}": f"{n} of {base}".encode() for n in range(RESOURCES)}
        self._began = self._last = datetime.now(UTC)
        self._changes: list[Resource] = []

    @property
    def contents(self) -> dict[str, str]:
        """The content of each resource, by its URI."""
        return {self._base + name: content.decode() for name, content in self._contents.items()}

    def _entry(self, name: str, at: Instant | None = None) -> Resource:
        content = self._contents[name]
        digest = f"sha-256:{hashlib.sha256(content).hexdigest()}"
        change = None if at is None else ChangeType.UPDATED
        return Resource(
            self._base + name, hash=digest, length=len(content), change=change, datetime=at
        )

    def change(self) -> bytes:
        """Change a resource, and return the fragment that says so."""
        before, self._last = self._last, datetime.now(UTC)
        self._contents["r0"] = f"changed at {self._last}".encode()
        self._changes.append(self._entry("r0", self._last))
        entries = (self._changes[-1],)
        return self._written(
            Capability.CHANGE_NOTIFICATION, entries, from_=before, until=self._last
        )

    def answer(self, name: str) -> bytes | None:
        """Return the content with a name; None if there is none."""
        match name:
            case "capabilitylist.xml":
                return self._written(Capability.CAPABILITY_LIST, self._offered())
            case "resourcelist.xml":
                entries = tuple(map(self._entry, self._contents))
                return self._written(Capability.RESOURCE_LIST, entries, at=datetime.now(UTC))
            case "changelist.xml":
                entries = tuple(self._changes)
                return self._written(Capability.CHANGE_LIST, entries, from_=self._began)
        return self._contents.get(name)

    def _offered(self) -> tuple[Resource, ...]:
        lists = (
            Resource(self._base + "resourcelist.xml", capability=Capability.RESOURCE_LIST),
            Resource(self._base + "changelist.xml", capability=Capability.CHANGE_LIST),
        )
        if not self._hub:
            return lists
        hubs = (Link(Rel.HUB, self._hub.replace("http", "ws", 1) + "ws"),)
        channel = Resource(self.channel, capability=Capability.CHANGE_NOTIFICATION, links=hubs)
        return (*lists, channel)

    @property
    def channel(self) -> str:
        return self._base + "channel"

    def _written(
        self, capability: Capability, entries: tuple[Resource, ...], **instants: Instant
    ) -> bytes:
        up = (Link(Rel.UP, self._base + "capabilitylist.xml"),)
        links = () if capability is Capability.CAPABILITY_LIST else up
        return write_document(Document(capability, entries, links=links, **instants))


def application(sets: dict[str, SmallSet], hub: str) -> web.Application:
    async def answer(request: web.Request) -> web.Response:
        found = sets.get(request.match_info["set"])
        body = None
        if found is not None:
            found.requests += 1
            body = found.answer(request.match_info["name"])
        return web.Response(status=404) if body is None else web.Response(body=body)

    async def change(request: web.Request) -> web.Response:
        async with aiohttp.ClientSession() as session:
            for each in sets.values():
                links = format_links([(Rel.SELF, each.channel), (Rel.HUB, hub)])
                headers = {"Content-Type": "application/xml", "Link": links}
                fragment = each.change()
                if hub:
                    await session.post(hub + "websub", data=fragment, headers=headers)
        return web.Response()

    async def seen(request: web.Request) -> web.Response:
        contents = {uri: text for each in sets.values() for uri, text in each.contents.items()}
        requests = [each.requests for each in sets.values()]
        return web.json_response({"contents": contents, "requests": requests})

    app = web.Application()
    app.router.add_get("/seen", seen)
    app.router.add_get("/{set}/{name}", answer)
    app.router.add_post("/change", change)
    return app


if __name__ == "__main__":
    port, hub, count = int(sys.argv[1]), sys.argv[2], int(sys.argv[3])
    sets = {str(n): SmallSet(f"http://127.0.0.1:{port}/{n}/", hub) for n in range(count)}
    web.run_app(application(sets, hub), host="127.0.0.1", port=port, access_log=None, print=print)
