"""LDES and TREE, parsed by pyoxigraph (`pip install "rsnotify[ldes]"`).

The URL is that of an event stream or of a page. All pages to which relations lead are read. Each
resource is what a member is a version of (`ldes:versionOfPath`), or else the member itself.

- A change is seen as a new member. The datetimes of members (`ldes:timestampPath`) order them: of
  two versions of one resource, the later one counts, whatever the order of the pages. Without
  datetimes, the one that is read last counts.
- A deletion is seen as a member with the `ldes:versionDeleteObject` that the stream states. The
  absence of a member is none: a stream may keep its newest members only (`ldes:retentionPolicy`).
- A page whose Cache-Control says `immutable` is read once. Every other page is requested in each
  check, conditionally. A member is immutable by definition, and is not read again either.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator
from hashlib import blake2b

import msgspec
from msgspec import Struct

from rsnotify.errors import TooLarge
from rsnotify.format.datetimes import Instant, format_datetime
from rsnotify.format.model import Resource
from rsnotify_gateway.adapter import (
    KnownEntries,
    MissingEntry,
    OriginBatch,
    OriginTerms,
    SeenEntry,
    origin_uri,
)
from rsnotify_gateway.client import OriginAnswer, OriginClient
from rsnotify_gateway.ldes_parser import StreamMember, StreamPage, StreamTerms, parse_page
from rsnotify_gateway.reconciling import usable_uri

_MOST_BYTES = 20_000_000
_MOST_PAGES = 60_000
#: The entries that are recorded at once.
_BATCH = 1_000
#: The cursor is stored after so many pages, and this part of all: it becomes long.
_STORED_PAGES, _STORED_PART = 50, 10
_ACCEPT = (
    "text/turtle, application/trig, application/n-quads;q=0.9, application/n-triples;q=0.9, "
    "application/ld+json;q=0.5"
)


class LdesNode(Struct, omit_defaults=True):
    """What is known of a page.

    Args:
        nodes: The pages to which its relations lead.
        immutable: Whether it never changes.
        condition: The header field of a conditional request.
        members: A digest of each of its members; none of an immutable page.
        nameless: The number of members without a URI that can be used.
    """

    nodes: tuple[str, ...] = ()
    immutable: bool = False
    condition: tuple[str, str] | None = None
    members: tuple[str, ...] = ()
    nameless: int = 0


class LdesCursor(Struct, omit_defaults=True):
    """What was read.

    Args:
        pages: The pages, by URI.
        terms: What the stream states about its members.
        deleted: The datetimes of deletions: a stream that is divided into other pages shows older
            versions again.
    """

    pages: dict[str, LdesNode] = {}
    terms: StreamTerms = StreamTerms()
    deleted: dict[str, Instant] = {}


_decode = msgspec.json.Decoder(LdesCursor).decode


class LdesAdapter:
    """Reads an event stream.

    Args:
        url: The URL of the stream, or of its first page.
    """

    def __init__(self, url: str, client: OriginClient) -> None:
        self._url = url
        self._client = client
        self._last = LdesCursor()

    def terms(self) -> OriginTerms:
        """Return what the stream shows, by its statements."""
        stream = self._last.terms
        limits = ["A member that leaves the stream is not seen."]
        if stream.timestamp is None:
            limits.append("There is no timestampPath: the version that is read last counts.")
        if nameless := sum(node.nameless for node in self._last.pages.values()):
            limits.append(f"{nameless:,} members have no URI that can be used, and are left out.")
        return OriginTerms(
            "LDES",
            None,
            "A deletion is never seen."
            if stream.deleted is None
            else f"A deletion is seen as a member with {stream.deleted}.",
            tuple(limits),
        )

    async def changes(self, cursor: str | None, known: KnownEntries) -> AsyncIterator[OriginBatch]:
        """Read the pages that may have changed; yield their new members."""
        state = LdesCursor() if cursor is None else _decode(cursor)
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
            if len(reached) > _MOST_PAGES:
                raise TooLarge(f"it has more than {_MOST_PAGES:,} pages", source=self._url)
            is_long = unstored >= max(_STORED_PAGES, len(state.pages) // _STORED_PART)
            if entries and (is_long or len(entries) >= _BATCH):
                yield OriginBatch(tuple(entries), _encode(state) if is_long else None)
                entries.clear()
                unstored = 0 if is_long else unstored
        state.pages = {uri: node for uri, node in state.pages.items() if uri in reached}
        self._last = state
        text = _encode(state)
        yield OriginBatch(tuple(entries), None if text == cursor else text)

    async def _read(
        self, uri: str, state: LdesCursor, entries: list[SeenEntry | MissingEntry]
    ) -> LdesNode:
        """Request a page; return what is known of it, and add the states that it shows."""
        known = state.pages.get(uri)
        condition = None if known is None else known.condition
        data, answer = await self._client.content(uri, _MOST_BYTES, condition, _ACCEPT)
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
    """Return the state of each resource after some members, and note the deletions."""
    found: dict[str, tuple[Instant | None, SeenEntry | MissingEntry]] = {}
    for member in members:
        uri, at = usable_uri(member.uri), member.at
        if uri is None or _is_before(at, deleted.get(uri)):
            continue
        if uri in found and _is_before(at, found[uri][0]):
            continue
        if member.deleted:
            found[uri] = at, MissingEntry(uri, at=at)
        else:
            found[uri] = at, SeenEntry(Resource(uri, lastmod=at), _state(member), is_ordered=True)
    for uri, (at, entry) in found.items():
        if isinstance(entry, MissingEntry) and at is not None:
            deleted[uri] = at
        else:
            deleted.pop(uri, None)  # its datetime is recorded
    return tuple(entry for _, entry in found.values())


def _is_before(one: Instant | None, other: Instant | None) -> bool:
    return one is not None and other is not None and one < other


def _state(member: StreamMember) -> str:
    return f"{'' if member.at is None else format_datetime(member.at)} {member.identity}".strip()


def _digest(member: StreamMember) -> str:
    text = f"{member.uri} {_state(member)} {member.deleted}"
    return blake2b(text.encode(), digest_size=8).hexdigest()


def _encode(state: LdesCursor) -> str:
    return msgspec.json.encode(state).decode()
