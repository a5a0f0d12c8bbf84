"""What a `Follower` asks the surrounding program to do, and the progress the program stores."""

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
    """GET this document and read it to its end; answer with `fetched` or `fetch_failed`.

    A `package` is the entry of a package in its dump, and the document is the manifest inside the
    ZIP. Until the follower is level, changes may refer to the members of this package and of the
    one before it (`Change.package`).
    """

    uri: str
    kind: DocumentKind
    package: Resource | None = None


class Apply(Struct, frozen=True):
    """Apply these changes, each on its own; answer with `applied` or `failed`.

    A change older than the stored version counts as applied, and has no effect.
    """

    changes: tuple[Change, ...]


class StoreBacklog(Struct, frozen=True):
    """Append changes to the backlog; answer with `backlog_done`.

    Each has the instant that T must not reach before it is applied. The backlog is temporary: it is
    empty when a follower starts.
    """

    changes: tuple[tuple[Change, Instant], ...]


class TakeBacklog(Struct, frozen=True):
    """Remove changes from the backlog; answer with `backlog_done`, and the changes in their order.

    All changes of a resource are removed together: those of the resources `uris` or, without any,
    those of the at most `most` resources with the earliest instants. `due` is for the follower.
    """

    most: int
    uris: tuple[str, ...] = ()
    due: float | None = None


class ClearBacklog(Struct, frozen=True):
    """Remove everything from the backlog. An answer is ignored."""


class BacklogExtent(Struct, frozen=True):
    """How many resources have changes in the backlog, and the earliest instant of these changes."""

    resources: int = 0
    since: Instant | None = None


class BeginBaseline(Struct, frozen=True):
    """Forget which resources an earlier baseline has listed. Needs no answer."""


class Compare(Struct, frozen=True):
    """Record these resources as listed, and answer `differing` with those stored differently.

    They are entries of a Resource List as of `at`; stored resources that changed later do not
    count. With `lost`, those whose content the copy has lost count as differing. `packaged` says
    that they are the entries of a package, which has the content itself.
    """

    resources: tuple[Resource, ...]
    at: Instant
    lost: bool = False
    packaged: bool = False


class FindUnlisted(Struct, frozen=True):
    """Answer `unlisted` with the resources that are stored, but not listed since `BeginBaseline`.

    Resources that changed after `at`, which the Resource List describes, do not count.
    """

    at: Instant


class ForgetDatetimes(Struct, frozen=True):
    """Forget the datetimes of resources that are later than `after`. Needs no answer.

    Such a datetime was wrong, and would make the Source's later changes look old for years. The
    resources stay as they are, with an unknown datetime. With `entirely`, the progress is forgotten
    too, as the Source's clock has gone back.
    """

    after: Instant
    entirely: bool = False


class Discover(Struct, frozen=True):
    """Read the Capability List again; answer with `offered`. Nothing waits for it."""


class LogNote(Struct, frozen=True):
    """Write a sentence to the operator's log: for example, which document is read and why."""

    text: str
    warning: bool = False


#: The actions on the backlog; they are carried out, and answered, in their order.
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
        announced: When the documents announced it; `EARLIEST` if only push did.
        entry: The entry that announced it; None if its current version is to be stored, whatever
            was announced.
        at: The datetime of the change that the entry describes.
    """

    uri: str
    announced: Instant = EARLIEST
    entry: Resource | None = None
    at: Instant = EARLIEST


class ComparedList(Struct, frozen=True, array_like=True):
    """The Resource List that was compared last; the dump, if the Source offers nothing else.

    Args:
        fingerprint: A fingerprint, if its first document identifies it.
        at: The latest instant described by it, or by one compared before, if any is known.
        is_older: Whether it describes an earlier instant.
    """

    fingerprint: bytes | None = None
    at: Instant | None = None
    is_older: bool = False


class Progress(Struct, frozen=True, omit_defaults=True):
    """What a Destination stores in the same transaction as the state it covers.

    Args:
        through: T: every change up to and including this instant is durably applied.
        confirmed: The standard documents, not only the hub, have confirmed the changes up to here.
        seen: The changes that the documents list at exactly `confirmed`.
        running: Whether more changes of that same instant may have followed since it was read:
            datetimes may be whole seconds or days, and that second or day may not have been over.
        prefix: A fingerprint of the Change List that was read last and is applied completely.
        missing: Resources that were announced and are not available. T does not wait for them.
        last_list: The Resource List that was compared last and is applied completely.
        closed: The closed lists that are known and applied completely.
        coarse_until: Changes with a coarse datetime, such as a date, may have happened up to here.
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
