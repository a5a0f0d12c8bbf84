"""Selective following: which resources and which changes a copy is about.

A selection is decided per entry, from what the entry itself says. What is not selected is
passed over, and counts as applied; so it never holds up T.
"""

from __future__ import annotations

import re
from functools import cache

from msgspec import Struct
from msgspec.structs import replace

from rsnotify.errors import ConfigurationError
from rsnotify.format.coverage import Change
from rsnotify.format.media_types import is_media_type, may_match
from rsnotify.format.model import Resource
from rsnotify.format.vocabulary import ChangeType, Rel

_ABSOLUTE = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*:\S+")


class Selection(Struct, frozen=True, omit_defaults=True):
    """What is followed; each part that is left empty admits everything.

    In a pattern for URIs `*` stands for any characters, a slash among them, and all else for
    itself. It has to match the whole URI, but a pattern without `://` may begin behind any
    slash, and one that ends in a slash stands for all below it: `*.ttl`, `maps/`,
    `https://source.example/data/*/2024-*`.

    Args:
        only: Patterns of which a URI has to match one.
        excluded: Patterns of which a URI may match none.
        types: Media types, as `text/turtle` or `text/*`. Where an entry has none, the name in
            its URI tells; where that tells nothing either, the resource is selected, since one
            too many does less harm than one missing.
        changes: Types of change. An entry of a Resource List is `created` if the resource is
            not held, `updated` if it is; a resource that is not listed any more, or no longer
            selected, is `deleted`. So a copy without `deleted` keeps what it once had.
        collections: URIs of which an entry has to name one as its collection (core §14.7).
    """

    only: tuple[str, ...] = ()
    excluded: tuple[str, ...] = ()
    types: tuple[str, ...] = ()
    changes: tuple[ChangeType, ...] = ()
    collections: tuple[str, ...] = ()

    def check(self) -> None:
        """Refuse what can never match: a slip of the pen would empty the copy.

        Raises:
            ConfigurationError: A pattern is empty, a media type or a collection is none.
        """
        if not all(one.strip() for one in (*self.only, *self.excluded)):
            raise ConfigurationError("a pattern for URIs must not be empty")
        for one in self.types:
            if not is_media_type(one):
                raise ConfigurationError(
                    f"{one!r} is no media type; write it as text/turtle or text/*"
                )
        for one in self.collections:
            if not _ABSOLUTE.fullmatch(one):
                raise ConfigurationError(f"{one!r} is no collection; give its absolute URI")

    def describe(self) -> str:
        """Return which resources are selected, as options name it; empty if all are."""
        parts = {
            "only": self.only,
            "except": self.excluded,
            "type": self.types,
            "collection": self.collections,
        }
        return ", ".join(f"{name} {' '.join(values)}" for name, values in parts.items() if values)

    def wants(self, resource: Resource) -> bool:
        """Tell whether an entry speaks of a resource that is selected."""
        return (
            self._wants_uri(resource.uri)
            and may_match(resource, self.types)
            and self._wants_collection(resource)
        )

    def decide(self, change: Change, *, held: bool) -> Change | None:
        """Return what has to be done about a change; None where nothing is.

        Args:
            change: Of any resource.
            held: Whether the copy has that resource.
        """
        if not self.wants(change.resource):
            if not held:
                return None
            # A deletion seldom tells its type or collection; and what changed is selected no
            # longer, so it leaves the copy.
            change = replace(change, change=ChangeType.DELETED)
        return change if self._wants_change(change, held) else None

    def _wants_uri(self, uri: str) -> bool:
        if self.only and not any(_fits(uri, one) for one in self.only):
            return False
        return not any(_fits(uri, one) for one in self.excluded)

    def _wants_collection(self, resource: Resource) -> bool:
        return not self.collections or any(
            link.rel == Rel.COLLECTION and link.href in self.collections for link in resource.links
        )

    def _wants_change(self, change: Change, held: bool) -> bool:
        if not self.changes:
            return True
        if change.change is ChangeType.DELETED:
            return ChangeType.DELETED in self.changes
        # Several changes may have become one, and a baseline tells of none.
        kinds = {change.resource.change, ChangeType.UPDATED if held else ChangeType.CREATED}
        return not kinds.isdisjoint(self.changes)


def _fits(uri: str, pattern: str) -> bool:
    # Not by a regular expression: with several `*` it takes a power of the length of a URI,
    # which is anybody's.
    return any(_consists_of(uri, pieces) for pieces in _alternatives(pattern))


@cache
def _alternatives(pattern: str) -> tuple[list[str], ...]:
    """Return what a pattern may stand for, each as the pieces between any characters."""
    whole = pattern + "*" if pattern.endswith("/") else pattern
    return tuple(one.split("*") for one in ((whole,) if "://" in whole else (whole, f"*/{whole}")))


def _consists_of(text: str, pieces: list[str]) -> bool:
    """Return whether a text consists of these pieces, in order, with any text between them."""
    first, *others = pieces
    if not others:
        return text == first
    *middle, last = others
    at, end = len(first), len(text) - len(last)
    if at > end or not (text.startswith(first) and text.endswith(last)):
        return False
    for piece in middle:
        at = text.find(piece, at, end)  # the first place leaves most room for the others
        if at < 0:
            return False
        at += len(piece)
    return True
