"""Auditing a mirror: whether it has every resource of the Source, unchanged, and nothing else.

The present documents of the Source say which resources a copy should have. Each file is compared
with them by its hash; where the entry has none, with the resource itself.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from itertools import islice
from pathlib import Path
from tempfile import TemporaryDirectory

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from rsnotify.errors import (
    ConfigurationError,
    DocumentError,
    FetchError,
    NotFound,
    without_credentials,
)
from rsnotify.format.coverage import Change, Coverage, Frontier, is_ahead
from rsnotify.format.datetimes import Instant, format_datetime, postponed, to_microseconds
from rsnotify.format.hashes import Digester, agree
from rsnotify.format.links import resolve
from rsnotify.format.model import Capability, ChangeType, Document, Rel, Resource
from rsnotify.format.offer import Offer
from rsnotify.format.uris import normalize
from rsnotify.representations import (
    WantedRepresentation,
    describe_representation,
    wanted_representation,
)
from rsnotify.selection import Selection
from rsnotify.sync.actions import DocumentKind, Fetch, Progress
from rsnotify.sync.baseline import Baseline
from rsnotify.sync.change_intake import reduce_changes
from rsnotify.sync.doubts import BEHIND, OLDER_LIST, undated
from rsnotify.sync.list_evidence import ClosedLists, KnownLists
from rsnotify.sync.pull import Pull, PullStep, change_documents, resource_documents
from rsnotify_subscriber.content.packages import DumpPackages
from rsnotify_subscriber.content.resolver import contradiction_in
from rsnotify_subscriber.discovery.descriptions import DescriptionReader
from rsnotify_subscriber.discovery.discovery import OfferDiscovery, base_of, discover, same_set
from rsnotify_subscriber.discovery.membership import SetMembership
from rsnotify_subscriber.events import ActivityKind, SyncActivity
from rsnotify_subscriber.fetching.credentials import without_login
from rsnotify_subscriber.fetching.fetcher import Fetcher
from rsnotify_subscriber.fetching.sessions import Sessions
from rsnotify_subscriber.mirror import MirrorTree, default_state
from rsnotify_subscriber.options import DEFAULT_OPTIONS, FollowOptions
from rsnotify_subscriber.storage.baseline_tables import same_resource
from rsnotify_subscriber.storage.identity import (
    Identity,
    KnownLinks,
    read_fact,
    read_held,
    read_identity,
)
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


#: How often differences are compared: the Source may be changing, the mirror a moment behind.
_ATTEMPTS = 5
#: Files are compared in parts of this size, by so many workers.
_PART = 64
_WORKERS = 4
#: The most missing files for which a request checks whether the Source itself has the resource.
_MOST_CHECKS = 100
#: The field of `Audit` for a difference, and the name that it gets there.
_Difference = tuple[str, str]


class Audit(Struct, frozen=True):
    """The result of an audit.

    Args:
        resources: How many resources the Source has.
        equal: How many of them the mirror has with the same content.
        created: URIs that the Source has and the mirror does not.
        updated: URIs whose content differs.
        deleted: Files, relative to the mirror, without a resource of the Source.
        foreign: Those of them that are not part of the copy, by its state.
        absent: URIs that the Source lists, and that neither its server (404, 410) nor the mirror
            has.
        unknown: URIs that could not be compared; with doubts, also files that no list names.
        reasons: By URI, why one could not be compared.
        doubts: Why the Source's lists may be incomplete.
        limits: What the lists cannot show, in sentences, so that it was compared with the server.
        source: The Capability List of the set, or the document if there is no such list.
    """

    resources: int
    equal: int = 0
    created: tuple[str, ...] = ()
    updated: tuple[str, ...] = ()
    deleted: tuple[str, ...] = ()
    foreign: tuple[str, ...] = ()
    absent: tuple[str, ...] = ()
    unknown: tuple[str, ...] = ()
    reasons: dict[str, str] = {}
    doubts: tuple[str, ...] = ()
    limits: tuple[str, ...] = ()
    source: str | None = None

    @property
    def in_step(self) -> bool | None:
        """Whether Source and mirror are equal; None if that is unknown."""
        if self.doubts:
            return None
        if self.created or self.updated or self.deleted:
            return False
        return None if self.unknown or self.absent else True

    @property
    def differences(self) -> int:
        """How many resources and files differ."""
        return len(self.created) + len(self.updated) + len(self.deleted)

    @property
    def unjudged(self) -> int:
        """How many resources could not be compared."""
        return len(self.absent) + len(self.unknown)


async def audit(
    url: str,
    folder: str | os.PathLike[str],
    *,
    state: str | os.PathLike[str] | None = None,
    options: FollowOptions = DEFAULT_OPTIONS,
    pause: float = 1.0,
    activity: SyncActivity | None = None,
) -> Audit:
    """Compare the files of a mirror with what its Source lists.

    Args:
        url: The Source, as it is followed.
        folder: The mirror.
        state: The folder of its state; by default the one that `rsnotify follow` uses.
        options: How the Source is followed: its credentials, and whether documents may name hosts
            at private addresses.
        pause: The seconds until differences are compared again.
        activity: Is changed meanwhile to what is being done, and how much of it is done.

    Raises:
        ConfigurationError: There is no such folder.
        RsnotifyError: The Source could not be read.
    """
    folder = Path(folder)
    if not folder.is_dir():
        raise ConfigurationError(f"there is no folder {folder} to compare with the Source")
    place = default_state(folder) if state is None else Path(state)
    known = read_identity(place)
    activity = activity or SyncActivity(ActivityKind.FINDING)
    sessions = Sessions(
        url,
        allow_private_addresses=options.allow_private_addresses,
        credentials=options.credentials,
    )
    url = without_login(url)
    with TemporaryDirectory(prefix="rsnotify-audit-") as temporary:
        async with sessions:
            fetcher = Fetcher(sessions, Path(temporary))
            made_from = None if known is None else read_fact(place, "progress", Progress)
            links = None if known is None else read_fact(place, "links", KnownLinks)
            memory = known.memory if known is not None else None
            descriptions = DescriptionReader(fetcher, memory)
            offer, identity = await _identified(fetcher, descriptions, url, folder, known)
            expectation = ExpectationReader(
                fetcher,
                offer,
                identity.selection,
                made_from,
                membership=SetMembership(fetcher, descriptions, url, links),
            )
            tree = MirrorTree(folder, identity.base, probe=False)  # an audit only reads
            comparison = _MirrorComparison(fetcher, tree, identity, place, activity)
            for attempt in range(_ATTEMPTS):
                if attempt:
                    await asyncio.sleep(pause)
                activity.kind = ActivityKind.READING
                activity.document = f"Source's documents{' again' if attempt else ''}"
                activity.done, activity.total, activity.bytes = 0, None, 0
                found = await comparison.compare(await expectation.read())
                if found.in_step:
                    break
            return msgspec.structs.replace(found, source=offer.uri)


async def _identified(
    fetcher: Fetcher,
    descriptions: DescriptionReader,
    url: str,
    folder: Path,
    known: Identity | None,
) -> tuple[Offer, Identity]:
    if known is None:
        offer = await discover(fetcher, url)
        return offer, Identity(url, base_of(offer), offer)
    offers = OfferDiscovery(descriptions, url)
    if without_login(known.url) == url:
        return await offers.revalidate(known.offer), known
    now = await same_set(offers, known, await offers.find())
    if now is None:
        raise ConfigurationError(
            f"{folder} is a copy of {without_credentials(known.url)}, and "
            f"{without_credentials(url)} is another set of resources; name the Source that "
            "was followed, or the folder of its copy, or, to "
            "compare the files anyway, an empty folder with --state"
        )
    return now, known


class _MirrorComparison:
    """Compares the mirror; each time only the files that differed the time before."""

    def __init__(
        self,
        fetcher: Fetcher,
        tree: MirrorTree,
        identity: Identity,
        state: Path,
        activity: SyncActivity,
    ) -> None:
        self._fetcher = fetcher
        self._tree = tree
        self._state = state
        self._activity = activity
        self._prefer = identity.prefer
        #: The kinds of difference that matter: a copy may ignore deletions, for example.
        self._kinds = {"unknown", "absent", *(identity.selection.changes or ChangeType)}
        self._suspects: set[str] | None = None
        self._expected = ExpectedResources({})
        self._checks = 0
        self._reasons: dict[str, str] = {}

    async def compare(self, expected: ExpectedResources) -> Audit:
        self._expected = expected
        self._checks = 0
        self._reasons = {}
        #: By URI, why the content may be wrong although it was fetched.
        doubts = read_fact(self._state, "doubts", dict[str, str]) or {}
        self._doubted = {normalize(uri): why for uri, why in doubts.items()}
        resources = await asyncio.to_thread(self._resources_by_path, expected)
        differing = await self._differing(resources)
        self._suspects = set(differing)
        foreign = await asyncio.to_thread(self._foreign, differing)
        names: dict[str, list[str]] = {}
        for path, (kind, name) in sorted(differing.items(), key=lambda one: one[1]):
            # With doubts, the lists may be incomplete.
            is_unknown = kind == "deleted" and bool(expected.doubts)
            names.setdefault("unknown" if is_unknown else kind, []).append(name)
            if path in foreign and not is_unknown:
                names.setdefault("foreign", []).append(name)
        return msgspec.structs.replace(
            Audit(
                len(expected.resources),
                len(
                    expected.resources.keys() - {normalize(name) for _, name in differing.values()}
                ),
                reasons=self._reasons,
                doubts=expected.doubts,
                limits=expected.limits,
            ),
            **{kind: tuple(found) for kind, found in names.items()},
        )

    def _foreign(self, differing: Mapping[str, _Difference]) -> set[str]:
        """Return the paths of files that are not part of the copy by its state, if it has one."""
        unlisted = {path for path, (kind, _) in differing.items() if kind == "deleted"}
        held = set(map(self._tree.find, read_held(self._state))) if unlisted else set()
        return unlisted - held if held else set()

    def _resources_by_path(self, expected: ExpectedResources) -> dict[str, Resource | None]:
        """Return the expected resource, if any, at each path to compare."""
        found: dict[str, Resource | None] = dict.fromkeys(map(str, self._tree.files()))
        checked = expected.contested | expected.respelled
        contested = {uri: change.resource for uri, change in checked.items()}
        # A file has its name by the spelling that came first.
        held = {normalize(uri): uri for uri in read_held(self._state)}
        for uri, resource in (contested | expected.resources).items():
            found[self._tree.find(held.get(uri, resource.uri))] = resource
        for uri in expected.ambiguous - expected.resources.keys():
            found[self._tree.find(held.get(uri, uri))] = Resource(uri)
        if self._suspects is None:
            return found
        return {path: found.get(path) for path in self._suspects}

    async def _differing(self, resources: dict[str, Resource | None]) -> dict[str, _Difference]:
        differing: dict[str, _Difference] = {}
        items = iter(resources.items())
        activity = self._activity
        activity.kind, activity.total = ActivityKind.COMPARING, len(resources)

        async def work() -> None:
            while part := list(islice(items, _PART)):
                differing.update(await self._compare(part))
                activity.done += len(part)

        await asyncio.gather(*(work() for _ in range(_WORKERS)))
        return differing

    async def _compare(self, part: list[tuple[str, Resource | None]]) -> dict[str, _Difference]:
        digests = await asyncio.to_thread(
            lambda: [_digest(path, one and self._announced(one)) for path, one in part]
        )
        self._activity.bytes += sum(one.length for one in digests if one is not None)
        kinds = await asyncio.gather(
            *(self._kind(local, one) for local, (_, one) in zip(digests, part, strict=True))
        )
        return {
            path: (kind, resource.uri if resource else self._relative(path))
            for (path, resource), kind in zip(part, kinds, strict=True)
            if kind is not None and kind in self._kinds
        }

    def _relative(self, path: str) -> str:
        return os.path.relpath(path, self._tree.root)

    def _announced(self, resource: Resource) -> Resource:
        """Return the entry of the representation that is mirrored."""
        return describe_representation(resource, self._prefer)

    def _unknown(self, resource: Resource, reason: str) -> str:
        self._reasons[resource.uri] = reason
        return "unknown"

    async def _kind(self, local: Digester | None, resource: Resource | None) -> str | None:
        """Return how a file differs, as a field of `Audit`; None if it does not."""
        if resource is None:
            return None if local is None else "deleted"
        uri = normalize(resource.uri)
        if uri in self._expected.ambiguous:
            return self._unknown(resource, "the lists do not say which of its changes is the last")
        if uri in self._expected.contested or uri in self._expected.respelled:
            return await self._contested(local, resource)
        if local is None:
            return await self._missing(resource)
        same = agree(self._announced(resource).hash, local.hashes)
        if same is None:
            return await self._compare_content(local, resource)
        return None if same else "updated"

    async def _contested(self, local: Digester | None, resource: Resource) -> str | None:
        """Check by a request whether a resource exists, as the lists contradict each other."""
        try:
            is_there = await self._fetcher.is_there(resource.uri)
        except FetchError as error:
            return self._unknown(resource, error.reason)
        uri = normalize(resource.uri)
        is_decided = uri in self._expected.respelled
        if not is_decided and is_there != (uri in self._expected.resources):
            return self._unknown(resource, "the lists and its server contradict each other")
        if is_there:
            return "created" if local is None else await self._compare_content(local, resource)
        return None if local is None else "deleted"

    async def _missing(self, resource: Resource) -> str:
        """Return "absent" if the Source itself lacks a resource, else "created"."""
        self._checks += 1
        if self._checks > _MOST_CHECKS:
            return "created"
        try:
            home = self._wanted(resource).home.uri
            return "created" if await self._fetcher.is_there(home) else "absent"
        except FetchError as error:
            return self._unknown(resource, error.reason)

    def _wanted(self, resource: Resource) -> WantedRepresentation:
        change = Change(normalize(resource.uri), ChangeType.UPDATED, datetime.now(UTC), resource)
        return wanted_representation(change, self._prefer)

    async def _compare_content(self, local: Digester, resource: Resource) -> str | None:
        """Compare with the resource itself, as the Source announces no usable hash.

        What makes a follower doubt the content makes it unknown here.
        """
        wanted = self._wanted(resource)
        entry = msgspec.structs.replace(wanted.entry, uri=wanted.home.uri)
        try:
            content = await self._fetcher.content(entry, fresh=True)
        except NotFound:
            return "deleted"
        except FetchError as error:
            return self._unknown(resource, error.reason)
        await asyncio.to_thread(content.discard)
        if not agree(content.hashes, local.hashes):
            return "updated"
        if doubt := contradiction_in(content, wanted) or self._doubted.get(normalize(resource.uri)):
            return self._unknown(resource, doubt)
        return None


def _digest(path: str, resource: Resource | None) -> Digester | None:
    """Return the digests of a file; None if there is no file.

    Without a resource, what is at the path is not read; it may also be a symbolic link.
    """
    if resource is None:
        return Digester(None) if os.path.lexists(path) else None
    if not os.path.isfile(path) or os.path.islink(path):
        return None
    digester = Digester(resource.hash)
    with open(path, "rb") as file:
        while chunk := file.read(1 << 20):
            digester.update(chunk)
    return digester
