"""LDES and TREE, parsed by pyoxigraph (`pip install "rsnotify[ldes]"`).

The URL leads to an event stream or one of its pages. The adapter follows the relations to all
pages. A resource is the entity that a member is a version of (`ldes:versionOfPath`), or else the
member itself.

- A change is detected as a new member. Members are ordered by their datetimes
  (`ldes:timestampPath`), regardless of the order of the pages: the latest version of a resource is
  current. Without datetimes, it is the version that was read last.
- A deletion is detected as a member with the stream's `ldes:versionDeleteObject`. The absence of a
  member is not a deletion, because a stream may keep only its newest members
  (`ldes:retentionPolicy`).
- A page with `immutable` in its Cache-Control is read only once. Each check requests all other
  pages, conditionally. Members are immutable by definition, so they are not reread either.
"""

from __future__ import annotations

import asyncio
import re
from collections import defaultdict, deque
from collections.abc import AsyncIterator
from hashlib import blake2b
from typing import Any

import pyoxigraph
from msgspec import Struct, field

from rsnotify.errors import InvalidDocument, MalformedDocument, TooLarge, WrongDocument
from rsnotify.format.datetimes import Instant, format_datetime, parse_datetime
from rsnotify.format.model import Resource
from rsnotify_gateway.adapter import (
    KnownEntries,
    MissingEntry,
    OriginBatch,
    OriginCursor,
    OriginTerms,
    OriginType,
    SeenEntry,
    origin_uri,
)
from rsnotify_gateway.change_detection import is_before, usable_uri
from rsnotify_gateway.client import OriginAnswer, OriginClient
from rsnotify_subscriber.fetching.credentials import without_login

_LDES = "https://w3id.org/ldes#"
_TREE = "https://w3id.org/tree#"
_RDF = "http://www.w3.org/1999/02/22-rdf-syntax-ns#"
_TYPE = _RDF + "type"
_FIRST, _REST, _NIL = _RDF + "first", _RDF + "rest", _RDF + "nil"
#: Maximum number of triples in a page. Each needs about a kilobyte of memory.
_MAX_TRIPLES = 500_000
#: Maximum number of values followed per triple: enough for three paths of maximum length.
_MAX_VALUES_PER_TRIPLE = 30
#: Maximum number of steps in a property path.
_MAX_STEPS = 10
#: Maximum depth of JSON, and maximum number of quoted triples. A few thousand would overflow the
#: stack of pyoxigraph and crash the process.
_MAX_DEPTH, _MAX_QUOTED = 200, 1_000
# An unclosed string extends to the end of the data, because searching for the next opening quote
# would take quadratic time.
_TOKEN = re.compile(rb'"(?>[^"\\]++|\\.?+)*+"?+|[][{}]', re.DOTALL)

#: The predicates that lead from a member to a value, in order.
Path = tuple[str, ...]


class StreamTerms(Struct, frozen=True, omit_defaults=True):
    """The paths from a stream's members to their datetimes and resources.

    A member is a deletion if the path `deletion` leads to the value `deleted`.
    """

    timestamp: Path | None = None
    version_of: Path | None = None
    deletion: Path = (_TYPE,)
    deleted: str | None = None


class StreamMember(Struct, frozen=True):
    """A member: a version of the resource `uri`.

    `identity` is the URI of the member, or the URI of the resource if the member is a blank node.
    """

    uri: str
    identity: str
    at: Instant | None
    deleted: bool


class StreamPage(Struct, frozen=True):
    """A parsed page, with the stream's terms from this page and earlier ones.

    `nodes` are the URIs of the pages that its relations lead to, and `nameless` is the number of
    members without a URI.
    """

    terms: StreamTerms
    members: tuple[StreamMember, ...]
    nodes: tuple[str, ...]
    nameless: int


def parse_page(data: bytes, media_type: str, uri: str, terms: StreamTerms) -> StreamPage:
    """Parse the page at a URI. `terms` are the stream's terms from other pages.

    Raises:
        DocumentError: The page is not in a supported RDF format, is not well-formed, or exceeds a
            limit.
    """
    graph = _Graph(data, media_type, uri)
    terms = _terms(graph, terms)
    named = [_member(graph, member, terms) for member in graph.objects_of(_TREE + "member")]
    members = tuple(member for member in named if member is not None)
    nodes = [
        node
        for relation in graph.objects_of(_TREE + "relation")
        for node in graph.values(relation, _TREE + "node")
    ]
    views = sorted({str(view.value) for view in graph.objects_of(_TREE + "view")})
    if nodes or members or uri in views:
        views = []
    found = [str(node.value) for node in nodes] + views[:1]
    return StreamPage(terms, members, tuple(dict.fromkeys(found)), len(named) - len(members))


def _is_too_deep(data: bytes, *, is_json: bool) -> bool:
    if not is_json:
        return data.count(b"<<") > _MAX_QUOTED
    depth = 0
    # Not with `findall`, which would block the interpreter for seconds.
    for token in _TOKEN.finditer(data):
        first = data[token.start()]
        if first in b"[{":
            depth += 1
            if depth > _MAX_DEPTH:
                return True
        elif first in b"]}":
            depth -= 1
    return False


class _Graph:
    """The triples of a document, regardless of the graph that they are in."""

    def __init__(self, data: bytes, media_type: str, uri: str) -> None:
        self.uri = uri
        self._values: dict[tuple[Any, str], list[Any]] = defaultdict(list)
        self._objects: dict[str, dict[Any, None]] = defaultdict(dict)
        form = pyoxigraph.RdfFormat.from_media_type(media_type)
        # RDF/XML has entities and unlimited depth, and no LDES is published only as RDF/XML.
        if form in (None, pyoxigraph.RdfFormat.RDF_XML):
            what = media_type or "without a media type"
            raise WrongDocument(f"it is {what}, not a supported RDF format", source=uri)
        if _is_too_deep(data, is_json=form == pyoxigraph.RdfFormat.JSON_LD):
            raise TooLarge("it is nested too deeply", source=uri)
        triples = 0
        try:
            for quad in pyoxigraph.parse(data, form, base_iri=uri):
                if isinstance(quad.object, pyoxigraph.Triple):
                    continue  # a statement about a statement
                triples += 1
                if triples > _MAX_TRIPLES:
                    reason = f"it has more than {_MAX_TRIPLES} triples; split it into more pages"
                    raise TooLarge(reason, source=uri)
                predicate = quad.predicate.value
                self._values[quad.subject, predicate].append(quad.object)
                self._objects[predicate][quad.object] = None
        except MemoryError:  # pyoxigraph limits its buffer
            raise TooLarge("it has a term of more than 16 MiB", source=uri) from None
        except (SyntaxError, ValueError) as error:
            raise MalformedDocument(f"not well-formed RDF: {error}", source=uri) from None
        self._values_left = triples * _MAX_VALUES_PER_TRIPLE

    def objects_of(self, predicate: str) -> list[Any]:
        return list(self._objects.get(predicate, ()))

    def values(self, subject: Any, predicate: str) -> list[Any]:
        return self._values.get((subject, predicate), [])

    def follow(self, subject: Any, path: Path) -> list[Any]:
        """Return the distinct values at the end of a path.

        Raises:
            InvalidDocument: Paths share so many values that following them would take too long.
        """
        found = [subject]
        for predicate in path:
            several = (value for each in found for value in self.values(each, predicate))
            found = list(dict.fromkeys(several)) if len(found) > 1 else list(several)
            self._values_left -= len(found)
            if self._values_left < 0:
                raise InvalidDocument("its members share too many values", source=self.uri)
        return found

    def path(self, name: str) -> Path | None:
        """Return the stream's path for an LDES property, if it states one.

        Raises:
            InvalidDocument: The path is not a sequence of predicates.
        """
        stated = self.objects_of(_LDES + name)
        if not stated:
            return None
        steps: list[Any] = []
        at = stated[0]
        while self.values(at, _FIRST) and len(steps) < _MAX_STEPS:
            steps.append(self.values(at, _FIRST)[0])
            at = next(iter(self.values(at, _REST)), None)
        is_list = bool(steps) and getattr(at, "value", None) == _NIL
        found = steps if is_list else stated[:1]
        if not all(type(step).__name__ == "NamedNode" for step in found):
            raise InvalidDocument(f"the path in its {name} is not supported", source=self.uri)
        return tuple(step.value for step in found)


def _terms(graph: _Graph, known: StreamTerms) -> StreamTerms:
    timestamp = graph.path("versionTimestampPath") or graph.path("timestampPath")
    deleted = graph.objects_of(_LDES + "versionDeleteObject")
    return StreamTerms(
        timestamp or known.timestamp,
        graph.path("versionOfPath") or known.version_of,
        graph.path("versionDeletePath") or known.deletion,
        deleted[0].value if deleted else known.deleted,
    )


def _member(graph: _Graph, member: Any, terms: StreamTerms) -> StreamMember | None:
    found = [member] if terms.version_of is None else graph.follow(member, terms.version_of)
    named = [one.value for one in found if type(one).__name__ == "NamedNode"]
    if not named:
        return None
    at = _timestamp(graph, member, terms)
    markers = () if terms.deleted is None else graph.follow(member, terms.deletion)
    is_deleted = any(marker.value == terms.deleted for marker in markers)
    # The identifier of a blank node has no meaning outside the page.
    is_named = type(member).__name__ == "NamedNode"
    identity = without_login(member.value if is_named else named[0])
    return StreamMember(without_login(named[0]), identity, at, is_deleted)


def _timestamp(graph: _Graph, member: Any, terms: StreamTerms) -> Instant | None:
    stated = () if terms.timestamp is None else graph.follow(member, terms.timestamp)
    try:
        return max((parse_datetime(value.value) for value in stated), default=None)
    except ValueError as error:
        reason = f"the timestamp of a member is invalid: {error}"
        raise InvalidDocument(reason, source=graph.uri) from None


_MAX_BYTES = 20_000_000
_MAX_PAGES = 60_000
#: Number of entries per batch.
_BATCH_SIZE = 1_000
#: The cursor is long, so it is stored only after this many new pages, or after a tenth of all pages
#: if that is more.
_PAGES_PER_CURSOR, _CURSORS_PER_STREAM = 50, 10
_ACCEPT = (
    "text/turtle, application/trig, application/n-quads;q=0.9, application/n-triples;q=0.9, "
    "application/ld+json;q=0.5"
)


class LdesNode(Struct, omit_defaults=True):
    """The stored state of a page.

    Args:
        nodes: The URIs of the pages that its relations lead to.
        immutable: Whether the page never changes.
        condition: The header field for a conditional request.
        members: A digest of each member; empty if the page is immutable.
        nameless: The number of members without a valid URI.
    """

    nodes: tuple[str, ...] = ()
    immutable: bool = False
    condition: tuple[str, str] | None = None
    members: tuple[str, ...] = ()
    nameless: int = 0


class LdesCursor(OriginCursor, omit_defaults=True):
    """The progress in reading a stream: the state of each page by URI, and the stream's terms.

    `deleted` has the datetimes of deletions by URI, because older versions of a deleted resource
    appear again when the stream is divided into different pages.
    """

    pages: dict[str, LdesNode] = field(default_factory=dict)
    terms: StreamTerms = StreamTerms()
    deleted: dict[str, Instant] = field(default_factory=dict)


class LdesAdapter:
    """Reads an event stream. The URL may also be the URL of its first page."""

    def __init__(self, url: str, client: OriginClient) -> None:
        self._url = url
        self._client = client
        self._last = LdesCursor()

    def terms(self) -> OriginTerms:
        stream = self._last.terms
        limits = ["Members that leave the stream are not detected."]
        if stream.timestamp is None:
            limits.append("There is no timestampPath, so the version that was read last is used.")
        if nameless := sum(node.nameless for node in self._last.pages.values()):
            limits.append(f"Skipped members without a valid URI: {nameless:,}.")
        return OriginTerms(
            "LDES",
            None,
            "Deletions are not detected."
            if stream.deleted is None
            else f"Deletions are detected as members with {stream.deleted}.",
            tuple(limits),
        )

    async def changes(self, cursor: str | None, known: KnownEntries) -> AsyncIterator[OriginBatch]:
        """Read the pages that may have changed, and yield their new members."""
        state = LdesCursor.decoded(cursor)
        reached: set[str] = {self._url}
        waiting = deque(reached)
        entries: list[SeenEntry | MissingEntry] = []
        unstored = 0
        while waiting:
            uri = waiting.popleft()
            node = state.pages.get(uri)
            if node is None or not node.immutable:
                node = await self._read(uri, state, entries)
                state.pages[uri] = node
                unstored += 1
            new = [page for page in dict.fromkeys(node.nodes) if page not in reached]
            reached.update(new)
            waiting.extend(new)
            if len(reached) > _MAX_PAGES:
                raise TooLarge(f"it has more than {_MAX_PAGES:,} pages", source=self._url)
            is_due = unstored >= max(_PAGES_PER_CURSOR, len(state.pages) // _CURSORS_PER_STREAM)
            if entries and (is_due or len(entries) >= _BATCH_SIZE):
                yield OriginBatch(tuple(entries), state.encoded() if is_due else None)
                entries.clear()
                unstored = 0 if is_due else unstored
        state.pages = {uri: node for uri, node in state.pages.items() if uri in reached}
        self._last = state
        text = state.encoded()
        yield OriginBatch(tuple(entries), None if text == cursor else text)

    async def _read(
        self, uri: str, state: LdesCursor, entries: list[SeenEntry | MissingEntry]
    ) -> LdesNode:
        """Request a page, add its new states to `entries`, and return the page's stored state."""
        known = state.pages.get(uri)
        condition = None if known is None else known.condition
        data, answer = await self._client.content(uri, _MAX_BYTES, condition, _ACCEPT)
        if answer is None:
            assert known is not None
            return known
        page = await asyncio.to_thread(parse_page, data, answer.media_type, answer.uri, state.terms)
        state.terms = page.terms
        before = frozenset(known.members if known is not None else ())
        new = [member for member in page.members if _digest(member) not in before]
        entries += _states(new, state.deleted)
        return _node(page, answer)


def _node(page: StreamPage, answer: OriginAnswer) -> LdesNode:
    return LdesNode(
        tuple(origin_uri(answer.uri, node).partition("#")[0] for node in page.nodes),
        answer.immutable,
        answer.condition,
        () if answer.immutable else tuple(map(_digest, page.members)),
        page.nameless + sum(usable_uri(member.uri) is None for member in page.members),
    )


def _states(
    members: list[StreamMember], deleted: dict[str, Instant]
) -> tuple[SeenEntry | MissingEntry, ...]:
    """Return each resource's state after the given members, and update `deleted`."""
    found: dict[str, tuple[Instant | None, SeenEntry | MissingEntry]] = {}
    for member in members:
        uri, at = usable_uri(member.uri), member.at
        if uri is None or is_before(at, deleted.get(uri)):
            continue
        if uri in found and is_before(at, found[uri][0]):
            continue
        if member.deleted:
            found[uri] = at, MissingEntry(uri, at=at)
        else:
            found[uri] = at, SeenEntry(Resource(uri, lastmod=at), _state(member), is_ordered=True)
    for uri, (at, entry) in found.items():
        if isinstance(entry, MissingEntry) and at is not None:
            deleted[uri] = at
        else:
            deleted.pop(uri, None)  # from now on, the journal has its datetime
    return tuple(entry for _, entry in found.values())


def _state(member: StreamMember) -> str:
    return f"{'' if member.at is None else format_datetime(member.at)} {member.identity}".strip()


def _digest(member: StreamMember) -> str:
    text = f"{member.uri} {_state(member)} {member.deleted}"
    return blake2b(text.encode(), digest_size=8).hexdigest()


LDES = OriginType(lambda origin, client, _: LdesAdapter(without_login(origin.url), client))
