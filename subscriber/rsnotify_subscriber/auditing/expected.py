"""What a Destination should hold, as the Source's documents have it now."""

from __future__ import annotations

from datetime import UTC, datetime

from msgspec import Struct

from rsnotify.actions import Fetch
from rsnotify.baseline import Baseline
from rsnotify.coverage import Change, Coverage, Frontier
from rsnotify.datetimes import Instant, format_datetime, to_microseconds
from rsnotify.errors import DocumentError, FetchError
from rsnotify.ladder import change_ways, resource_ways
from rsnotify.links import resolve
from rsnotify.model import Document, Resource
from rsnotify.offer import Offer
from rsnotify.pull import Pull
from rsnotify.selection import Selection
from rsnotify.vocabulary import ChangeType, Rel
from rsnotify_subscriber.bringing.packages import Packages
from rsnotify_subscriber.fetching.fetcher import Fetcher
from rsnotify_subscriber.held import ends

_EARLIEST = datetime.min.replace(tzinfo=UTC)
#: How many times that no document covers are passed over; a Source might have no end of them.
_HOLES = 16


class Expected(Struct):
    """The resources of a Source that are followed.

    Args:
        resources: By URI, the entry that tells most recently how it is.
        doubts: Why the documents may not tell all.
    """

    resources: dict[str, Resource]
    doubts: tuple[str, ...] = ()


class Expectation:
    """Finds out what is expected: from the Resource List, and the Change Lists after its `at`.

    Where a Source has dumps only, the manifests of their packages tell the same.

    Args:
        fetcher: Fetches.
        offer: What the Source offers.
        selection: What of it is followed.
    """

    def __init__(self, fetcher: Fetcher, offer: Offer, selection: Selection) -> None:
        self._fetcher = fetcher
        self._offer = offer
        self._selection = selection
        self._packages = Packages(fetcher)
        self._listed: dict[str, Instant] = {}
        self._expected = Expected({})

    async def read(self) -> Expected:
        """Read all that tells.

        Raises:
            FetchError: The set of resources could not be had.
            DocumentError: The set of resources could not be read.
        """
        self._expected = Expected({})
        try:
            at = await self._read_resources()
            if change_ways(self._offer):
                await self._read_changes(Frontier.at(at))
        finally:
            await self._packages.close()
        return self._expected

    def _doubt(self, reason: str) -> None:
        self._expected.doubts += (reason,)

    async def _document(self, fetch: Fetch) -> Document:
        """Read a document, or the manifest of a package: a copy beside it is enough."""
        package = fetch.package
        if package is None:
            return await self._fetcher.document(fetch.uri)
        copy = next((link.href for link in package.links if link.rel == Rel.CONTENTS), None)
        if copy is not None:
            try:
                return await self._fetcher.document(resolve(fetch.uri, copy))
            except (FetchError, DocumentError):
                pass  # the package itself has it too
        return await self._packages.open(package)

    # The set of resources

    async def _read_resources(self) -> Instant:
        if not resource_ways(self._offer):
            self._doubt("the Source offers no list of its resources")
            return _EARLIEST
        baseline = Baseline(self._offer, _EARLIEST)
        following: Fetch | None = baseline.current
        while following is not None:
            if following is baseline.way:
                self._listed.clear()
                self._expected.resources.clear()
            await self._read_list(baseline)
            following = baseline.next()
        if baseline.error is not None and not baseline.complete:
            raise baseline.error
        return baseline.at

    async def _read_list(self, baseline: Baseline) -> None:
        uri = baseline.current.uri
        try:
            part = baseline.read(await self._document(baseline.current))
        except FetchError as error:
            baseline.broken(error)
        except DocumentError as error:
            baseline.broken(error.at(uri))
        else:
            for resource in part.resources if part else ():
                self._listed[resource.uri] = part.at if part else baseline.at
                self._expect(resource)

    def _expect(self, resource: Resource) -> None:
        if self._selection.wants(resource):
            self._expected.resources[resource.uri] = resource
        else:
            self._expected.resources.pop(resource.uri, None)

    # What changed after

    async def _read_changes(self, frontier: Frontier) -> None:
        """Read on from hole to hole: what is told after one is told all the same."""
        for _ in range(_HOLES):
            hole = await self._pull(frontier)
            if hole is None:
                return
            since = f"from {format_datetime(frontier.instant)} to"
            since = "before" if frontier.instant == _EARLIEST else since
            self._doubt(f"nothing tells of the time {since} {format_datetime(hole)}")
            frontier.advance(hole)

    async def _pull(self, frontier: Frontier) -> Instant | None:
        """Read the changes that join; return where the next begin, if there is a hole before."""
        pull = Pull(self._offer)
        following: Fetch | None = pull.current
        while following is not None:
            try:
                step = pull.read(await self._document(following), frontier)
            except (FetchError, DocumentError) as error:
                step = pull.broken(error, frontier)
            if step.coverage is not None:
                self._take(step.coverage, frontier)
            if step.failure is not None:
                self._doubt(str(step.failure))
            following = step.fetch
        return step.hole

    def _take(self, coverage: Coverage, frontier: Frontier) -> None:
        for change in frontier.fresh(coverage):
            self._apply(change)
        if coverage.until is not None:
            frontier.advance(coverage.until, coverage.changes, over=coverage.closed)

    def _apply(self, change: Change) -> None:
        listed = self._listed.get(change.uri)
        if listed is not None and listed > change.at and not self._is_ended(change):
            return  # a later part of the Resource List has it already
        if change.change is ChangeType.DELETED:
            self._expected.resources.pop(change.uri, None)
        else:
            self._expect(change.resource)

    def _is_ended(self, change: Change) -> bool:
        """Tell whether a change deletes the very version that is listed."""
        listed = self._expected.resources.get(change.uri)
        if listed is None:
            return False
        lastmod = to_microseconds(listed.lastmod) if listed.lastmod else None
        return ends(change, listed.hash, lastmod)
