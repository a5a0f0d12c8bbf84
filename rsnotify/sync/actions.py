"""The actions that a `Follower` requests from the surrounding program, and its progress."""

from __future__ import annotations

from enum import StrEnum

from msgspec import Struct

from rsnotify.format.coverage import EARLIEST, Change, ChangeKey
from rsnotify.format.datetimes import Instant
from rsnotify.format.model import Resource
from rsnotify.sync.list_evidence import KnownLists, ListFingerprint


class DocumentKind(StrEnum):
    """The kinds of documents from which a Destination can catch up, cheapest first."""

    CHANGE_LIST = "Change List"
    CHANGE_LIST_ARCHIVE = "Change List Archive"
    CHANGE_DUMP = "Change Dump"
    CHANGE_DUMP_ARCHIVE = "Change Dump Archive"
    RESOURCE_LIST = "Resource List"
    RESOURCE_DUMP = "Resource Dump"
    RESOURCE_LIST_ARCHIVE = "Resource List Archive"
    RESOURCE_DUMP_ARCHIVE = "Resource Dump Archive"


class Fetch(Struct, frozen=True):
    """GET this document and read it completely. Answer with `fetched` or `fetch_failed`.

    If `package` is set, it is the package's entry in its dump, and the document is the manifest
    inside the ZIP. Until the follower is level, changes may refer to members of this package and of
    the previous one (`Change.package`).
    """

    uri: str
    kind: DocumentKind
    package: Resource | None = None


class Apply(Struct, frozen=True):
    """Apply these changes, each independently. Answer with `applied` or `failed`.

    A change older than the stored version counts as applied, and has no effect.
    """

    changes: tuple[Change, ...]


class StoreBacklog(Struct, frozen=True):
    """Append changes to the backlog. Answer with `backlog_done`.

    Each change comes with the instant that T must not reach before it is applied. The backlog is
    temporary, and must be empty when a follower starts.
    """

    changes: tuple[tuple[Change, Instant], ...]


class TakeBacklog(Struct, frozen=True):
    """Remove changes from the backlog. Answer with `backlog_done` and the changes in order.

    All changes of a resource are removed together. Select the resources in `uris` or, if it is
    empty, up to `most` resources with the earliest instants. `due` is only for the
    follower.
    """

    most: int
    uris: tuple[str, ...] = ()
    due: float | None = None


class ClearBacklog(Struct, frozen=True):
    """Remove everything from the backlog. An answer is ignored."""


class BacklogExtent(Struct, frozen=True):
    """The number of resources in the backlog, and the earliest instant of their changes."""

    resources: int = 0
    since: Instant | None = None


class BeginBaseline(Struct, frozen=True):
    """Forget the resources listed by an earlier baseline. Needs no answer."""


class Compare(Struct, frozen=True):
    """Record these resources as listed. Answer `differing` with those stored differently.

    They are entries of a Resource List as of `at`. Stored resources that changed later do not
    count as different. With `lost`, resources whose content the copy has lost do. `packaged` means
    that the entries come from a package, which has the content itself.
    """

    resources: tuple[Resource, ...]
    at: Instant
    lost: bool = False
    packaged: bool = False


class FindUnlisted(Struct, frozen=True):
    """Answer `unlisted` with the resources that are stored but not listed since `BeginBaseline`.

    Resources that changed after `at`, the instant of the Resource List, do not count.
    """

    at: Instant


class ForgetDatetimes(Struct, frozen=True):
    """Forget the datetimes of resources that are later than `after`. Needs no answer.

    Such a datetime was wrong, and would make the Source's later changes look old for years. The
    resources stay as they are, with an unknown datetime. With `entirely`, forget the progress too,
    because the Source's clock has gone back.
    """

    after: Instant
    entirely: bool = False


class Discover(Struct, frozen=True):
    """Read the Capability List again. Answer with `offered`. Nothing waits for the answer."""


class LogNote(Struct, frozen=True):
    """Write a sentence to the operator's log, for example which document is read and why."""

    text: str
    warning: bool = False


#: Actions on the backlog. They must be performed and answered in order.
BacklogAction = StoreBacklog | TakeBacklog | ClearBacklog
Action = (
    Fetch
    | Apply
    | BacklogAction
    | BeginBaseline
    | Compare
    | FindUnlisted
    | ForgetDatetimes
    | Discover
    | LogNote
)


class ActionList(list[Action]):
    """The actions that follow from the current event."""

    def note(self, text: str, *, warning: bool = False) -> None:
        self.append(LogNote(text, warning))


class MissingResource(Struct, frozen=True, array_like=True):
    """A resource that was announced but is not available.

    Args:
        announced: When the documents announced the resource; `EARLIEST` if only push did.
        entry: The entry that announced the resource; None to store the resource's current version,
            regardless of what was announced.
        at: The datetime of the change that the entry describes.
    """

    uri: str
    announced: Instant = EARLIEST
    entry: Resource | None = None
    at: Instant = EARLIEST


class ComparedList(Struct, frozen=True, array_like=True):
    """The last Resource List that was compared, or the dump if the Source offers nothing else.

    Args:
        fingerprint: The list's fingerprint, if its first document identifies it.
        at: The latest known `at` of this list or one compared before.
        is_older: Whether this list describes an earlier instant than `at`.
    """

    fingerprint: bytes | None = None
    at: Instant | None = None
    is_older: bool = False


class Progress(Struct, frozen=True, omit_defaults=True):
    """The progress that a Destination stores in the same transaction as the state it covers.

    Args:
        through: T. Every change up to and including this instant is durably applied.
        confirmed: The standard documents, not only the hub, have confirmed all changes up to this
            instant.
        seen: The changes that the documents list at exactly `confirmed`.
        running: Whether more changes at that instant may have followed the read: datetimes may be
            whole seconds or days, and that second or day may not have been over.
        prefix: A fingerprint of the last Change List that was read and is completely applied.
        missing: Resources that were announced but are not available. T does not wait for them.
        last_list: The last Resource List that was compared and is completely applied.
        closed: The closed lists that are known and completely applied.
        coarse_until: Changes with a coarse datetime, such as a date, may have happened up to this
            instant.
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
