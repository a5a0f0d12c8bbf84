"""Tuning of a Publisher. The defaults suit a Source of any size."""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec
from msgspec import Meta, Struct

from rsnotify.errors import ConfigurationError
from rsnotify.format.vocabulary import MAX_BYTES, MAX_ENTRIES
from rsnotify.runtime.config.wrong_setting import WrongSetting, convert_settings

# Types check nothing by themselves; `check_options` does.
_Seconds = Annotated[float, Meta(gt=0)]
#: Seconds, or a cron expression such as "cron: 0 3 * * *", see `schedule`.
_Schedule = (
    _Seconds | Annotated[str, Meta(description='a cron expression such as "cron: 0 3 * * *"')]
)
_Positive = Annotated[int, Meta(ge=1)]
# What a document may hold (core §7).
_Entries = Annotated[int, Meta(ge=1, le=MAX_ENTRIES)]
_Bytes = Annotated[int, Meta(ge=1, le=MAX_BYTES)]


class Options(Struct, frozen=True, kw_only=True):
    """Tuning of a Publisher.

    `rotate`, `keep`, `resource_list_every` and `resource_dump_every` accept cron expressions:
    "cron:" and five fields (minute, hour, day of the month, month, day of the week), in UTC. A time
    that passed while the Source was stopped is made up for at the next start, if that is within an
    hour; several such times make one run.

    Args:
        heartbeat: Seconds without a change before a hub is sent a heartbeat, and between two
            digests of the set that are sent with changes.
        rotate: When changes move from the open Change List to a closed one. At a count, age or
            size, whichever comes first, the older half is closed: "500 changes or 1 h". At a time
            of a cron expression, all are closed: "10,000 changes or cron: 0 3 * * *".
        keep: How long closed documents are offered, in each archive by itself, such as
            "30 days, 1000 lists, 2 GB". What ended within the age stays, whatever its size;
            older documents stay while they are among the newest within the count and the size.
            With an age, changes in the open Change List are also closed at that age, if
            `rotate` states neither an age nor a cron expression. With a cron expression,
            documents are dropped only at its times: "30 days, cron: 0 4 * * sun".
        linger: Seconds that a file stays readable after its document was replaced, or dropped
            from an archive, for clients that have just read its URL.
        resource_list_archive: Keep former Resource Lists, in an archive.
        resource_dump_every: Seconds between two Resource Dumps, or a cron expression; None writes
            none. It needs `content`. The first is written at once, the others if there are changes.
        resource_dump_archive: Keep former Resource Dumps, in an archive.
        change_dump: Pack the content of the changes of each closed Change List. It needs
            `content`.
        change_dump_archive: Move older packages from the Change Dump to an archive.
        gzip: Write closed Change Lists and parts of Resource Lists as `.xml.gz`.
        profile: "1.1", which readers of ResourceSync 1.0 can follow too, or "1.0".
        framework: Also notify the hubs of new documents, on a channel of its own.
        framework_url: List that channel in the Source Description by a `<url>` too, as Framework
            Notification §5 has it. Some clients, `resync` among them, take it for a second set
            of resources and stop.
        change_memory: List the change memory in the Capability List, because `application` or
            `routes` serve it.
        views: Also write the changes in other formats: "iiif" (IIIF Change Discovery 1.0) and
            "ldes" (Linked Data Event Streams). They begin where the Change List Archive begins.
        max_entries: Entries in one document before it gets an index.
        max_bytes: Bytes in one document before it gets an index.
        refresh: Seconds until a change is in the file of the open Change List at the latest. With
            more than 10, Destinations that read the file and are pushed to report a doubt.
        resource_list_every: Seconds between two Resource Lists, or a cron expression; one is
            written at the start, the others if there are changes.
        fragment_entries: Largest number of changes in one fragment.
        fragment_bytes: Bytes in one fragment, unless a single change is larger.
        poll: Seconds until a change that another process recorded is noticed.
        grace: Seconds that `close` waits for the hubs to accept what is left.
    """

    heartbeat: _Seconds = 10.0
    rotate: str = "10,000 changes or 25 MB"
    keep: str = "1000 lists"
    linger: Annotated[float, Meta(ge=0)] = 600.0
    resource_list_archive: bool = False
    resource_dump_every: _Schedule | None = None
    resource_dump_archive: bool = False
    change_dump: bool = False
    change_dump_archive: bool = False
    gzip: bool = False
    profile: str = "1.1"
    framework: bool = True
    framework_url: bool = False
    change_memory: bool = False
    views: tuple[Literal["iiif", "ldes"], ...] = ()
    max_entries: _Entries = MAX_ENTRIES
    max_bytes: _Bytes = MAX_BYTES
    refresh: _Seconds = 1.0
    resource_list_every: _Schedule = 900.0
    fragment_entries: _Entries = 1_000
    fragment_bytes: _Positive = 500_000
    poll: _Seconds = 0.015
    grace: Annotated[float, Meta(ge=0)] = 1.0


def check_options(options: Options) -> None:
    """Raise ConfigurationError if a value is out of bounds or of another type."""
    try:
        convert_settings(msgspec.structs.asdict(options), Options)
    except WrongSetting as wrong:
        raise ConfigurationError(f"the options are wrong: {wrong}") from None
