"""Selective push: what a Destination asks a hub to send of a topic (docs/protocol.md).

A hub leaves out only what surely says nothing of interest, and may leave out nothing at all. So
a Destination that has a `Selection` asks for no less than that, and still decides by itself.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from hashlib import sha256

import msgspec
from msgspec import Struct

from rsnotify.errors import ConfigurationError
from rsnotify.format.media_types import essence, guess_media_type, is_media_type, matches, may_match
from rsnotify.format.model import Resource
from rsnotify.format.vocabulary import ChangeType
from rsnotify.selection.selection import Selection

#: How many prefixes, and how many media types, may be asked for.
MOST = 100
#: How long the canonical text of what is asked for may be, in bytes.
LONGEST = 8_192

#: What needs no escape in the canonical text, whoever writes it.
_PREFIX = re.compile(r'[A-Za-z][A-Za-z0-9+.-]*:[^\s"\\\x00-\x20\x7f]*')


class PushSelection(Struct, frozen=True, omit_defaults=True):
    """What is sent of the changes of a topic; each part that is left empty admits everything.

    Args:
        prefixes: What the URI of a resource has to begin with; one of them is enough.
        types: Media types, as `text/turtle` or `text/*`, by the entry or else by the name in
            its URI. What has no known type, and every deletion, is sent; and what was not just
            created by either, since its type may have changed.
        changes: Types of change.
    """

    prefixes: tuple[str, ...] = ()
    types: tuple[str, ...] = ()
    changes: tuple[ChangeType, ...] = ()

    def __bool__(self) -> bool:
        """Tell whether it leaves out anything."""
        return bool(self.prefixes or self.types or self.changes)

    def admits(self, resource: Resource) -> bool:
        """Tell whether a change is sent.

        Args:
            resource: The entry of a change document.
        """
        if self.prefixes and not resource.uri.startswith(self.prefixes):
            return False
        if self.changes and resource.change is not None and resource.change not in self.changes:
            return False
        # A deletion seldom tells the type of what was there.
        if resource.change is ChangeType.DELETED or may_match(resource, self.types):
            return True
        return resource.change is not ChangeType.CREATED and self._names(resource.uri)

    def _names(self, uri: str) -> bool:
        """Tell whether the name in a URI is one of what is asked for, whatever it is now."""
        kind = guess_media_type(uri)
        return kind is not None and matches(kind, self.types)

    def canonical(self) -> PushSelection:
        """Return the one way to ask for the same.

        Raises:
            ConfigurationError: It has too many parts, or one that is no prefix of a URI or no
                media type.
        """
        _check(self)
        types = {essence(one) for one in self.types}
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
        """JSON without white space: prefixes, types, changes, and nothing of what is empty."""
        return msgspec.json.encode(self)

    def digest(self, topic: str) -> str:
        """Return the name of what is sent of a topic: 32 hex digits.

        Args:
            topic: Its URI.
        """
        return sha256(topic.encode() + b"\n" + self.text).hexdigest()[:32]


#: All that there is.
EVERYTHING = PushSelection()


def push_selection_for(selection: Selection) -> PushSelection:
    """Return what a Destination asks for: all that it may want, if more than that.

    Args:
        selection: What it follows.
    """
    prefixes = [_literal(pattern) for pattern in selection.only]
    wish = PushSelection(
        prefixes=tuple(prefixes) if all(map(_PREFIX.fullmatch, prefixes)) else (),
        types=selection.types,
        changes=selection.changes,
    )
    try:
        return wish.canonical()
    except ConfigurationError:
        return EVERYTHING


def _literal(pattern: str) -> str:
    """Return what each URI begins with that a pattern matches; nothing where that is open."""
    # One that is no whole URI may begin behind any slash.
    return pattern.partition("*")[0] if "://" in pattern else ""


def _check(select: PushSelection) -> None:
    if max(len(select.prefixes), len(select.types)) > MOST:
        raise ConfigurationError(f"a selection has more than {MOST} prefixes or types")
    for one in select.prefixes:
        if not _PREFIX.fullmatch(one):
            raise ConfigurationError(f"{one[:80]!r} is no beginning of an absolute URI")
    for one in select.types:
        if not is_media_type(one):
            raise ConfigurationError(f"{one[:80]!r} is no media type; write it as text/turtle")


def _shortest(prefixes: Iterable[str]) -> Iterable[str]:
    """Return prefixes in order, without those that begin with another."""
    last: str | None = None
    for one in sorted(set(prefixes)):
        if last is None or not one.startswith(last):
            last = one
            yield one
