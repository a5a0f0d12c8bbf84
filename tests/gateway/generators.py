"""Origins that are generated: a pull-only Source, a collection of activities, an event stream."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from typing import Any

from rsnotify.format.datetimes import Instant
from rsnotify.format.model import Capability, ChangeType, Document, Link, Resource
from rsnotify.format.writer import write_document
from tests.gateway.origin_server import SITE, Site

BEGIN = datetime(2020, 11, 1, tzinfo=UTC)


def at(seconds: float) -> Instant:
    return BEGIN + timedelta(seconds=seconds)


def numbered(count: int) -> list[str]:
    return [f"r{number}" for number in range(count)]


class Origin:
    """An origin whose resources are created, updated and deleted."""

    def url(self) -> str:
        raise NotImplementedError

    def put(self, name: str, when: Instant) -> None:
        raise NotImplementedError

    def delete(self, name: str, when: Instant) -> None:
        raise NotImplementedError

    def play(self, *steps: str, start: int = 0) -> None:
        """Put resources, one a second, or delete those that begin with a minus."""
        for number, step in enumerate(steps, start):
            (self.delete if step[0] == "-" else self.put)(step.lstrip("-"), at(number))


class PullOnlySource(Origin):
    """A Source with a Change List, an archive of those before, and a Resource List.

    Args:
        per_list: The changes of a list, before it is archived.
        lists_every: The changes between two Resource Lists.
    """

    def __init__(
        self, site: Site, per_list: int = 1_000, lists_every: int = 1_000, folder: str = "rs"
    ) -> None:
        self._site = site
        self._folder = "/rs"
        self._per_list = per_list
        self._lists_every = lists_every
        self.present: dict[str, Resource] = {}
        self.open: list[Resource] = []
        self.since = BEGIN
        self.closed: list[Document] = []
        self.count = 0
        self.offered = ["resourcelist", "changelist", "changelist-archive"]
        self.list_resources(BEGIN)
        self.write()

    def url(self, name: str = "capabilitylist.xml") -> str:
        return self._site.url(f"{self._folder}/{name}")

    def set(self, name: str, document: Document | bytes) -> None:
        body = document if isinstance(document, bytes) else write_document(document)
        self._site.pages[f"{self._folder}/{name}"] = body

    def put(self, name: str, when: Instant, hash: str | None = None) -> None:
        change = ChangeType.UPDATED if name in self.present else ChangeType.CREATED
        resource = Resource(SITE + name, lastmod=when, hash=hash)
        self.present[name] = resource
        self._record(Resource(SITE + name, when, change=change, datetime=when, hash=hash), when)

    def delete(self, name: str, when: Instant) -> None:
        del self.present[name]
        self._record(Resource(SITE + name, change=ChangeType.DELETED, datetime=when), when)

    def _record(self, change: Resource, when: Instant) -> None:
        self.open.append(change)
        self.count += 1
        if len(self.open) >= self._per_list:
            self.rotate(when)
        if self.count % self._lists_every == 0:
            self.list_resources(when)
        self.write(len(self.closed) - 1)

    def rotate(self, when: Instant) -> None:
        self.closed.append(
            Document(Capability.CHANGE_LIST, tuple(self.open), from_=self.since, until=when)
        )
        self.open, self.since = [], when

    def list_resources(self, when: Instant) -> None:
        resources = tuple(self.present.values())
        self.set("resourcelist.xml", Document(Capability.RESOURCE_LIST, resources, at=when))

    def write(self, first: int = 0) -> None:
        """Write all documents, but of the closed lists only those from one on."""
        up = (Link("up", self.url()),)
        entries = tuple(Resource(self.url(f"{name}.xml"), capability=name) for name in self.offered)
        self.set("capabilitylist.xml", Document(Capability.CAPABILITY_LIST, entries))
        members = []
        for number, document in enumerate(self.closed):
            if number >= first:
                self.set(f"changes-{number}.xml", document)
            uri = self.url(f"changes-{number}.xml")
            members.append(Resource(uri, from_=document.from_, until=document.until))
        archive = Document(Capability.CHANGE_LIST_ARCHIVE, tuple(members), links=up)
        self.set("changelist-archive.xml", archive)
        changes = Document(Capability.CHANGE_LIST, tuple(self.open), from_=self.since, links=up)
        self.set("changelist.xml", changes)


class Activities(Origin):
    """A collection of IIIF Change Discovery, as static files.

    Attributes:
        items: The activities, the oldest first.
    """

    def __init__(self, site: Site, per_page: int = 5) -> None:
        self._site = site
        self._per_page = per_page
        self._folder = "/iiif"
        self.items: list[dict[str, Any]] = []
        self._present: set[str] = set()
        self.write()

    def url(self, name: str = "all") -> str:
        return self._site.url(f"{self._folder}/{name}")

    def add(self, kind: str, name: str | None, when: Instant | None, **extra: Any) -> None:
        item: dict[str, Any] = {"type": kind, **extra}
        if name is not None:
            item["object"] = {"id": SITE + name, "type": "Manifest"}
        if when is not None:
            item["endTime"] = when.isoformat().replace("+00:00", "Z")
        self.items.append(item)
        self.write(len(self.items) // self._per_page - 1)

    def put(self, name: str, when: Instant) -> None:
        self.add("Update" if name in self._present else "Create", name, when)
        self._present.add(name)

    def delete(self, name: str, when: Instant) -> None:
        self._present.discard(name)
        self.add("Delete", name, when)

    def page(self, number: int) -> str:
        return f"{self._folder}/page-{number}"

    def write(self, first: int = 0) -> None:
        """Write the collection, and the pages from one on."""
        context = {"@context": "http://iiif.io/api/discovery/1/context.json"}
        starts = list(range(0, len(self.items), self._per_page)) or [0]
        for number, start in enumerate(starts):
            if number < first:
                continue
            page: dict[str, Any] = {
                **context,
                "id": self.url(f"page-{number}"),
                "type": "OrderedCollectionPage",
                "partOf": {"id": self.url(), "type": "OrderedCollection"},
                "orderedItems": self.items[start:][: self._per_page],
            }
            if number:
                page["prev"] = self._reference(number - 1)
            if number + 1 < len(starts):
                page["next"] = self._reference(number + 1)
            self._set(self.page(number), page)
        collection = {
            **context,
            "id": self.url(),
            "type": "OrderedCollection",
            "totalItems": len(self.items),
            "first": self._reference(0),
            "last": self._reference(len(starts) - 1),
        }
        self._set(f"{self._folder}/all", collection)

    def _reference(self, number: int) -> dict[str, str]:
        return {"id": self.url(f"page-{number}"), "type": "OrderedCollectionPage"}

    def _set(self, path: str, document: dict[str, Any]) -> None:
        self._site.pages[path] = json.dumps(document).encode()
        self._site.headers[path] = {"Content-Type": "application/ld+json"}


_PREFIXES = """@prefix ldes: <https://w3id.org/ldes#> . @prefix tree: <https://w3id.org/tree#> .
@prefix dct: <http://purl.org/dc/terms/> . @prefix as: <https://www.w3.org/ns/activitystreams#> .
@prefix xsd: <http://www.w3.org/2001/XMLSchema#> .
"""
_STREAM = """<{url}#stream> a ldes:EventStream ; ldes:timestampPath dct:created ;
  ldes:versionOfPath dct:isVersionOf ; ldes:versionDeleteObject as:Delete ; tree:view <{url}> .
"""


class EventStream(Origin):
    """An LDES in Turtle, with pages in the order of time; full pages are immutable."""

    def __init__(self, site: Site, per_page: int = 5) -> None:
        self._site = site
        self._per_page = per_page
        self._folder = "/ldes"
        self.members: list[str] = []
        self.statements = _STREAM
        self.write()

    def url(self, name: str = "0") -> str:
        return self._site.url(self.path(name))

    def path(self, name: str | int) -> str:
        return f"{self._folder}/{name}"

    def put(self, name: str, when: Instant, kind: str = "as:Update", *, write: bool = True) -> None:
        number = len(self.members)
        self.members.append(
            f"<{SITE}{name}#v{number}> a {kind} ; dct:isVersionOf <{SITE}{name}> ; "
            f'dct:created "{when.isoformat()}"^^xsd:dateTime .'
        )
        if write:
            self.write(len(self.members) // self._per_page - 1)

    def delete(self, name: str, when: Instant) -> None:
        self.put(name, when, "as:Delete")

    def write(self, first: int = 0) -> None:
        """Write the pages from one on."""
        starts = list(range(0, len(self.members), self._per_page)) or [0]
        for number, start in enumerate(starts):
            if number < first:
                continue
            page = self.members[start:][: self._per_page]
            is_full = number + 1 < len(starts)
            self._write_page(number, page, number + 1 if is_full else None)

    def _write_page(self, number: int, members: list[str], following: int | None) -> None:
        stream = self.url() + "#stream"
        named = [member.split()[0] for member in members]
        listed = f"<{stream}> tree:member {', '.join(named)} ." if named else ""
        relation = (
            ""
            if following is None
            else f"<{self.url(str(number))}> tree:relation [ a tree:GreaterThanOrEqualToRelation ; "
            f"tree:node <{following}> ; tree:path dct:created ] ."
        )
        head = self.statements.format(url=self.url()) if number == 0 else ""
        body = "\n".join([_PREFIXES, head, listed, relation, *members])
        path = self.path(number)
        self._site.pages[path] = body.encode()
        self._site.headers[path] = {
            "Content-Type": "text/turtle",
            "Cache-Control": "max-age=60" if following is None else "max-age=604800, immutable",
        }
