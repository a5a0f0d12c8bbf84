"""The resources that a copy should have, by the present documents of the Source."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from itertools import islice

from msgspec import Struct
from msgspec.structs import replace

from rsnotify.errors import DocumentError, FetchError, without_credentials
from rsnotify.format.coverage import Change, Coverage, is_ahead
from rsnotify.format.datetimes import Instant, format_datetime, to_microseconds
from rsnotify.format.frontier import Frontier
from rsnotify.format.links import resolve
from rsnotify.format.model import Document, Resource
from rsnotify.format.offer import Offer
from rsnotify.format.timestamp_precision import postponed
from rsnotify.format.uris import normalize
from rsnotify.format.vocabulary import Capability, ChangeType, Rel
from rsnotify.selection.selection import Selection
from rsnotify.sync.actions import DocumentKind, Fetch, Progress
from rsnotify.sync.baseline import Baseline
from rsnotify.sync.closed_lists import ClosedLists, KnownLists
from rsnotify.sync.doubts import BEHIND, OLDER_LIST, undated
from rsnotify.sync.fallback_order import change_documents, resource_documents
from rsnotify.sync.pull import Pull, PullStep
from rsnotify.sync.reduction import reduce_changes
from rsnotify_subscriber.content.dump_packages import DumpPackages
from rsnotify_subscriber.discovery.membership import SetMembership
from rsnotify_subscriber.fetching.digests import agree
from rsnotify_subscriber.fetching.fetcher import Fetcher
from rsnotify_subscriber.storage.baseline import same_resource
from rsnotify_subscriber.storage.resource_state import deletes, needs_request

#: An interval may be rounded to whole seconds.
_ROUNDED = timedelta(seconds=1)
_EARLIEST = datetime.min.replace(tzinfo=UTC)
#: The most gaps that are passed over; a Source could have any number of them.
_GAPS = 16
#: The most resources that one doubt names.
_NAMED = 3


class ExpectedResources(Struct):
    """The resources of a Source that are followed.

    Args:
        resources: The latest entry. This and others are by the normal forms of URIs.
        contested: By URI, the latest change of each resource that exists according to the Resource
            List, and does not according to the Change Lists, or the reverse.
        respelled: Those of resources that the Change Lists have in several spellings, deleted in
            one and not in another: their server decides whether they exist.
        ambiguous: URIs whose latest change the documents do not determine.
        doubts: Why the documents may be incomplete.
        limits: What the documents cannot show, in sentences.
    """

    resources: dict[str, Resource]
    contested: dict[str, Change] = {}
    respelled: dict[str, Change] = {}
    ambiguous: set[str] = set()
    doubts: tuple[str, ...] = ()
    limits: tuple[str, ...] = ()


class ExpectationReader:
    """Reads the expected resources from the Resource List, and the Change Lists after its `at`.

    Where a Source has only dumps, the manifests of their packages take the place of these lists.
    Lists that are older than those that the copy was made from, by its `progress`, are doubted.
    """

    def __init__(
        self,
        fetcher: Fetcher,
        offer: Offer,
        selection: Selection,
        progress: Progress | None = None,
        *,
        membership: SetMembership,
    ) -> None:
        self._fetcher = fetcher
        self._membership = membership
        self._offer = offer
        self._selection = selection
        self._progress = progress
        self._packages = DumpPackages(fetcher)
        #: Whether what is read ends no earlier than the last Resource List, unless it is older.
        self._is_comparable = False

    async def read(self) -> ExpectedResources:
        """Read all documents that determine the present set of resources."""
        self._expected = ExpectedResources({})
        #: By URI, the entry of the Resource List, and the `at` of its part of the list.
        self._listed: dict[str, tuple[Resource, Instant]] = {}
        #: By the spelling that is left out, that of the entry which counts.
        self._twofold: dict[str, str] = {}
        #: By URI, the latest change no later than the Resource List.
        self._before: dict[str, Change] = {}
        #: By URI, the datetime of the latest change after it.
        self._changed: dict[str, Instant] = {}
        try:
            self._at = await self._read_resources()
            frontier = Frontier.at(self._at)
            if change_documents(self._offer):
                await self._read_changes(frontier)
        finally:
            await self._packages.close()
        self._note_undated()
        self._check_age(frontier.instant)
        self._compare_lists()
        return self._expected

    def _doubt(self, reason: str) -> None:
        if reason not in self._expected.doubts:
            self._expected.doubts += (reason,)

    async def _document(self, fetch: Fetch) -> tuple[Document, Instant | None]:
        """Read a document, or the manifest of a package; a copy beside the package is enough.

        It comes with the time at which it was sent, by the clock of the Source.
        """
        package = fetch.package
        if package is None:
            document, sent = await self._membership.document(
                fetch, self._offer, holds_resources=self._progress is not None
            )
            if (reason := _contradiction_in(document, sent)) is not None:
                self._doubt(f"{fetch.uri}: {reason}")
            return document, sent
        copy = next((link.href for link in package.links if link.rel == Rel.CONTENTS), None)
        if copy is not None:
            try:
                return await self._fetcher.document(resolve(fetch.uri, copy)), None
            except (FetchError, DocumentError):
                pass  # the package itself has it, too
        return await self._packages.open(package), None

    def _note_undated(self) -> None:
        entries = self._expected.resources.values()
        count = sum(one.hash is None and one.changed_at is None for one in entries)
        if count:
            text = f"{undated(count, len(entries))}; they were compared with the server"
            self._expected.limits += (text,)

    def _check_age(self, ends: Instant) -> None:
        """Doubt documents that end before those that the copy was made from."""
        progress = self._progress
        if progress is None:
            return
        if progress.seen and ends < progress.confirmed:
            self._doubt(BEHIND)
        # Where another document takes the place of the Resource List, the lists of changes go on.
        known = progress.last_list if self._is_comparable else None
        if known is not None and known.at is not None and ends < known.at:
            self._doubt(OLDER_LIST)

    # The set of resources

    async def _read_resources(self) -> Instant:
        if not resource_documents(self._offer):
            self._doubt("the Source offers no list of its resources")
            return _EARLIEST
        baseline = Baseline(self._offer, _EARLIEST)
        following: Fetch | None = baseline.current
        while following is not None:
            if following is baseline.root:
                self._listed.clear()
                self._twofold.clear()
                self._expected.resources.clear()
            await self._read_list(baseline)
            following = baseline.next()
        if baseline.error is not None and not baseline.complete:
            raise baseline.error
        is_list = baseline.root.kind is DocumentKind.RESOURCE_LIST
        is_replaced = self._offer.resource_list is not None and not change_documents(self._offer)
        self._is_comparable = is_list or is_replaced
        for uri, first in islice(self._twofold.items(), 1):
            more = f" and {len(self._twofold) - 1} more" if len(self._twofold) > 1 else ""
            self._doubt(f"{without_credentials(uri)}{more}: {same_resource(first)}")
        return baseline.at

    async def _read_list(self, baseline: Baseline) -> None:
        uri = baseline.current.uri
        try:
            part = baseline.read(*await self._document(baseline.current))
        except FetchError as error:
            baseline.skip(error)
        except DocumentError as error:
            baseline.skip(error.at(uri))
        else:
            for resource in part.resources if part else ():
                key = normalize(resource.uri)
                if key in self._listed and self._listed[key][0].uri != resource.uri:
                    self._twofold[resource.uri] = self._listed[key][0].uri
                    continue
                self._listed[key] = (resource, part.at if part else baseline.at)
                self._expect(key, resource)

    def _expect(self, uri: str, resource: Resource) -> None:
        if self._selection.wants(resource):
            self._expected.resources[uri] = resource
        else:
            self._expected.resources.pop(uri, None)

    # The changes after it

    async def _read_changes(self, frontier: Frontier) -> None:
        for _ in range(_GAPS):
            step = await self._pull(frontier)
            gap = step.gap_ends
            if gap is None:
                return
            since = f"from {format_datetime(frontier.instant)} to"
            since = "before" if frontier.instant == _EARLIEST else since
            cure = f"; {step.cure}" if step.cure else ""
            self._doubt(f"no document covers the time {since} {format_datetime(gap)}{cure}")
            frontier.advance(gap)

    async def _pull(self, frontier: Frontier) -> PullStep:
        """Read the changes up to a gap, if there is one; return the last step."""
        pull = Pull(self._offer, closed=ClosedLists(KnownLists(frontier.instant)))
        following: Fetch | None = pull.current
        while following is not None:
            try:
                document, sent = await self._document(following)
                step = pull.read(document, frontier, sent)
            except (FetchError, DocumentError) as error:
                step = pull.abandon(error, frontier)
            if step.coverage is not None:
                self._add(step.coverage, frontier)
            if step.failure is not None:
                self._doubt(str(step.failure))
            following = step.fetch
        return step

    def _add(self, coverage: Coverage, frontier: Frontier) -> None:
        reduced = reduce_changes(coverage.changes, ordered=coverage.ordered)
        for uri, change in reduced.latest.items():
            ambiguous = uri in reduced.ambiguous
            if self._is_listed_later(change):
                self._ignore_content(change)
                if not ambiguous and uri not in self._changed:
                    self._before[uri] = change
            elif change.at >= self._changed.get(uri, _EARLIEST):
                # Documents may overlap: one may have earlier changes that another lacks.
                self._apply(change, ambiguous=ambiguous)
                if uri in reduced.respelled:
                    self._expected.ambiguous.discard(uri)
                    self._expected.respelled[uri] = change
        if coverage.until is not None:
            frontier.advance(coverage.until, coverage.changes, over=coverage.closed)

    def _ignore_content(self, change: Change) -> None:
        """Forget the listed version of a resource if a change may be about a later one."""
        resource = self._expected.resources.get(change.uri)
        if resource is None:
            return
        lastmod = to_microseconds(resource.lastmod) if resource.lastmod else None
        if needs_request(change, lastmod):
            self._expect(change.uri, replace(resource, hash=None, length=None, lastmod=None))

    def _is_listed_later(self, change: Change) -> bool:
        """Return whether the Resource List is about the resource after a change."""
        listed = self._listed.get(change.uri)
        if listed is None:
            return change.at < self._at
        resource, at = listed
        lastmod = to_microseconds(resource.lastmod) if resource.lastmod else None
        return at > change.at and not deletes(change, resource.hash, lastmod)

    def _apply(self, change: Change, *, ambiguous: bool) -> None:
        self._changed[change.uri] = change.at
        self._before.pop(change.uri, None)
        self._expected.respelled.pop(change.uri, None)
        if ambiguous:
            self._expected.ambiguous.add(change.uri)
        else:
            self._expected.ambiguous.discard(change.uri)
        if change.change is ChangeType.DELETED:
            self._expected.resources.pop(change.uri, None)
        else:
            self._expect(change.uri, change.resource)

    def _compare_lists(self) -> None:
        """Compare the Resource List with the changes before it: its `at` may be wrong."""
        differing = []
        for uri, change in self._before.items():
            listed = self._listed.get(uri)
            is_there = change.change is not ChangeType.DELETED
            if is_there != (listed is not None):
                if self._selection.wants(change.resource) or uri in self._expected.resources:
                    self._expected.contested[uri] = change
            elif listed is not None and agree(change.resource.hash, listed[0].hash or "") is False:
                differing.append(change.resource.uri)
        if differing:
            more = f" and {len(differing) - _NAMED} more" if len(differing) > _NAMED else ""
            self._doubt(
                "the Resource List and the Change List have different hashes for "
                + ", ".join(differing[:_NAMED])
                + more
            )


def _contradiction_in(document: Document, sent: Instant | None) -> str | None:
    """Return in a clause why the times of a list, sent at an instant, cannot be true."""
    for name, instant in (("at", document.at), ("until", document.until)):
        if instant is not None and sent is not None and is_ahead(instant, sent):
            return (
                f"its {name}, {format_datetime(instant)}, is later than the answer with it, "
                f"of {format_datetime(sent)}"
            )
    if document.capability != Capability.CHANGE_LIST or document.index:
        return None
    outside = [
        resource.uri
        for resource in document.resources
        if (at := resource.changed_at) is not None
        and (
            (document.from_ is not None and postponed(at, _ROUNDED) < document.from_)
            or (document.until is not None and at > postponed(document.until, _ROUNDED))
        )
    ]
    if not outside:
        return None
    return f"{len(outside)} entries, as that of {outside[0]}, lie outside of its interval"
