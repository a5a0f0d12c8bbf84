"""What a `Follower` asks of the program around it."""

from __future__ import annotations

from enum import StrEnum

from msgspec import Struct

from rsnotify.format.coverage import Change
from rsnotify.format.datetimes import Instant
from rsnotify.format.frontier import ChangeKey
from rsnotify.format.model import Resource
from rsnotify.sync.list_fingerprint import ListFingerprint


class DocumentKind(StrEnum):
    """The rungs of the ladder on which a Destination gets level, cheapest first."""

    CHANGE_LIST = "Change List"
    CHANGE_LIST_ARCHIVE = "Change List Archive"
    CHANGE_DUMP = "Change Dump"
    CHANGE_DUMP_ARCHIVE = "Change Dump Archive"
    RESOURCE_LIST = "Resource List"
    RESOURCE_DUMP = "Resource Dump"
    RESOURCE_LIST_ARCHIVE = "Resource List Archive"
    RESOURCE_DUMP_ARCHIVE = "Resource Dump Archive"


class Fetch(Struct, frozen=True):
    """GET and read this document to its end; answer with `fetched` or `fetch_failed`.

    Args:
        uri: The document, or the package.
        rung: What it was reached by.
        package: The entry of a package in its dump. The document is then the manifest inside
            the ZIP; the members of this package and of the one before it may be asked for as
            content (`Change.package`), until the follower is level.
    """

    uri: str
    rung: DocumentKind
    package: Resource | None = None


class Apply(Struct, frozen=True):
    """Apply these changes, each on its own; answer with `applied` or `failed`.

    A change that is older than what is held already is applied by doing nothing.
    """

    changes: tuple[Change, ...]


class BeginBaseline(Struct, frozen=True):
    """Forget which resources were seen in an earlier baseline. Needs no answer."""


class Compare(Struct, frozen=True):
    """Note these resources as seen, and answer `differing` with those not held like this.

    Args:
        resources: Entries of a Resource List.
        at: The instant the list speaks of; a resource changed later is not its business.
    """

    resources: tuple[Resource, ...]
    at: Instant


class Sweep(Struct, frozen=True):
    """Answer `differing` with a deletion for each resource held and not seen since the begin.

    Args:
        at: The instant the Resource List speaks of; a resource changed later stays.
    """

    at: Instant


class ForgetDatetimes(Struct, frozen=True):
    """Forget when resources changed that are held as changed later than this. Needs no answer.

    They have a time that was wrong, and what the Source tells of them would be older for years.
    They stay as they are, of unknown time.

    Args:
        after: The instant.
        entirely: Whether to forget as well how far one is, as the time of the Source has gone back.
    """

    after: Instant
    entirely: bool = False


class Discover(Struct, frozen=True):
    """Read the Capability List anew; answer with `offered`. Nothing waits for it."""


class LogNote(Struct, frozen=True):
    """Something the log should tell: which rung is taken, and why.

    Args:
        text: A sentence for the operator of the Destination.
        warning: Whether something is not as it should be.
    """

    text: str
    warning: bool = False


Action = Fetch | Apply | BeginBaseline | Compare | Sweep | ForgetDatetimes | Discover | LogNote


class Progress(Struct, frozen=True, omit_defaults=True):
    """What a Destination keeps, in the same transaction as the state it covers.

    Args:
        through: T: every change up to and including this instant is durably applied.
        confirmed: Through here the standard documents, not only the hub, have said so.
        seen: What the documents listed at exactly `confirmed`.
        running: Whether more may have come of that very instant since they were read, as it was
            a second, or a day, that may not have been over then.
        prefix: A fingerprint of the Change List that was read last, and all of it applied.
        missing: Resources that the documents list and the server does not have.
    """

    through: Instant
    confirmed: Instant
    seen: tuple[ChangeKey, ...] = ()
    running: bool = False
    prefix: ListFingerprint | None = None
    missing: tuple[str, ...] = ()
