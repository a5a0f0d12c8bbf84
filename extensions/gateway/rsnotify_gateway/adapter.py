"""The interface of an adapter: what changed at an origin since a cursor.

An adapter reads an origin in *checks*. A check yields batches; when it ends without an error,
everything that the origin had when the check began has been yielded, now or in an earlier check.
Each batch has a cursor, which is stored in the transaction that records the batch. A check that is
repeated from an earlier cursor yields entries again; entries whose state is known change nothing,
so a crash neither loses nor invents a change.

An origin may send its changes itself. Then a check does not end, and its batches state through when
the origin was checked. Or it may announce changes, which are read by a check that begins at once.
"""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Callable
from typing import TYPE_CHECKING, Protocol, runtime_checkable

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
    """Return the absolute URI of a reference in a document of an origin, without a login.

    Every URI that an adapter requests, stores or yields is made here. The client of the origin adds
    the login of the settings to requests; a login that a document contains is not used.
    """
    return without_login(resolve(base, reference))


def is_due(last: float, every: float) -> bool:
    """Return whether work done at intervals of `every` seconds is due now.

    It is, too, if the clock has been set back since the last time, in seconds since 1970.
    """
    return not last <= time.time() < last + every


class SeenEntry(Struct, frozen=True, gc=False):
    """A resource that the origin has.

    Args:
        resource: Its URI at the origin, with the metadata that the origin states.
        state: A text that differs whenever the resource changed, as far as the origin shows that.
        place: The part of the origin that lists it, as a text without white space.
        is_ordered: Whether it is ignored if a later `lastmod` is recorded.
        is_listing: Whether the origin only lists it. Then only the part after the first space of
            this and of the recorded state is compared.
    """

    resource: Resource
    state: str
    place: str = ""
    is_ordered: bool = False
    is_listing: bool = False


class MissingEntry(Struct, frozen=True, gc=False):
    """A resource that the origin no longer has.

    Args:
        uri: Its URI at the origin.
        places: The parts of the origin that no longer list it; it is deleted once none
            does. None if it is deleted.
        at: When it was deleted, if that is known; ignored if a later `lastmod` is recorded.
    """

    uri: str
    places: frozenset[str] | None = None
    at: Instant | None = None


class OriginBatch(Struct, frozen=True):
    """Entries that are recorded in one transaction, and the cursor after them.

    Without a cursor, the previous one stays valid.

    Args:
        checked: The instant (µs) through which everything that the origin had has been yielded. A
            check that ends claims its beginning without it.
        at: The instant (µs) from which on its changes are dated: when they can have become visible.
            The beginning of the check without it.
    """

    entries: tuple[SeenEntry | MissingEntry, ...] = ()
    cursor: str | None = None
    checked: int | None = None
    at: int | None = None


class OriginTerms(Struct, frozen=True):
    """What is known of an origin, and what it cannot show.

    Args:
        kind: The name of the protocol.
        granularity: The unit of its datetimes, if it has one.
        deletions: When a deletion is seen, as a sentence.
        limits: What is not seen, as sentences.
    """

    kind: str
    granularity: str | None
    deletions: str
    limits: tuple[str, ...] = ()


class KnownEntries(Protocol):
    """The resources that are recorded as present."""

    async def select(
        self, accepts: Callable[[str, frozenset[str]], bool]
    ) -> list[tuple[str, frozenset[str]]]:
        """Return the URIs, with their places, for which a function of both returns True."""


class OriginAdapter(Protocol):
    """Reads one origin."""

    def changes(self, cursor: str | None, known: KnownEntries) -> AsyncIterator[OriginBatch]:
        """Check the origin, and yield what changed since the cursor; None is the beginning.

        Raises:
            RsnotifyError: The check is not complete.
        """

    def terms(self) -> OriginTerms:
        """Return what is known of the origin after the last check."""


@runtime_checkable
class AnnouncingAdapter(Protocol):
    """An adapter whose origin announces changes; it is polled as well."""

    async def await_announcements(self, check_soon: Callable[[], None]) -> None:
        """Call a function for each announcement, until cancelled.

        Raises:
            RsnotifyError: Changes are no longer announced.
        """


class AdapterFactory(Protocol):
    """Makes the adapter of an origin."""

    def __call__(
        self, origin: OriginSettings, client: OriginClient, callbacks: Callbacks, /
    ) -> OriginAdapter:
        """Return an adapter, which makes all HTTP requests with `client`.

        Raises:
            ConfigurationError: A setting is wrong, or a package is missing.
        """


class OriginType(Struct, frozen=True):
    """A type of origin: an entry point of the group `rsnotify.origins`, named as in the settings.

    Args:
        adapter: Makes the adapter of an origin.
        is_stream: Whether responses of the origin have no end. Such requests do not count among
            those that are made at once.
        uses_http: Whether the URL of the origin is requested by HTTP.
    """

    adapter: AdapterFactory
    is_stream: bool = False
    uses_http: bool = True
