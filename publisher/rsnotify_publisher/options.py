"""What may be tuned. The defaults suit a Source of any size."""

from __future__ import annotations

from msgspec import Struct

from rsnotify.vocabulary import MAX_BYTES, MAX_ENTRIES


class Options(Struct, frozen=True, kw_only=True):
    """Tuning of a Publisher.

    Args:
        heartbeat: Seconds of quiet before a hub is told that nothing happened.
        max_open: Changes in the open Change List before its older half is closed.
        archived_lists: Closed Change Lists kept; the oldest is removed for a new one.
        max_entries: Entries in one document before a Resource List gets an index.
        max_bytes: Bytes in one document, likewise.
        refresh: Seconds between looks whether the open Change List must be written anew.
        resource_list_every: Seconds between looks at the Resource List, likewise.
        fragment_entries: Changes in one fragment at most.
        fragment_bytes: Bytes in one fragment, unless one change is larger.
        poll: Seconds until a change that another process recorded is noticed.
        grace: Seconds that `close` gives the hubs to take what is left.
    """

    heartbeat: float = 10.0
    max_open: int = 10_000
    archived_lists: int = 1_000
    max_entries: int = MAX_ENTRIES
    max_bytes: int = MAX_BYTES
    refresh: float = 1.0
    resource_list_every: float = 900.0
    fragment_entries: int = 1_000
    fragment_bytes: int = 500_000
    poll: float = 0.015
    grace: float = 1.0
