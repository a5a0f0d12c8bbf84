"""Tuning of a Publisher. The defaults suit a Source of any size."""

from __future__ import annotations

from typing import Annotated

import msgspec
from msgspec import Meta, Struct

from rsnotify.errors import ConfigurationError
from rsnotify.format.model import MAX_BYTES, MAX_ENTRIES
from rsnotify.runtime.settings import WrongSetting, convert_settings
from rsnotify_publisher.view import check_views

# The types alone enforce nothing; `check_options` checks them.
_Seconds = Annotated[float, Meta(gt=0)]
#: Seconds, or a cron expression such as "cron: 0 3 * * *"; see `parse_schedule`.
_Schedule = (
    _Seconds | Annotated[str, Meta(description='a cron expression such as "cron: 0 3 * * *"')]
)
_Positive = Annotated[int, Meta(ge=1)]
# The limits of a document (core §7).
_Entries = Annotated[int, Meta(ge=1, le=MAX_ENTRIES)]
_Bytes = Annotated[int, Meta(ge=1, le=MAX_BYTES)]


class Options(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Tuning of a Publisher.

    The arguments are in four groups: rotation and retention, lists and dumps, the form of
    documents, and push.

    `rotate`, `keep`, `resource_list_every` and `resource_dump_every` accept cron expressions:
    "cron:" and five fields (minute, hour, day of the month, month, day of the week), in UTC. If a
    scheduled time passes while the Source is stopped, the job runs at the next start, provided that
    is within an hour. If several times pass, the job runs once.

    Args:
        rotate: When changes move from the open Change List to a closed one. When a count, age or
            size is reached, whichever comes first, the older half is closed: "500 changes or 1 h".
            At the times of a cron expression, all changes are closed:
            "10,000 changes or cron: 0 3 * * *".
        keep: How long closed documents are offered, for each archive separately, such as
            "30 days, 1000 lists, 2 GB". Documents that ended within the age stay, regardless of
            size. Older documents stay while they are among the newest that fit the count and the
            size. With an age, changes in the open Change List are also closed at that age, if
            `rotate` contains neither an age nor a cron expression. With a cron expression,
            documents are dropped only at its times: "30 days, cron: 0 4 * * sun".
        linger: Seconds for which a file stays readable after its document has been replaced or
            dropped from an archive, for clients that have just read its URL.
        resource_list_every: Seconds between two Resource Lists, or a cron expression. The first is
            written at the start, the others only if there are changes. If this is in seconds, a
            list is also written when recording pauses for 5 s after many changes: at least 1,000,
            and at least as many as the last list has entries.
        resource_list_archive: Keep former Resource Lists in an archive.
        resource_dump_every: Seconds between two Resource Dumps, or a cron expression. None disables
            them. Requires `content`. The first is written at once, the others only if there are
            changes.
        resource_dump_archive: Keep former Resource Dumps in an archive.
        change_dump: Package the content of the changes in each closed Change List. Requires
            `content`.
        change_dump_archive: Move older packages from the Change Dump to an archive.
        profile: "1.1", which readers of ResourceSync 1.0 can also follow, or "1.0".
        gzip: Write closed Change Lists and parts of Resource Lists as `.xml.gz`.
        max_entries: Maximum number of entries in one document before it gets an index.
        max_bytes: Maximum number of bytes in one document before it gets an index.
        refresh: Maximum number of seconds until the file of the open Change List contains a change.
            If this is more than 10, Destinations that read the file and also receive push report
            a doubt.
        views: Also write the changes in other formats: "iiif" (IIIF Change Discovery 1.0),
            "ldes" (Linked Data Event Streams), and others that installed packages offer. They
            begin where the Change List Archive begins.
        change_memory: List the change memory in the Capability List. Set this if `application` or
            `routes` serve it.
        heartbeat: Seconds without a change before a hub receives a heartbeat, and between two
            digests of the set that are sent with changes.
        fragment_entries: Maximum number of changes in one fragment.
        fragment_bytes: Maximum number of bytes in one fragment, unless a single change is larger.
        framework: Also notify the hubs of new documents, on a separate channel.
        framework_url: Also list that channel in the Source Description as a `<url>`, as described
            in Framework Notification §5. Some clients, including `resync`, mistake it for a second
            set of resources and stop.
        poll: Seconds between two checks for changes that other processes recorded.
        grace: Seconds for which `close` waits for the hubs to accept the remaining changes.
    """

    # Rotation and retention.
    rotate: str = "10,000 changes or 25 MB"
    keep: str = "1000 lists"
    linger: Annotated[float, Meta(ge=0)] = 600.0
    # Lists and dumps of the whole set, and packages of changes.
    resource_list_every: _Schedule = 900.0
    resource_list_archive: bool = False
    resource_dump_every: _Schedule | None = None
    resource_dump_archive: bool = False
    change_dump: bool = False
    change_dump_archive: bool = False
    # The form of documents, and other formats of changes.
    profile: str = "1.1"
    gzip: bool = False
    max_entries: _Entries = MAX_ENTRIES
    max_bytes: _Bytes = MAX_BYTES
    refresh: _Seconds = 1.0
    views: tuple[str, ...] = ()
    change_memory: bool = False
    # Push to hubs.
    heartbeat: _Seconds = 10.0
    fragment_entries: _Entries = 1_000
    fragment_bytes: _Positive = 500_000
    framework: bool = True
    framework_url: bool = False
    poll: _Seconds = 0.015
    grace: Annotated[float, Meta(ge=0)] = 1.0


def check_options(options: Options) -> None:
    """Raise ConfigurationError if a value is out of bounds or has the wrong type."""
    try:
        check_views(convert_settings(msgspec.structs.asdict(options), Options).views)
    except WrongSetting as wrong:
        raise ConfigurationError(f"the options are wrong: {wrong}") from None
