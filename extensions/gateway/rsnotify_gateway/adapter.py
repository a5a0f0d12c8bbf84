"""The interface of adapters. An adapter reads the changes at an origin since a cursor.

An adapter reads an origin in *checks*. A check yields batches. When it ends without an error, this
check or an earlier one has yielded everything that the origin had when the check began. A batch's
cursor is stored in the transaction that records the batch. Repeating a check from an earlier cursor
yields entries again. Entries whose state is already recorded are ignored, so a crash neither loses
nor invents a change.

The check of a stream does not end; its batches state the instant through which the stream was
checked. If an origin announces changes, each announcement triggers a check.
"""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Callable
from typing import TYPE_CHECKING, Protocol, Self, runtime_checkable

import msgspec
from msgspec import Struct

from rsnotify.format.datetimes import Instant
from rsnotify.format.links import resolve
from rsnotify.format.model import Resource
from rsnotify_subscriber.fetching.credentials import without_login

if TYPE_CHECKING:
    from rsnotify_gateway.client import OriginClient
    from rsnotify_gateway.config import OriginSettings
    from rsnotify_subscriber import Callbacks


def origin_uri(base: str, reference: str) -> str:
    """Return the absolute URI of a reference in an origin's document, without a login.

    Adapters pass every URI that they request, store or yield through this function. The origin's
    client adds the login from the settings to requests; logins in documents are ignored.
    """
    return without_login(resolve(base, reference))


def is_due(last_run: float, interval: float) -> bool:
    """Return whether a task that runs every `interval` seconds is due.

    `last_run` is a Unix timestamp. The task is also due if the clock has been set back since then.
    """
    return not last_run <= time.time() < last_run + interval


class SeenEntry(Struct, frozen=True, gc=False):
    """A resource that the origin has.

    Args:
        resource: The resource's URI at the origin, with the metadata that the origin states.
        state: A string that changes whenever the resource changes, as far as the origin shows that.
        place: The file or page of the origin that lists the resource, as a string without
            whitespace.
        is_ordered: Whether to ignore the entry if a later `lastmod` is recorded.
        is_listing: Whether the entry comes from a list of all resources. If so, only the parts of
            the states after the first space are compared.
    """

    resource: Resource
    state: str
    place: str = ""
    is_ordered: bool = False
    is_listing: bool = False


class MissingEntry(Struct, frozen=True, gc=False):
    """A resource that the origin no longer has.

    Args:
        uri: The resource's URI at the origin.
        places: The places that no longer list the resource. It counts as deleted once no place
            lists it. None if it is deleted regardless of places.
        at: When the resource was deleted, if known. The entry is ignored if a later `lastmod` is
            recorded.
    """

    uri: str
    places: frozenset[str] | None = None
    at: Instant | None = None


class OriginBatch(Struct, frozen=True):
    """Entries to record in one transaction, and the cursor after them.

    Without a cursor, the previous one stays valid.

    Args:
        checked: The instant (µs) through which all of the origin's changes have been yielded. Only
            streams need it: when a check ends, the origin counts as checked through its start.
        at: The earliest instant (µs) at which the changes can have become visible. They are never
            dated earlier. The default is the start of the check.
    """

    entries: tuple[SeenEntry | MissingEntry, ...] = ()
    cursor: str | None = None
    checked: int | None = None
    at: int | None = None


class OriginTerms(Struct, frozen=True):
    """The kinds of changes that an origin can and cannot show.

    Args:
        kind: The name of the protocol.
        granularity: The finest unit of the origin's datetimes, if it has any.
        deletions: A sentence that says when deletions are detected.
        limits: Sentences that say which changes are not detected.
    """

    kind: str
    granularity: str | None
    deletions: str
    limits: tuple[str, ...] = ()


class OriginCursor(Struct, omit_defaults=True):
    """The progress in reading an origin, stored as JSON."""

    @classmethod
    def decoded(cls, cursor: str | None) -> Self:
        """Decode a stored cursor. If there is none, return an initial cursor."""
        return cls() if cursor is None else msgspec.json.decode(cursor, type=cls)

    def encoded(self) -> str:
        return msgspec.json.encode(self).decode()


class KnownEntries(Protocol):
    """The resources that are recorded as present."""

    async def select(
        self, accepts: Callable[[str, frozenset[str]], bool]
    ) -> list[tuple[str, frozenset[str]]]:
        """Return the URIs and places for which `accepts` returns True."""


class OriginAdapter(Protocol):
    """Reads one origin."""

    def changes(self, cursor: str | None, known: KnownEntries) -> AsyncIterator[OriginBatch]:
        """Check the origin, and yield the changes since the cursor, or all if it is None.

        Raises:
            RsnotifyError: The check is incomplete.
        """

    def terms(self) -> OriginTerms:
        """Describe which changes the origin can show, as of the last check."""


@runtime_checkable
class AnnouncingAdapter(Protocol):
    """An adapter whose origin announces changes. The gateway polls the origin as well."""

    async def await_announcements(self, check_soon: Callable[[], None]) -> None:
        """Call `check_soon` for each announcement until cancelled.

        Raises:
            RsnotifyError: The origin no longer announces changes.
        """


class AdapterFactory(Protocol):
    """Creates the adapter for an origin."""

    def __call__(
        self, origin: OriginSettings, client: OriginClient, callbacks: Callbacks, /
    ) -> OriginAdapter:
        """Return an adapter that makes all its HTTP requests with `client`.

        Raises:
            ConfigurationError: A setting is wrong, or a package is missing.
        """


class OriginType(Struct, frozen=True):
    """A type of origin, registered under its name as an entry point of `rsnotify.origins`.

    Args:
        adapter: Creates the adapter for an origin.
        is_stream: Whether the origin sends an endless response. Such requests do not count toward
            the limit of concurrent requests.
        uses_http: Whether the origin is read over HTTP.
    """

    adapter: AdapterFactory
    is_stream: bool = False
    uses_http: bool = True
