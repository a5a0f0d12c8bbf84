"""The progress of a Destination: T, and what the next run needs to continue from there."""

from __future__ import annotations

from datetime import timedelta

from msgspec import Struct

from rsnotify.format.coverage import EARLIEST, ChangeKey
from rsnotify.format.datetimes import Instant
from rsnotify.format.model import Resource
from rsnotify.sync.closed_lists import KnownLists
from rsnotify.sync.list_fingerprint import ListFingerprint


class MissingResource(Struct, frozen=True, array_like=True):
    """A resource that was announced but is not available.

    Args:
        announced: When documents announced the resource; `EARLIEST` if only push did.
        entry: The entry that announced the resource; None to store whatever version the server
            returns.
        at: The datetime of the entry's change.
    """

    uri: str
    announced: Instant = EARLIEST
    entry: Resource | None = None
    at: Instant = EARLIEST


#: How long caches are expected to serve an old list.
_LONGEST_CACHED = timedelta(hours=1)
_FIRST = EARLIEST + _LONGEST_CACHED


class ComparedList(Struct, frozen=True, array_like=True):
    """The last Resource List that was compared, or the dump if the Source offers no list.

    Args:
        fingerprint: The list's fingerprint, if its first document identifies the list.
        at: The latest known `at` of this list and all lists compared before.
        is_older: Whether this list describes an earlier instant than `at`.
    """

    fingerprint: bytes | None = None
    at: Instant | None = None
    is_older: bool = False


class Progress(Struct, frozen=True, omit_defaults=True):
    """A Destination's progress, stored in one transaction with the changes that it covers.

    Args:
        through: T. Every change up to and including this instant is durably applied.
        confirmed: The Source's documents, not only push, contain all changes up to this instant.
        seen: The changes in the documents that are dated exactly `confirmed`.
        running: Whether more changes may be dated `confirmed`: with datetimes in whole seconds or
            days, that second or day may not have been over when the documents were read.
        prefix: The fingerprint of the last Change List that was read and completely applied.
        missing: Resources that were announced but are not available. T does not wait for them.
        last_list: The last Resource List that was compared and completely applied.
        closed: The closed lists that were read and completely applied.
        coarse_until: The end of the latest coarse datetime, such as a date. A change with that
            datetime may have happened up to this instant.
    """

    through: Instant
    confirmed: Instant
    seen: tuple[ChangeKey, ...] = ()
    running: bool = False
    prefix: ListFingerprint | None = None
    missing: tuple[MissingResource, ...] = ()
    last_list: ComparedList | None = None
    closed: KnownLists = KnownLists()
    coarse_until: Instant = EARLIEST

    @property
    def deletions_since(self) -> Instant:
        """The instant since which deletions are remembered.

        A cache may still serve old copies of the last lists, which announce resources that were
        deleted later.
        """
        since = min(self.confirmed, self.prefix.from_) if self.prefix else self.confirmed
        return max(since, _FIRST) - _LONGEST_CACHED
