"""Consumers of the views, written from the specifications and independent of our code.

Each returns the history that it found: (uri, activity, datetime), oldest first.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from datetime import datetime
from typing import Any

from jsonschema import Draft202012Validator
from pyoxigraph import Literal, NamedNode, RdfFormat, Triple, parse

History = list[tuple[str, str, datetime]]
Fetch = Callable[[str], bytes]

_CONTEXT = {"const": "http://iiif.io/api/discovery/1/context.json"}
_URI = {"type": "string", "pattern": "^https?://"}


def _object(required: str, **properties: Any) -> dict[str, Any]:
    return {"type": "object", "required": required.split(), "properties": properties}


def _link(kind: str) -> dict[str, Any]:
    return _object("id type", id=_URI, type={"const": kind})


_PAGE = _link("OrderedCollectionPage")
_LABEL = {"type": "object", "additionalProperties": {"type": "array"}}
#: What IIIF Change Discovery 1.0 requires in §3.1.
_COLLECTION_SCHEMA = Draft202012Validator(
    _object(
        "@context id type first last",
        **{"@context": _CONTEXT, "id": _URI, "type": {"const": "OrderedCollection"}},
        first=_PAGE,
        last=_PAGE,
        seeAlso={
            "type": "array",
            "minItems": 1,
            "items": _object("id type format label", id=_URI, type={"const": "Dataset"})
            | {"label": _LABEL},
        },
    )
)
#: What it requires in §3.2 and §3.3.
_PAGE_SCHEMA = Draft202012Validator(
    _object(
        "@context id type partOf orderedItems",
        **{"@context": _CONTEXT, "id": _URI, "type": {"const": "OrderedCollectionPage"}},
        partOf=_link("OrderedCollection"),
        prev=_PAGE,
        next=_PAGE,
        orderedItems={
            "type": "array",
            "minItems": 1,
            "items": _object(
                "type object endTime",
                type={"enum": ["Create", "Update", "Delete"]},
                object=_object("id type", id={"type": "string"}, type={"type": "string"}),
                endTime={"pattern": r"^\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d+)?Z$"},
            ),
        },
    )
)


def _datetime(text: str) -> datetime:
    return datetime.fromisoformat(text)


def read_iiif(url: str, fetch: Fetch, last_crawl: datetime | None = None) -> History:
    """Walk back from the last page to activities before the last crawl (§3.5)."""
    collection = json.loads(fetch(url))
    _COLLECTION_SCHEMA.validate(collection)
    assert collection["id"] == url
    found: History = []
    uri, after = collection["last"]["id"], None
    while True:
        page = json.loads(fetch(uri))
        _PAGE_SCHEMA.validate(page)
        assert page["id"] == uri
        assert page["partOf"]["id"] == url
        if "next" in page and after != collection["last"]["id"]:
            assert page["next"]["id"] == after
        for item in reversed(page["orderedItems"]):
            at = _datetime(item["endTime"])
            if last_crawl is not None and at < last_crawl:
                return found[::-1]
            found.append((item["object"]["id"], item["type"], at))
        if "prev" not in page:
            assert uri == collection["first"]["id"] or last_crawl is not None
            return found[::-1]
        uri, after = page["prev"]["id"], uri


_AS = "https://www.w3.org/ns/activitystreams#"
_TREE = "https://w3id.org/tree#"
_LDES = "https://w3id.org/ldes#"
_TYPE = NamedNode("http://www.w3.org/1999/02/22-rdf-syntax-ns#type")
_DATETIME = NamedNode("http://www.w3.org/2001/XMLSchema#dateTime")


class LDESReader:
    """Reads every node once if it is immutable, and emits every member once.

    It forgets a member that it has found on an immutable node, as a client may.
    """

    def __init__(self, url: str, fetch: Fetch) -> None:
        self._url = url
        self._fetch = fetch
        self._immutable: set[str] = set()
        self._emitted: set[str] = set()
        #: What was emitted, in the order of synchronization runs.
        self.history: History = []

    def synchronize(self) -> None:
        """Make one synchronization run, in ascending order."""
        root = self._parse(self._url)
        streams = [t.subject for t in root if t.predicate == NamedNode(_TREE + "view")]
        assert len(streams) == 1
        stream = streams[0]
        for path, value in {
            "timestampPath": "published",
            "versionOfPath": "object",
            "versionDeleteObject": "Delete",
        }.items():
            assert _objects(root, stream, _LDES + path) == [NamedNode(_AS + value)]
        (policy,) = _objects(root, NamedNode(self._url), _LDES + "retentionPolicy")
        assert len(_objects(root, policy, _LDES + "startingFrom")) == 1
        members = {}
        for uri, (low, high) in self._relations(root).items():
            if uri not in self._immutable:
                page = self._parse(uri)
                immutable = _objects(page, NamedNode(uri), _LDES + "immutable")
                assert [one.value for one in immutable] == ["true"]
                self._immutable.add(uri)
                for member, (resource, activity, at) in self._members(page, stream).items():
                    assert low < at <= high
                    if member in self._emitted:
                        self._emitted.remove(member)
                    else:
                        members[member] = (resource, activity, at)
        for member, found in self._members(root, stream).items():
            if member not in self._emitted:
                assert member not in members
                members[member] = found
                self._emitted.add(member)
        self.history += sorted(members.values(), key=lambda member: member[2])

    def _parse(self, url: str) -> list[Triple]:
        quads = parse(self._fetch(url), format=RdfFormat.TURTLE, base_iri=url)
        return [quad.triple for quad in quads]

    def _relations(self, root: list[Triple]) -> dict[str, tuple[datetime, datetime]]:
        bounds: dict[str, dict[str, datetime]] = {}
        for relation in _objects(root, NamedNode(self._url), _TREE + "relation"):
            (node,) = _objects(root, relation, _TREE + "node")
            (kind,) = _objects(root, relation, _TYPE.value)
            (value,) = _objects(root, relation, _TREE + "value")
            assert value.datatype == _DATETIME
            assert _objects(root, relation, _TREE + "path") == [NamedNode(_AS + "published")]
            bounds.setdefault(node.value, {})[kind.value] = _datetime(value.value)
        low, high = _TREE + "GreaterThanRelation", _TREE + "LessThanOrEqualToRelation"
        return {node: (both[low], both[high]) for node, both in bounds.items()}

    def _members(self, page: list[Triple], stream: Any) -> dict[str, tuple[str, str, datetime]]:
        by_subject: dict[Any, dict[str, list[Any]]] = {}
        for triple in page:
            of = by_subject.setdefault(triple.subject, {})
            of.setdefault(triple.predicate.value, []).append(triple.object)
        members = {}
        for member in by_subject.get(stream, {}).get(_TREE + "member", []):
            about = by_subject[member]
            ((resource,), (activity,), (at,)) = (
                about[name] for name in (_AS + "object", _TYPE.value, _AS + "published")
            )
            assert isinstance(at, Literal)
            assert at.datatype == _DATETIME
            kind = activity.value.removeprefix(_AS)
            members[member.value] = (resource.value, kind, _datetime(at.value))
        return members


def _objects(page: list[Triple], subject: Any, predicate: str) -> list[Any]:
    return [t.object for t in page if t.subject == subject and t.predicate.value == predicate]


def state_of(history: History) -> dict[str, datetime]:
    """Return the resources that exist at the end of a history, with their last change."""
    state: dict[str, datetime] = {}
    for uri, activity, at in history:
        if activity == "Delete":
            state.pop(uri, None)
        else:
            state[uri] = at
    return state
