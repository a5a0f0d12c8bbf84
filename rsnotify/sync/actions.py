"""The actions that a `Follower` requests from its caller."""

from __future__ import annotations

from enum import StrEnum

from msgspec import Struct

from rsnotify.format.coverage import Change
from rsnotify.format.datetimes import Instant
from rsnotify.format.model import Resource


class DocumentKind(StrEnum):
    """The kinds of documents from which a Destination can catch up."""

    CHANGE_LIST = "Change List"
    CHANGE_LIST_ARCHIVE = "Change List Archive"
    CHANGE_DUMP = "Change Dump"
    CHANGE_DUMP_ARCHIVE = "Change Dump Archive"
    RESOURCE_LIST = "Resource List"
    RESOURCE_DUMP = "Resource Dump"
    RESOURCE_LIST_ARCHIVE = "Resource List Archive"
    RESOURCE_DUMP_ARCHIVE = "Resource Dump Archive"


class Fetch(Struct, frozen=True):
    """GET a document and read all of it. Answer with `fetched` or `fetch_failed`.

    If `package` is set, it is the package's entry in its dump, and the document is the manifest
    inside the ZIP. Keep this package and the previous one until the follower is level, because
    changes refer to their members (`Change.package`).
    """

    uri: str
    kind: DocumentKind
    package: Resource | None = None


class Apply(Struct, frozen=True):
    """Apply these changes independently of each other. Answer each with `applied` or `failed`.

    A change that is older than the stored version has no effect, and counts as applied.
    """

    changes: tuple[Change, ...]


class StoreBacklog(Struct, frozen=True):
    """Append changes to the backlog. Answer with `backlog_done`.

    Each change has an instant that T must not reach before the change is applied. The backlog is
    temporary: it must be empty when a follower starts.
    """

    changes: tuple[tuple[Change, Instant], ...]


class TakeBacklog(Struct, frozen=True):
    """Remove changes from the backlog. Answer with `backlog_done` and the changes in order.

    Remove all changes of each resource in `uris` or, if it is empty, of up to `most` resources with
    the earliest instants. Only the follower uses `due`.
    """

    most: int
    uris: tuple[str, ...] = ()
    due: float | None = None


class ClearBacklog(Struct, frozen=True):
    """Empty the backlog. An answer is ignored."""


class BacklogExtent(Struct, frozen=True):
    """The number of resources in the backlog, and the earliest instant of their changes."""

    resources: int = 0
    since: Instant | None = None


class BeginBaseline(Struct, frozen=True):
    """Forget which resources an earlier baseline listed. Needs no answer."""


class Compare(Struct, frozen=True):
    """Record the entries of a Resource List as of `at`. Answer with `differing`.

    Ignore differences in resources that were stored with a later datetime. With `lost`, report
    resources whose content the copy has lost. `packaged` means that the entries are from a package,
    which contains the content.
    """

    resources: tuple[Resource, ...]
    at: Instant
    lost: bool = False
    packaged: bool = False


class FindUnlisted(Struct, frozen=True):
    """Find stored resources that are not listed since `BeginBaseline`. Answer with `unlisted`.

    Ignore resources that changed after `at`, the instant of the Resource List.
    """

    at: Instant


class ForgetDatetimes(Struct, frozen=True):
    """Forget stored datetimes of resources that are later than `after`. Needs no answer.

    These datetimes are wrong: until they are past, all changes to the resources would look old.
    With `entirely`, forget the progress too, because the Source's clock has gone back.
    """

    after: Instant
    entirely: bool = False


class Discover(Struct, frozen=True):
    """Read the Capability List again. Answer with `offered`, at any time."""


class LogNote(Struct, frozen=True):
    """Log a message for the operator, for example which document is read and why."""

    text: str
    warning: bool = False


#: Actions on the backlog, which must be performed and answered in order.
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
    """The actions requested by the current event."""

    def note(self, text: str, *, warning: bool = False) -> None:
        self.append(LogNote(text, warning))
