"""Selective synchronization: which resources, changes and representations a copy contains.

A `Selection` decides about each entry by its own attributes. An entry that is not selected counts
as applied, so T never waits for it.

A `PushSelection` is the part of a topic that a Destination requests from a hub (docs/protocol.md).
A hub omits only changes that are certainly not selected, and need not omit any. A Destination
therefore requests at least its `Selection`, and still selects the changes itself.

A `WantedRepresentation` is the representation of a selected resource to fetch and store, and its
sources (core §14).
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from functools import cache, lru_cache
from hashlib import sha256
from random import Random

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from rsnotify.errors import ConfigurationError
from rsnotify.format.coverage import Change
from rsnotify.format.datetimes import Instant
from rsnotify.format.inline_content import is_inline
from rsnotify.format.media_types import essence, guess_media_type, is_media_type, matches, may_match
from rsnotify.format.model import ChangeType, Link, Rel, Resource
from rsnotify.format.uris import normalize, normalize_beginning

_ABSOLUTE = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*:\S+")


class Selection(Struct, frozen=True, omit_defaults=True):
    """The resources and changes that a copy contains. An empty field selects everything.

    In a URI pattern, `*` matches any characters, including slashes, and all other characters match
    themselves in any spelling (`~` and `%7E`). A pattern must match the whole URI, with two
    exceptions: a pattern without `://` may match after any slash, and a pattern that ends in a
    slash matches everything below it. Examples: `*.ttl`, `maps/`,
    `https://source.example/data/*/2024-*`.

    Args:
        only: Patterns. A URI must match at least one of them.
        excluded: Patterns. A URI must not match any of them.
        types: Media types, such as `text/turtle` or `text/*`. Without a type in its entry, a
            resource is selected by the file name in its URI. If that suggests no type either, it is
            selected, because an extra resource does less harm than a missing one.
        changes: Types of change. An entry of a Resource List counts as `created` if the copy
            lacks the resource, and otherwise as `updated`. A resource that is no longer listed or
            selected counts as `deleted`, so without `deleted` a copy keeps everything.
        collections: URIs. An entry must have one of them as its collection (core §14.7).
    """

    only: tuple[str, ...] = ()
    excluded: tuple[str, ...] = ()
    types: tuple[str, ...] = ()
    changes: tuple[ChangeType, ...] = ()
    collections: tuple[str, ...] = ()

    def check(self) -> None:
        """Reject values that match nothing, because a typo would empty the copy.

        Raises:
            ConfigurationError: A pattern is empty, or a media type or collection is malformed.
        """
        if not all(pattern.strip() for pattern in (*self.only, *self.excluded)):
            raise ConfigurationError("a URI pattern must not be empty")
        for kind in self.types:
            if not is_media_type(kind):
                raise ConfigurationError(
                    f"{kind!r} is not a media type; write it as text/turtle or text/*"
                )
        for uri in self.collections:
            if not _ABSOLUTE.fullmatch(uri):
                raise ConfigurationError(f"{uri!r} is not a collection; give its absolute URI")

    def describe(self) -> str:
        """Describe the selected resources, using the option names. Return "" for all."""
        parts = {
            "only": self.only,
            "except": self.excluded,
            "type": self.types,
            "collection": self.collections,
        }
        return ", ".join(f"{name} {' '.join(values)}" for name, values in parts.items() if values)

    def wants(self, resource: Resource) -> bool:
        """Return whether the resource of an entry is selected."""
        return (
            self._wants_uri(resource.uri)
            and (not self.types or may_match(resource, self.types))
            and self._wants_collection(resource)
        )

    def decide(self, change: Change, *, held: bool) -> Change | None:
        """Return the change to apply to the copy; None if there is nothing to apply."""
        if not self.wants(change.resource):
            if not held:
                return None
            # A deletion seldom has a type or collection, and a stored resource that is no longer
            # selected is removed.
            change = replace(change, change=ChangeType.DELETED)
        return change if self._wants_change(change, held) else None

    def _wants_uri(self, uri: str) -> bool:
        if not self.only and not self.excluded:
            return True
        uri = normalize(uri)
        if self.only and not any(_matches(uri, pattern) for pattern in self.only):
            return False
        return not any(_matches(uri, pattern) for pattern in self.excluded)

    def _wants_collection(self, resource: Resource) -> bool:
        return not self.collections or any(
            link.rel == Rel.COLLECTION and normalize(link.href) in map(normalize, self.collections)
            for link in resource.links
        )

    def _wants_change(self, change: Change, held: bool) -> bool:
        if not self.changes:
            return True
        if change.change is ChangeType.DELETED:
            return ChangeType.DELETED in self.changes
        # Several changes may have been merged into one, and entries of a baseline have no change.
        kinds = {change.resource.change, ChangeType.UPDATED if held else ChangeType.CREATED}
        return not kinds.isdisjoint(self.changes)


def _matches(uri: str, pattern: str) -> bool:
    # With several `*`, a regular expression would take polynomial time on an untrusted URI.
    return any(_consists_of(uri, pieces) for pieces in _alternatives(pattern))


@cache
def _alternatives(pattern: str) -> tuple[list[str], ...]:
    """Return the patterns to match against normalized URIs, each split at `*`."""
    pattern = normalize_beginning(pattern)
    whole = pattern + "*" if pattern.endswith("/") else pattern
    patterns = (whole,) if "://" in whole else (whole, f"*/{whole}")
    return tuple(each.split("*") for each in patterns)


def _consists_of(text: str, pieces: list[str]) -> bool:
    """Return whether a string consists of these pieces in order, with any text in between."""
    first, *others = pieces
    if not others:
        return text == first
    *middle, last = others
    at, end = len(first), len(text) - len(last)
    if at > end or not (text.startswith(first) and text.endswith(last)):
        return False
    for piece in middle:
        at = text.find(piece, at, end)  # the first match leaves most text for the other pieces
        if at < 0:
            return False
        at += len(piece)
    return True


#: Maximum number of prefixes, and of media types, in a selection.
MAX_PREFIXES = MAX_TYPES = 100
#: Maximum length of a selection's canonical JSON, in bytes.
MAX_JSON_BYTES = 8_192

#: A prefix, without characters that a JSON encoder may escape.
_PREFIX = re.compile(r'[A-Za-z][A-Za-z0-9+.-]*:[^\s"\\\x00-\x20\x7f]*')


class PushSelection(Struct, frozen=True, omit_defaults=True):
    """The changes on a topic that a hub sends. An empty field selects everything.

    Args:
        prefixes: URI prefixes in any spelling. The URI of a resource must begin with one of them.
        types: Media types, such as `text/turtle` or `text/*`. The type of a change is taken from
            its entry or, if absent, guessed from its URI. Changes without a known type, and all
            deletions, are sent. An update is sent if either type matches, because the type may have
            changed.
        changes: Types of change.
    """

    prefixes: tuple[str, ...] = ()
    types: tuple[str, ...] = ()
    changes: tuple[ChangeType, ...] = ()

    def __bool__(self) -> bool:
        """Return whether the selection can omit anything."""
        return bool(self.prefixes or self.types or self.changes)

    def admits(self, resource: Resource) -> bool:
        """Return whether to send the change in an entry."""
        if self.prefixes and not normalize(resource.uri).startswith(_normal(self.prefixes)):
            return False
        if self.changes and resource.change is not None and resource.change not in self.changes:
            return False
        # A deletion seldom has the type of the deleted resource.
        if resource.change is ChangeType.DELETED or may_match(resource, self.types):
            return True
        if resource.change is ChangeType.CREATED:
            return False
        kind = guess_media_type(resource.uri)
        return kind is not None and matches(kind, self.types)

    def canonical(self) -> PushSelection:
        """Return the canonical form, which is the same for all equivalent selections.

        Raises:
            ConfigurationError: The selection is too long, has too many prefixes or types, or
                contains a malformed prefix or media type.
        """
        _check(self)
        types = set(map(essence, self.types))
        changes = set(self.changes)
        found = PushSelection(
            prefixes=tuple(_shortest(self.prefixes)),
            types=() if "*/*" in types else tuple(sorted(types)),
            changes=() if changes == set(ChangeType) else tuple(sorted(changes)),
        )
        if len(found.canonical_json) > MAX_JSON_BYTES:
            reason = f"a selection has more than {MAX_JSON_BYTES} bytes; shorten it"
            raise ConfigurationError(reason)
        return found

    @property
    def canonical_json(self) -> bytes:
        """The selection as JSON without whitespace, and without empty fields."""
        return msgspec.json.encode(self)

    def digest(self, topic: str) -> str:
        """Return the name of the filtered topic: 32 hex digits."""
        return sha256(topic.encode() + b"\n" + self.canonical_json).hexdigest()[:32]


#: The selection of all changes.
EVERYTHING = PushSelection()


@lru_cache(maxsize=256)  # regardless of the number of subscribers
def _normal(prefixes: tuple[str, ...]) -> tuple[str, ...]:
    return tuple(map(normalize_beginning, prefixes))


def push_selection_for(selection: Selection) -> PushSelection:
    """Return the selection to request from a hub. It matches every selected resource, or more."""
    prefixes = [normalize_beginning(_literal(pattern)) for pattern in selection.only]
    requested = PushSelection(
        prefixes=tuple(prefixes) if all(map(_PREFIX.fullmatch, prefixes)) else (),
        types=selection.types,
        changes=selection.changes,
    )
    try:
        return requested.canonical()
    except ConfigurationError:
        return EVERYTHING


def _literal(pattern: str) -> str:
    """Return the common prefix of all URIs that a pattern matches; empty if there is none."""
    # A pattern without a scheme may begin after any slash.
    return pattern.partition("*")[0] if "://" in pattern else ""


def _check(select: PushSelection) -> None:
    if len(select.prefixes) > MAX_PREFIXES or len(select.types) > MAX_TYPES:
        raise ConfigurationError(f"a selection has more than {MAX_PREFIXES} prefixes or types")
    for prefix in select.prefixes:
        if not _PREFIX.fullmatch(prefix):
            raise ConfigurationError(f"{prefix[:80]!r} is not the beginning of an absolute URI")
    for kind in select.types:
        if not is_media_type(kind):
            raise ConfigurationError(f"{kind[:80]!r} is not a media type; write it as text/turtle")


def _shortest(prefixes: Iterable[str]) -> Iterable[str]:
    """Yield the prefixes that do not begin with another prefix, in order."""
    last: str | None = None
    for prefix in sorted(set(prefixes)):
        if last is None or not prefix.startswith(last):
            last = prefix
            yield prefix


#: The priority of a link without `pri`, which is the lowest (core §7).
_DEFAULT_PRI = 999_999


class RepresentationSource(Struct, frozen=True):
    """A URI to GET a representation from. For a TimeGate, `moment` is the `Accept-Datetime`."""

    uri: str
    moment: Instant | None = None


class WantedRepresentation(Struct, frozen=True):
    """A representation, and all announced sources of its content.

    Args:
        entry: The entry with the representation's hash, length, path, type and lastmod.
        home: The representation's own URI. Its response is used if no source has the content.
        sources: The URIs from which to fetch the representation, in the order to try them.
        inline: `data:` URIs with the content.
        package: The URI of the package whose manifest had the entry. It contains the content at
            `entry.path`, if that is set, and each patch at the `path` of its link.
        patches: Links to patches that turn the previous version into this representation.
        alternate: The link to the representation, unless it is the one at `loc`.
        at: The announced datetime of the representation: that of the change or, in a Resource List,
            of the last modification. None if none is announced.
    """

    entry: Resource
    home: RepresentationSource
    sources: tuple[RepresentationSource, ...]
    inline: tuple[str, ...] = ()
    package: str | None = None
    patches: tuple[Link, ...] = ()
    alternate: Link | None = None
    at: Instant | None = None


def wanted_representation(
    change: Change,
    prefer: Sequence[str] = (),
    *,
    exact: bool = False,
    random: Random | None = None,
) -> WantedRepresentation:
    """Return the representation to fetch for a change that is not a deletion.

    `prefer` has media types in order of preference; if none of them is offered, the representation
    at `loc` is used. With `exact`, URIs of this exact version are tried before URIs of the current
    version. `random` shuffles mirrors of equal priority to spread the load.
    """
    resource = change.resource
    if not resource.links:  # true for most resources, so only this case has to be fast
        home = RepresentationSource(resource.uri)
        at = _made(change, resource)
        return WantedRepresentation(resource, home, (home,), package=change.package, at=at)
    alternate = preferred_alternate(resource, prefer)
    if alternate is not None:
        entry = _as_linked(resource, alternate)
        wanted = wanted_link_target(alternate, change.package)
        return replace(wanted, entry=entry, alternate=alternate, at=_made(change, entry))
    home = RepresentationSource(resource.uri)
    return WantedRepresentation(
        resource,
        home,
        _sources(resource, home, exact, random),
        inline=tuple(link.href for link in _links(resource, Rel.DUPLICATE) if is_inline(link)),
        package=change.package,
        patches=_links(resource, Rel.PATCH),
        at=_made(change, resource),
    )


def _made(change: Change, entry: Resource) -> Instant:
    return change.at if change.resource.change is not None else entry.lastmod or change.at


def has_inline_content(change: Change) -> bool:
    """Return whether a change needs no GET, because it is a deletion or has inline content."""
    return change.change is ChangeType.DELETED or any(map(is_inline, change.resource.links))


def wanted_link_target(link: Link, package: str | None = None) -> WantedRepresentation:
    """Return the representation that a link refers to, for example a patch.

    `package` is the URI of the package whose manifest had the link, if any.
    """
    home = RepresentationSource(link.href)
    return WantedRepresentation(
        Resource(link.href, hash=link.hash, length=link.length, path=link.path, type=link.type),
        home,
        () if is_inline(link) else (home,),
        inline=(link.href,) if is_inline(link) else (),
        package=package,
    )


def describe_representation(resource: Resource, prefer: Sequence[str]) -> Resource:
    """Return an entry with the hash, length and so on of the representation to store."""
    alternate = preferred_alternate(resource, prefer)
    return resource if alternate is None else _as_linked(resource, alternate)


def preferred_alternate(resource: Resource, prefer: Sequence[str]) -> Link | None:
    """Return the link to an alternate preferred over `loc` (core §14.3); None if there is none."""
    if not prefer:
        return None
    offered = _links(resource, Rel.ALTERNATE)
    for media_type in map(essence, prefer):
        if resource.type is not None and essence(resource.type) == media_type:
            return None
        for link in offered:
            if link.type is not None and essence(link.type) == media_type:
                return link
    return None


def _as_linked(resource: Resource, link: Link) -> Resource:
    return replace(
        resource,
        lastmod=link.modified or resource.lastmod,
        encoding=link.encoding,
        hash=link.hash,
        length=link.length,
        path=link.path,
        type=link.type,
    )


def _sources(
    resource: Resource, home: RepresentationSource, exact: bool, random: Random | None
) -> tuple[RepresentationSource, ...]:
    """Return the sources in order: mirrors with a priority, `loc`, other mirrors (core §14.2).

    Mirrors require a hash, because nothing else shows whether they are up to date.
    """
    mirrors = _web_links(resource, Rel.DUPLICATE, random) if resource.hash is not None else []
    first = [RepresentationSource(link.href) for link in mirrors if link.pri is not None]
    last = [RepresentationSource(link.href) for link in mirrors if link.pri is None]
    current = (*first, home, *last)
    versions = _versions(resource) if exact else ()
    # Without a hash, nothing shows whether the current content is another version.
    return (*versions, *current) if resource.hash is not None or not versions else versions


def _versions(resource: Resource) -> tuple[RepresentationSource, ...]:
    mementos = [RepresentationSource(link.href) for link in _web_links(resource, Rel.MEMENTO)]
    if resource.lastmod is not None:
        gates = _web_links(resource, Rel.TIMEGATE)
        mementos += [RepresentationSource(link.href, resource.lastmod) for link in gates]
    return tuple(mementos)


def _links(resource: Resource, rel: str, random: Random | None = None) -> tuple[Link, ...]:
    found = [link for link in resource.links if link.rel == rel]
    if len(found) < 2:
        return tuple(found)
    if random is not None:
        random.shuffle(found)
    return tuple(sorted(found, key=lambda link: link.pri or _DEFAULT_PRI))


def _web_links(resource: Resource, rel: str, random: Random | None = None) -> list[Link]:
    links = _links(resource, rel, random)
    return [link for link in links if link.href.partition(":")[0].lower() in ("http", "https")]
