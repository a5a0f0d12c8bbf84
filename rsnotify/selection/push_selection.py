"""Selective push: the part of a topic that a Destination requests from a hub (docs/protocol.md).

A hub omits only changes that are surely not selected, and may omit nothing at all. So a
Destination with a `Selection` requests at least that, and still selects by itself.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from functools import lru_cache
from hashlib import sha256

import msgspec
from msgspec import Struct

from rsnotify.errors import ConfigurationError
from rsnotify.format.media_types import essence, guess_media_type, is_media_type, matches, may_match
from rsnotify.format.model import Resource
from rsnotify.format.uris import normalize, normalize_beginning
from rsnotify.format.vocabulary import ChangeType
from rsnotify.selection.selection import Selection

#: The most prefixes, and the most media types, of a selection.
MOST = 100
#: The greatest length of a selection's canonical text, in bytes.
LONGEST = 8_192

#: Characters that no JSON encoder escapes in the canonical text.
_PREFIX = re.compile(r'[A-Za-z][A-Za-z0-9+.-]*:[^\s"\\\x00-\x20\x7f]*')


class PushSelection(Struct, frozen=True, omit_defaults=True):
    """The changes of a topic that a hub sends; a part that is empty admits everything.

    Args:
        prefixes: The URI of a resource has to begin with one of them, in any spelling.
        types: Media types, as `text/turtle` or `text/*`, of the entry or else of the name in
            its URI. A change without a known type, and every deletion, is sent. An update is
            sent if either type matches, since the type may have changed.
        changes: Types of change.
    """

    prefixes: tuple[str, ...] = ()
    types: tuple[str, ...] = ()
    changes: tuple[ChangeType, ...] = ()

    def __bool__(self) -> bool:
        """Return whether it omits anything."""
        return bool(self.prefixes or self.types or self.changes)

    def admits(self, resource: Resource) -> bool:
        """Return whether a change is sent."""
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
        """Return the canonical form, which all equivalent selections share.

        Raises:
            ConfigurationError: It has too many parts, or a malformed prefix or media type.
        """
        _check(self)
        types = set(map(essence, self.types))
        changes = set(self.changes)
        found = PushSelection(
            prefixes=tuple(_shortest(self.prefixes)),
            types=() if "*/*" in types else tuple(sorted(types)),
            changes=() if changes == set(ChangeType) else tuple(sorted(changes)),
        )
        if len(found.text) > LONGEST:
            raise ConfigurationError(f"a selection has more than {LONGEST} bytes; ask for less")
        return found

    @property
    def text(self) -> bytes:
        """JSON without white space: prefixes, types and changes, without the empty ones."""
        return msgspec.json.encode(self)

    def digest(self, topic: str) -> str:
        """Return the name of the filtered topic: 32 hex digits."""
        return sha256(topic.encode() + b"\n" + self.text).hexdigest()[:32]


#: The selection of all changes.
EVERYTHING = PushSelection()


@lru_cache(maxsize=256)  # of any number of subscribers
def _normal(prefixes: tuple[str, ...]) -> tuple[str, ...]:
    return tuple(map(normalize_beginning, prefixes))


def push_selection_for(selection: Selection) -> PushSelection:
    """Return what a Destination requests from a hub: at least all that its copy holds."""
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
    """Return the common beginning of all URIs that a pattern matches; empty if there is none."""
    # A pattern without a scheme may begin after any slash.
    return pattern.partition("*")[0] if "://" in pattern else ""


def _check(select: PushSelection) -> None:
    if max(len(select.prefixes), len(select.types)) > MOST:
        raise ConfigurationError(f"a selection has more than {MOST} prefixes or types")
    for prefix in select.prefixes:
        if not _PREFIX.fullmatch(prefix):
            raise ConfigurationError(f"{prefix[:80]!r} is no beginning of an absolute URI")
    for kind in select.types:
        if not is_media_type(kind):
            raise ConfigurationError(f"{kind[:80]!r} is no media type; write it as text/turtle")


def _shortest(prefixes: Iterable[str]) -> Iterable[str]:
    """Yield prefixes in order, without those that begin with another."""
    last: str | None = None
    for prefix in sorted(set(prefixes)):
        if last is None or not prefix.startswith(last):
            last = prefix
            yield prefix
