"""A small Source whose documents are always fresh, and which can be made to misbehave."""

from __future__ import annotations

import asyncio
import hashlib
from base64 import b64encode
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from datetime import UTC, datetime
from typing import Any, Self
from urllib.parse import quote

from aiohttp import web
from msgspec.structs import replace

from rsnotify.format.datetimes import MICROSECOND, Instant
from rsnotify.format.model import Capability, ChangeType, Document, Link, Rel, Resource
from rsnotify.format.writer import write_document
from tests.ports import port_for

Answer = Callable[[web.Request], Awaitable[web.StreamResponse]]
#: Seconds after which a test gives up waiting, also on a machine with much else to do.
PATIENCE = 120.0


class Server:
    """An aiohttp application on a free port of loopback, which can stop and come back."""

    def __init__(
        self, application: web.Application, host: str = "127.0.0.1", port: int = 0
    ) -> None:
        self._application = application
        self._runner: web.AppRunner | None = None
        self._host = host
        self.port = port_for(self, host, port)

    async def start(self) -> None:
        self._runner = web.AppRunner(self._application, shutdown_timeout=0.1)
        await self._runner.setup()
        site = web.TCPSite(self._runner, self._host, self.port, reuse_address=True)
        await site.start()

    async def stop(self) -> None:
        if self._runner is not None:
            await self._runner.cleanup()
            self._runner = None

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.stop()


def sha256(content: bytes) -> str:
    return f"sha-256:{hashlib.sha256(content).hexdigest()}"


class SmallSource:
    """Everything below `base`; the resources lie in the same folder as the documents.

    Set `answers[path]` to answer a path otherwise, `per_list` for a Resource List Index.
    """

    def __init__(self) -> None:
        self.contents: dict[str, bytes] = {}
        self.described: dict[str, Resource] = {}
        self.changes: list[Resource] = []
        self.closed: list[Document] = []
        self.begins = _now()
        self.last = self._dated = self.begins
        self.per_list: int | None = None
        self.listed_at: Instant | None = None
        self.hubs: list[str] = []
        self.archive = True
        self.answers: dict[str, Answer] = {}
        self.gets: Counter[str] = Counter()
        self._requested = asyncio.Event()
        application = web.Application(middlewares=[self._count])
        application.router.add_get(r"/{path:[\s\S]*}", self.answer)
        self.server = Server(application)

    async def __aenter__(self) -> Self:
        await self.server.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.server.stop()

    @property
    def site(self) -> str:
        return f"http://127.0.0.1:{self.server.port}/"

    @property
    def base(self) -> str:
        return self.site + "data/"

    @property
    def url(self) -> str:
        return self.base + "capabilitylist.xml"

    # Changes

    def put(self, name: str, content: bytes, **fields: Any) -> Resource:
        """Create or update a resource."""
        change = ChangeType.UPDATED if name in self.contents else ChangeType.CREATED
        self.contents[name] = content
        return self._note(name, change, hash=sha256(content), length=len(content), **fields)

    def put_some(self, count: int = 5) -> None:
        """Create the resources r0, r1 and so on."""
        for n in range(count):
            self.put(f"r{n}", b"%d" % n)

    def put_inline(self, name: str, content: bytes) -> Resource:
        data = b64encode(content).decode()
        link = Link(Rel.DUPLICATE, f"data:application/octet-stream;base64,{data}")
        return self.put(name, content, links=(link,))

    def delete(self, name: str) -> Resource:
        del self.contents[name]
        return self._note(name, ChangeType.DELETED)

    def _note(self, name: str, change: ChangeType, **fields: Any) -> Resource:
        self.last = self._date()
        entry = Resource(self.base + name, change=change, datetime=self.last, **fields)
        self.changes.append(entry)
        self.described[name] = entry
        return entry

    def _date(self) -> Instant:
        """Return a datetime later than all before, also where the clock is put back."""
        self._dated = max(_now(), self._dated + MICROSECOND)
        return self._dated

    def list_only(self, *entries: Resource) -> None:
        """Publish a Resource List with these entries."""
        self.publish("resourcelist.xml", replace(self.resource_list(), resources=entries))

    def publish(self, name: str, document: Document, **options: Any) -> str:
        """Answer with this document below `base`, and return its URI."""
        self.answers["/data/" + name] = body(write_document(document), **options)
        return self.base + name

    def describe(self, *capability_lists: str, links: Sequence[Link] = (), below: str = "") -> None:
        """List these Capability Lists in the Source Description of the site, or of a folder."""
        kind = Capability.CAPABILITY_LIST
        listed = tuple(Resource(uri, capability=kind) for uri in capability_lists)
        description = Document(Capability.DESCRIPTION, listed, links=tuple(links))
        self.answers[f"/{below}.well-known/resourcesync"] = body(write_document(description))

    def rotate(self) -> None:
        """Close the open Change List, into the archive."""
        until = self.changes[-1].changed_at or self.last
        self.closed.append(replace(self.change_list(), until=until))
        self.changes = []
        self.begins = until

    def hold(self, path: str) -> asyncio.Event:
        """Hold requests for a path until the event is set."""
        gate = asyncio.Event()
        self.answers[path] = held_back(gate, self.own)
        return gate

    # Documents

    def change_list(self) -> Document:
        archive = (Link(Rel.ARCHIVES, self.base + "changelist-archive.xml"),)
        return Document(
            Capability.CHANGE_LIST,
            tuple(self.changes),
            from_=self.begins,
            links=(self.up(), *(archive if self.archive and self.closed else ())),
        )

    def fragment(self, changes: Sequence[Resource], from_: Instant, until: Any = None) -> bytes:
        until = until or (changes[-1].changed_at if changes else None)
        kind, links = Capability.CHANGE_NOTIFICATION, (self.up(),)
        return write_document(Document(kind, tuple(changes), from_=from_, until=until, links=links))

    def latest(self, count: int = 1) -> tuple[bytes, Instant, Instant]:
        """Return the last changes as one fragment, and its `from` and `until`."""
        earlier = self.changes[:-count]
        from_ = (earlier[-1].changed_at if earlier else None) or self.begins
        changes = self.changes[-count:]
        return self.fragment(changes, from_), from_, changes[-1].changed_at or self.last

    def up(self) -> Link:
        return Link(Rel.UP, self.url)

    def capability_list(self) -> Document:
        offered = [
            Resource(self.base + "resourcelist.xml", capability=Capability.RESOURCE_LIST),
            Resource(self.base + "changelist.xml", capability=Capability.CHANGE_LIST),
        ]
        if self.archive:
            uri = self.base + "changelist-archive.xml"
            offered.append(Resource(uri, capability=Capability.CHANGE_LIST_ARCHIVE))
        if self.hubs:
            links = tuple(Link(Rel.HUB, hub) for hub in self.hubs)
            uri = self.base + "channel.xml"
            capability = Capability.CHANGE_NOTIFICATION
            offered.append(Resource(uri, capability=capability, links=links))
        up = Link(Rel.UP, self.site + ".well-known/resourcesync")
        return Document(Capability.CAPABILITY_LIST, tuple(offered), links=(up,))

    def resource_list(self, part: int | None = None) -> Document:
        at = self.listed_at or self._date()
        names = list(self.contents)
        if self.per_list is not None and part is None:
            count = -(-len(names) // self.per_list)
            parts = [Resource(f"{self.base}resourcelist-{n}.xml", at=at) for n in range(count)]
            return Document(Capability.RESOURCE_LIST, tuple(parts), index=True, at=at)
        if part is not None and self.per_list is not None:
            names = names[part * self.per_list : (part + 1) * self.per_list]
        entries = [
            Resource(
                self.base + name,
                hash=self.described[name].hash,
                length=self.described[name].length,
                type=self.described[name].type,
                links=tuple(
                    link for link in self.described[name].links if link.rel == Rel.COLLECTION
                ),
            )
            for name in names
        ]
        return Document(Capability.RESOURCE_LIST, tuple(entries), at=at, links=(self.up(),))

    def document(self, name: str) -> Document | None:
        if name.startswith("resourcelist-"):
            return self.resource_list(int(name[len("resourcelist-") : -len(".xml")]))
        if name.startswith("changelist-") and name != "changelist-archive.xml":
            return self.closed[int(name[len("changelist-") : -len(".xml")])]
        match name:
            case "capabilitylist.xml":
                return self.capability_list()
            case "resourcelist.xml":
                return self.resource_list()
            case "changelist.xml":
                return self.change_list()
            case "changelist-archive.xml" if self.archive:
                lists = [
                    Resource(f"{self.base}changelist-{n}.xml", from_=one.from_, until=one.until)
                    for n, one in enumerate(self.closed)
                ]
                return Document(Capability.CHANGE_LIST_ARCHIVE, tuple(lists), index=False)
        return None

    # Answers

    async def requested(self, path: str, times: int = 1) -> None:
        """Wait for so many requests for a path, counted from the beginning."""
        async with asyncio.timeout(PATIENCE):
            while self.gets[path] < times:
                await self._requested.wait()

    @web.middleware
    async def _count(self, request: web.Request, handler: Answer) -> web.StreamResponse:
        self.gets[request.path] += 1
        self._requested.set()
        self._requested.clear()
        return await handler(request)

    async def answer(self, request: web.Request) -> web.StreamResponse:
        answer = self.answers.get(request.rel_url.raw_path, self.own)
        return await answer(request)

    async def own(self, request: web.Request) -> web.StreamResponse:
        """Answer as if no other answer were set."""
        path = request.rel_url.raw_path
        if path == "/.well-known/resourcesync":
            listed = Resource(self.url, capability=Capability.CAPABILITY_LIST)
            return xml(Document(Capability.DESCRIPTION, (listed,)))
        name = path.removeprefix("/data/")
        document = self.document(name)
        if document is not None:
            return xml(document)
        if name not in self.contents:
            raise web.HTTPNotFound
        return web.Response(body=self.contents[name])


def xml(document: Document) -> web.Response:
    return web.Response(body=write_document(document), content_type="application/xml")


def _now() -> Instant:
    return datetime.now(UTC)


def body(data: bytes, content_type: str = "application/xml", **options: Any) -> Answer:
    async def answer(request: web.Request) -> web.StreamResponse:
        return web.Response(body=data, content_type=content_type, **options)

    return answer


def status(code: int, **options: Any) -> Answer:
    async def answer(request: web.Request) -> web.StreamResponse:
        return web.Response(status=code, **options)

    return answer


def redirect(uri: str, code: int = 302) -> Answer:
    return status(code, headers={"Location": uri})


def page(text: str, content_type: str = "text/html", **options: Any) -> Answer:
    return body(text.encode(), content_type, **options)


def held_back(gate: asyncio.Event, then: Answer) -> Answer:
    """Answer once a gate is open."""

    async def answer(request: web.Request) -> web.StreamResponse:
        await gate.wait()
        return await then(request)

    return answer


def first(times: int, answer: Answer, then: Answer) -> Answer:
    count = 0

    async def choose(request: web.Request) -> web.StreamResponse:
        nonlocal count
        count += 1
        return await (answer if count <= times else then)(request)

    return choose


def path_of(name: str) -> str:
    """Return the path at which a resource is answered."""
    return "/data/" + quote(name)
