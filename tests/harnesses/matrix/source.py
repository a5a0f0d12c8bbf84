"""The Source of a run: resources with a history, documents about them, and a server.

A shape writes the documents from the present state at each request, and troubles alter them, or the
answers. What was true at which time is kept, for the judge.
"""

from __future__ import annotations

import asyncio
import gzip
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from email.utils import format_datetime
from hashlib import sha256 as digest
from math import inf
from posixpath import normpath
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote

from tests.harnesses.simulation.loop import Machine, SimulatedLoop
from tests.harnesses.simulation.network import Network, SimulatedTransport
from tests.harnesses.simulation.patching import EPOCH
from tests.wild.documents import entry, md, sha256, urlset

if TYPE_CHECKING:
    from tests.harnesses.matrix.shapes import Shape
    from tests.harnesses.matrix.troubles import Trouble

PORT = 8001
SITE = f"http://127.0.0.1:{PORT}"
FOLDER = "/set/"
BASE = SITE + FOLDER
#: Where mirrors, alternates and versions of the resources are.
MIRROR, ALTERNATES, VERSIONS = "/mirror/", "/alternates/", "/versions/"
_MIRROR_LAG = 30.0
#: What there is at the beginning of a run.
NAMES = ("a", "b", "c", "d", "e", "f")
#: When these were written, in seconds of the run.
_WRITTEN = -86_400.0


@dataclass
class Listing:
    """A document before it is written; troubles alter it."""

    capability: str | None
    entries: list[dict[str, Any]]
    told: dict[str, Any] = field(default_factory=dict)
    links: list[str] = field(default_factory=list)
    root: str = "urlset"

    def write(self, shape: Shape) -> bytes:
        told = shape.dated(self.told)
        head = md(capability=self.capability, **told) if self.capability else ""
        entries = [entry(**shape.dated(one)) for one in self.entries]
        return urlset(entries, head, *self.links, root=self.root)


@dataclass(frozen=True)
class Version:
    """A state of a resource: its content, or None if it is gone, since when."""

    at: float
    content: bytes | None


@dataclass(frozen=True)
class Recorded:
    change: str
    name: str
    at: datetime
    content: bytes | None


@dataclass(frozen=True)
class Request:
    at: float
    path: str
    fields: dict[str, str]
    client: str


@dataclass
class Answer:
    """An answer.

    Args:
        body: The bytes.
        status: The status.
        type: The Content-Type.
        etag: With quotes.
        modified: The Last-Modified.
        fields: Further header fields; None leaves out one that there would be.
        delay: The seconds until it is sent.
        fault: `hang` sends nothing, `reset` breaks the connection off, and `cut` does so in the
            middle of the body.
    """

    body: bytes = b""
    status: int = 200
    type: str = "application/xml"
    etag: str | None = None
    modified: datetime | None = None
    fields: dict[str, str | None] = field(default_factory=dict)
    delay: float = 0.0
    fault: str = ""


class Source:
    """A Source of a shape.

    Attributes:
        history: The versions of each resource, by name.
        changes: What has changed since the beginning, in order.
        ahead: By how many seconds its clock is ahead of the true time.
        log: The requests.
    """

    def __init__(self, loop: SimulatedLoop, network: Network, shape: Shape, *, hub: str) -> None:
        self.loop, self.network, self.shape, self.hub = loop, network, shape, hub
        self._set_at = [(-inf, 0.0)]
        self.changes: list[Recorded] = []
        self.troubles: list[Trouble] = []
        self.log: list[Request] = []
        self.machine: Machine | None = None
        self._last = EPOCH - timedelta(days=2)
        self.history = {
            name: [Version(_WRITTEN, shape.content(f"{name}, as it was first\n"))] for name in NAMES
        }
        self.begins = EPOCH + timedelta(seconds=_WRITTEN)
        #: The documents, and what they depend on.
        self._written: tuple[object, dict[str, bytes]] = (None, {})
        self.altered = 0
        #: When documents were altered last.
        self.altered_at = self.begins
        #: When the Source was restored from a backup last, in seconds of the run.
        self.restored_at = -inf
        self._backup: tuple[float, int] | None = None

    # The clock and the resources

    @property
    def now(self) -> datetime:
        return self.time(self.loop.now)

    @property
    def ahead(self) -> float:
        return self._set_at[-1][1]

    @ahead.setter
    def ahead(self, seconds: float) -> None:
        self._set_at.append((self.loop.now, seconds))

    def time(self, seconds: float) -> datetime:
        """Return what its clock showed at that second of the run."""
        ahead = next(ahead for since, ahead in reversed(self._set_at) if since <= seconds)
        return EPOCH + timedelta(seconds=seconds + ahead)

    @property
    def contents(self) -> dict[str, bytes]:
        return self.contents_at(self.loop.now)

    def contents_at(self, when: float) -> dict[str, bytes]:
        found = {}
        for name, versions in self.history.items():
            last = next((one for one in reversed(versions) if one.at <= when), None)
            if last is not None and last.content is not None:
                found[name] = last.content
        return found

    def modified(self, name: str) -> datetime:
        """Return when a resource was changed last, by the clock of the Source."""
        for one in reversed(self.changes):
            if one.name == name:
                return one.at
        return self.begins

    def accepted(self, name: str, since: float) -> set[bytes | None]:
        """Return the contents that a resource has had since an instant; None for absent."""
        found: set[bytes | None] = set()
        after = float("inf")
        for version in reversed(self.history.get(name, [])):
            if after > since:
                found.add(version.content)
            after = version.at
        if after > since:
            found.add(None)
        return found

    def update(self, name: str, content: bytes | None = None) -> Recorded:
        exists = name in self.contents
        text = self.shape.content(f"{name}, changed at {self.loop.now:.3f}\n")
        return self._change("updated" if exists else "created", name, content or text)

    def delete(self, name: str) -> Recorded:
        return self._change("deleted", name, None)

    def _change(self, change: str, name: str, content: bytes | None) -> Recorded:
        self.history.setdefault(name, []).append(Version(self.loop.now, content))
        # Two changes have different datetimes, also if the clock was set back.
        self._last = at = max(self.now, self._last + timedelta(microseconds=1))
        if at - self.now > timedelta(seconds=1):
            self._last = at = self.now
        recorded = Recorded(change, name, at, content)
        self.changes.append(recorded)
        return recorded

    def back_up(self) -> None:
        self._backup = self.loop.now, len(self.changes)

    def restore(self) -> None:
        """Restore the resources and their dates, and rewrite the documents."""
        assert self._backup is not None
        when, changes = self._backup
        before, now = self.contents_at(when), self.contents
        for name in before.keys() | now.keys():
            if before.get(name) != now.get(name):
                self.history[name].append(Version(self.loop.now, before.get(name)))
        del self.changes[changes:]
        self.restored_at = self.loop.now
        self.altered += 1

    def lose_changes(self) -> None:
        """Forget all changes, as if the Source's state was lost."""
        self.begins = self.now
        self.changes.clear()
        self.restored_at = self.loop.now
        self.altered += 1

    # The documents

    def described(self, name: str, content: bytes, lastmod: datetime) -> dict[str, Any]:
        """Return the entry of a resource, as far as the shape describes it."""
        shape = self.shape
        found: dict[str, Any] = {"uri": BASE + name}
        if shape.lastmod is not None:
            found["lastmod"] = shape.lastmod(lastmod)
        if shape.hashes:
            found |= {"hash": sha256(content), "length": len(content)}
        links = shape.links(self, name, content)
        return {**found, "links": links} if links else found

    def changed(self, recorded: Recorded) -> dict[str, Any]:
        found: dict[str, Any] = {"uri": BASE + recorded.name}
        if recorded.content is not None:
            found = self.described(recorded.name, recorded.content, recorded.at)
            links = self.shape.change_links(self, recorded)
            if links:
                found["links"] = [*found.get("links", []), *links]
        return {**found, "change": recorded.change, "datetime": recorded.at}

    def documents(self) -> dict[str, bytes]:
        key = (len(self.changes), self.altered, self.ahead, self.shape.listed_at(self))
        if self._written[0] != key:
            written: dict[str, bytes] = {}
            for path, one in self.shape.documents(self).items():
                for trouble in self.troubles:
                    if isinstance(one, Listing):
                        trouble.document(self, path, one)
                if isinstance(one, Listing):
                    one = one.write(self.shape)
                written[path] = one
            self._written = (key, written)
        return self._written[1]

    def use(self, *troubles: Trouble) -> None:
        """Alter documents and answers so from now on."""
        self.troubles = list(troubles)
        self.altered += 1
        self.altered_at = self.now

    # The server

    def start(self) -> None:
        if self.machine is None:
            self.machine = Machine(self.loop, "source")
            self.network.register(self.machine)
            self.network.listen(self.machine, PORT, lambda: _Connection(self))

    def stop(self) -> None:
        if self.machine is not None:
            self.machine.kill()
            self.machine = None

    def answer(self, request: Request) -> Answer:
        self.log.append(request)
        answer = self._plain(request.path)
        for trouble in self.troubles:
            answer = trouble.answer(self, request, answer)
        return answer

    def _plain(self, path: str) -> Answer:
        """Return the answer for a path, which may be spelled in any way (RFC 3986 §6.2.2)."""
        shape = self.shape
        path = normpath(unquote(path))
        document = self.documents().get(path)
        if document is not None:
            kind = "application/zip" if path.endswith(".zip") else "application/xml"
            found = Answer(document, type=kind)
            changed = max([self.begins, *(one.at for one in self.changes)])
        else:
            folder, _, name = path.rpartition("/")
            content = self._content(f"{folder}/", name)
            if content is None:
                return Answer(b"no such page\n", 404, "text/plain")
            if shape.redirects and folder == FOLDER.rstrip("/"):
                where = f"{VERSIONS}{len(self.history[name]) - 1}/{name}"
                return Answer(status=302, type="text/plain", fields={"Location": where})
            found = Answer(content, type="text/plain")
            changed = self.modified(name)
            if folder.startswith(VERSIONS):
                changed = max(self.begins, self.time(self.history[name][_number(folder)].at))
        if shape.validators:
            found.etag = f'"{digest(found.body).hexdigest()[:12]}"'
            found.modified = changed
        return found

    def _content(self, folder: str, name: str) -> bytes | None:
        """Return what a server has in one of its folders by that name."""
        if folder.startswith(VERSIONS) and (self.shape.redirects or self.shape.exact):
            return self.history[name][_number(folder)].content
        if folder == MIRROR and self.shape.links:
            return self.contents_at(self.loop.now - _MIRROR_LAG).get(name)
        content = self.contents.get(name)
        if folder == FOLDER and self.shape.prefer and content is not None:
            return b"<html>" + content
        return content if folder in (FOLDER, ALTERNATES) else None


def _number(folder: str) -> int:
    return int(folder.removeprefix(VERSIONS).rstrip("/"))


class _Connection(asyncio.Protocol):
    """HTTP/1.1, as much as clients need of it; one request at a time."""

    def __init__(self, source: Source) -> None:
        self._source = source
        self._data = b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, SimulatedTransport)
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        self._data += data
        while b"\r\n\r\n" in self._data:
            head, _, self._data = self._data.partition(b"\r\n\r\n")
            opening, *lines = head.decode("latin-1").split("\r\n")
            fields = {}
            for line in lines:
                name, _, value = line.partition(":")
                fields[name.strip().lower()] = value.strip()
            source, client = self._source, self._transport.peer.machine.name
            request = Request(source.loop.now, opening.split(" ")[1], fields, client)
            answer = _conditional(request, source.answer(request))
            if answer.fault == "hang":
                continue
            source.loop.call_later(answer.delay, self._send, answer)

    def _send(self, answer: Answer) -> None:
        if answer.fault == "reset":
            self._transport.abort()
            return
        data = _written(self._source, answer)
        if answer.fault == "cut":
            body = len(data) - data.index(b"\r\n\r\n") - 4
            self._transport.write(data[: len(data) - body // 2 - 1])
            self._transport.abort()
            return
        self._transport.write(data)


def _conditional(request: Request, answer: Answer) -> Answer:
    """Return 304 where the condition holds."""
    if answer.status != 200 or answer.fault:
        return answer
    match = request.fields.get("if-none-match")
    since = request.fields.get("if-modified-since")
    if match is not None:
        holds = answer.etag is not None and answer.etag in match
    else:
        modified = answer.modified and format_datetime(answer.modified, usegmt=True)
        holds = since is not None and since == modified
    return replace(answer, status=304, body=b"") if holds else answer


def _written(source: Source, answer: Answer) -> bytes:
    shape = source.shape
    fields: dict[str, str | None] = {"Content-Type": answer.type, "ETag": answer.etag}
    if shape.dates:
        fields["Date"] = format_datetime(source.now, usegmt=True)
    if answer.modified is not None:
        fields["Last-Modified"] = format_datetime(answer.modified, usegmt=True)
    body = answer.body
    if shape.compressed and body:
        fields["Content-Encoding"] = "gzip"
        body = gzip.compress(body, mtime=0)
    if answer.status == 304:
        body = b""
    elif shape.chunked:
        fields["Transfer-Encoding"] = "chunked"
        body = b"%x\r\n%b\r\n0\r\n\r\n" % (len(body), body) if body else b"0\r\n\r\n"
    else:
        fields["Content-Length"] = str(len(body))
    fields |= answer.fields
    lines = [f"{name}: {value}" for name, value in fields.items() if value is not None]
    head = "\r\n".join([f"HTTP/1.1 {answer.status} x", *lines, "", ""])
    return head.encode("latin-1") + body
