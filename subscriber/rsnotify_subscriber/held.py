"""How a resource is held, and whether something that a Source tells is news to it."""

from __future__ import annotations

from msgspec import Struct

from rsnotify.coverage import Change
from rsnotify.datetimes import to_microseconds
from rsnotify.model import Resource
from rsnotify.vocabulary import ChangeType
from rsnotify_subscriber.fetching.digests import agree


class Held(Struct, frozen=True):
    """How a resource is held; a deletion is kept as a tombstone until it is confirmed.

    Args:
        changed_at: The datetime of the change that led here, in microseconds since 1970.
        hash: The digests of the content, as a `hash` attribute.
        lastmod: As the Source listed it, in microseconds since 1970.
        validator: The header field that asks for the content only if it has changed.
    """

    uri: str
    changed_at: int
    change: str
    hash: str | None = None
    length: int | None = None
    lastmod: int | None = None
    validator: str | None = None

    @property
    def is_there(self) -> bool:
        """Whether the copy has the resource."""
        return self.change != ChangeType.DELETED

    def covers(self, change: Change) -> bool:
        """Tell whether a change need not be applied any more: this one or a later one was."""
        if self.is_there and ends(change, self.hash, self.lastmod):
            return False
        at = to_microseconds(change.at)
        if self.changed_at != at or change.resource.change is None:
            # An entry of a Resource List was compared already, and found to differ.
            return self.changed_at > at
        if self.change != change.change.value:
            return False
        same = agree(self.hash, change.resource.hash)
        # A datetime in whole seconds may stand for several changes.
        return same if same is not None else change.at.microsecond != 0

    def is_as_listed(self, resource: Resource) -> bool:
        """Tell whether an entry of a Resource List says nothing new."""
        if not self.is_there:
            return False
        same = agree(self.hash, resource.hash)
        if same is not None or resource.lastmod is None:
            return same is True
        return self.lastmod == to_microseconds(resource.lastmod) and (
            resource.length in (None, self.length)
        )


def ends(change: Change, hash: str | None, lastmod: int | None) -> bool:
    """Tell whether a change is the deletion of the very version that has this hash or lastmod.

    Then it came after that version, though its own datetime may lie before: some Sources date
    a deletion with the last modification of what they deleted.

    Args:
        change: The change.
        hash: The digests of the version.
        lastmod: Its last modification, in microseconds since 1970.
    """
    if not change.dated_by_lastmod:
        return False
    same = agree(hash, change.resource.hash)
    if same is not None or lastmod is None or change.resource.lastmod is None:
        return same is True
    return lastmod == to_microseconds(change.resource.lastmod)
