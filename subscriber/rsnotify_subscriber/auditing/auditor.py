"""Audits a mirror: checks that it has every resource of the Source, unchanged, and nothing else.

The Source's current documents determine which resources a copy should have. Each file is compared
with its entry by hash or, if the entry has no hash, with the resource itself.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Iterator, Mapping
from contextlib import closing
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from tempfile import TemporaryDirectory
from threading import Lock
from typing import NamedTuple

from msgspec import Struct
from msgspec.structs import replace

from rsnotify.errors import ConfigurationError, FetchError, NotFound, without_credentials
from rsnotify.format.coverage import Change, CheckMethod
from rsnotify.format.hashes import Digester, agree, matches
from rsnotify.format.model import ChangeType, Resource
from rsnotify.format.offer import Offer
from rsnotify.format.uris import normalize
from rsnotify.runtime.temporary_sets import TemporarySet
from rsnotify.selection import describe_representation, wanted_representation
from rsnotify.sync.progress import Progress
from rsnotify_subscriber.auditing.expected_resources import (
    ExpectationReader,
    ExpectedResources,
    expected_resources,
)
from rsnotify_subscriber.content.freshness import contradiction_in
from rsnotify_subscriber.discovery.descriptions import DescriptionReader
from rsnotify_subscriber.discovery.discovery import OfferDiscovery, base_of, discover, same_set
from rsnotify_subscriber.discovery.set_membership import SetMembership
from rsnotify_subscriber.fetching.credentials import without_login
from rsnotify_subscriber.fetching.fetcher import Fetcher
from rsnotify_subscriber.fetching.sessions import Sessions
from rsnotify_subscriber.mirror import MirrorTree, default_state
from rsnotify_subscriber.mirror.paths import pieces_of
from rsnotify_subscriber.options import DEFAULT_OPTIONS, FollowOptions
from rsnotify_subscriber.status import ActivityKind, SyncActivity
from rsnotify_subscriber.storage.identity import (
    Identity,
    KnownLinks,
    read_fact,
    read_held,
    read_identity,
)

#: Maximum number of comparisons: the Source may be changing, and the mirror a moment behind.
_ATTEMPTS = 5
#: Number of files to compare at once, and of workers that do so.
_PART = 64
_WORKERS = 4
#: Number of expected resources to read at once.
_PAGE = 1_000
#: Maximum number of missing files for which to request the resource from the Source itself.
_MOST_CHECKS = 100
#: The field of `Audit` for a difference, the name to list there, and whether the resource exists
#: according to the documents.
_Difference = tuple[str, str, bool]


class Audit(Struct, frozen=True):
    """The result of an audit.

    Args:
        resources: Number of resources of the Source.
        equal: Number of resources that the mirror has with the same content.
        created: URIs that the Source has and the mirror lacks.
        updated: URIs whose content differs.
        deleted: Files that no list names, relative to the mirror.
        foreign: Files in `deleted` that are not part of the copy, according to its state.
        absent: URIs that the Source lists, and neither its server (404, 410) nor the mirror has.
        unknown: URIs that could not be compared; with doubts, also files that no list names.
        reasons: The reasons why resources could not be compared, keyed by URI.
        doubts: The reasons why the Source's lists may be incomplete.
        limits: The limits of what the lists can show, in sentences. The affected resources were
            compared with the server.
        source: The Capability List of the set, or the document itself if there is no such list.
        gone: URIs that a list names and the mirror has, but whose server answers 404 or 410.
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
    gone: tuple[str, ...] = ()

    @property
    def in_step(self) -> bool | None:
        """Whether Source and mirror are equal; None if unknown."""
        if self.doubts:
            return None
        if self.differences:
            return False
        return None if self.unknown or self.absent else True

    @property
    def differences(self) -> int:
        """Number of resources and files that differ."""
        return len(self.created) + len(self.updated) + len(self.deleted) + len(self.gone)

    @property
    def unjudged(self) -> int:
        """Number of resources that could not be compared."""
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
    """Compare the files of a mirror with the lists of its Source.

    Args:
        url: The URL at which the Source is followed.
        folder: The mirror.
        state: The folder of the mirror's state; by default the one that `rsnotify follow` uses.
        options: The options for following the Source. Credentials are used, and the permission for
            hosts at private addresses.
        pause: Seconds to wait before comparing differences again.
        activity: Updated during the audit with the current activity and its progress.

    Raises:
        ConfigurationError: The folder does not exist, or it is a copy of another set of resources.
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
            tree = MirrorTree(folder, identity.base, probe=False)  # an audit only reads
            stored = Path(temporary, "expected.sqlite")
            with (
                expected_resources(stored, identity.selection) as expected,
                closing(TemporarySet()) as paths,
            ):
                membership = SetMembership(fetcher, descriptions, url, links)
                expectation = ExpectationReader(
                    fetcher, offer, made_from, membership, expected, activity
                )
                comparison = _MirrorComparison(
                    fetcher, tree, expected, paths, identity, place, activity
                )
                for attempt in range(_ATTEMPTS):
                    if attempt:
                        await asyncio.sleep(pause)
                    activity.kind = ActivityKind.READING
                    activity.document = f"Source's documents{' again' if attempt else ''}"
                    activity.done, activity.total, activity.bytes = 0, None, 0
                    await expectation.read()
                    found = await comparison.compare()
                    if found.in_step:
                        break
            return replace(found, source=offer.uri)


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


class _ComparedFile(NamedTuple):
    """A file to compare."""

    path: str
    #: The latest change of the resource, as in `ExpectedResource`; None if it is no resource.
    change: Change | None = None
    #: None if the file does not exist.
    size: int | None = None

    @property
    def is_expected(self) -> bool:
        """Whether the resource exists according to the documents."""
        return self.change is not None and self.change.change is not ChangeType.DELETED


@dataclass
class _MirrorComparison:
    """Compares a mirror with its Source, and later only the files that differed the last time."""

    fetcher: Fetcher
    tree: MirrorTree
    expected: ExpectedResources
    #: The paths of resources, relative to the root of the mirror.
    paths: TemporarySet
    identity: Identity
    state: Path
    activity: SyncActivity
    _suspects: set[str] | None = field(default=None, init=False)
    #: Held while finding the next files.
    _finding: Lock = field(default_factory=Lock, init=False)

    def __post_init__(self) -> None:
        self._root = os.path.join(self.tree.root, "")
        #: The kinds of difference to report: a copy may ignore deletions, for example.
        self._kinds = {"unknown", "absent", *(self.identity.selection.changes or ChangeType)}
        if ChangeType.DELETED in self._kinds:
            self._kinds.add("gone")

    async def compare(self) -> Audit:
        self._checks = 0
        self._reasons: dict[str, str] = {}
        #: The reasons why content may be wrong although it was fetched, keyed by URI.
        doubts = read_fact(self.state, "doubts", dict[str, str]) or {}
        self._doubted = {normalize(uri): why for uri, why in doubts.items()}
        expected = self.expected
        resources, _ = await asyncio.to_thread(expected.count)
        differing = await self._differing(resources)
        self._suspects = set(differing)
        foreign = await asyncio.to_thread(self._foreign, differing)
        names: dict[str, list[str]] = {}
        for path, (kind, name, _) in sorted(differing.items(), key=lambda one: one[1]):
            # With doubts, the lists may be incomplete.
            is_unknown = kind in ("deleted", "gone") and bool(expected.doubts)
            if is_unknown and kind == "gone":
                self._reasons[name] = "its server does not have it any more"
            names.setdefault("unknown" if is_unknown else kind, []).append(name)
            if path in foreign and not is_unknown:
                names.setdefault("foreign", []).append(name)
        return replace(
            Audit(
                resources,
                resources - sum(is_expected for _, _, is_expected in differing.values()),
                reasons=self._reasons,
                doubts=expected.doubts,
                limits=expected.limits,
            ),
            **{kind: tuple(found) for kind, found in names.items()},
        )

    def _foreign(self, differing: Mapping[str, _Difference]) -> set[str]:
        """Return the paths of files that are not part of the copy, according to its state."""
        unlisted = {path for path, (kind, *_) in differing.items() if kind == "deleted"}
        has_state = False
        for uri in read_held(self.state) if unlisted else ():
            has_state = True
            unlisted.discard(self.tree.find(uri))
        return unlisted if has_state else set()

    def _files(self) -> Iterator[_ComparedFile]:
        """Yield the files to compare: files of resources, and all others in the mirror's folder."""
        suspects = self._suspects
        self.expected.hold(read_held(self.state))  # file names depend on the copy's spelling
        left = set(suspects or ())
        for files in self._resource_files():
            if suspects is None:
                self.paths.update(self._relative(one.path) for one in files)
                yield from files
            elif found := [one for one in files if one.path in suspects]:
                left.difference_update(one.path for one in found)
                yield from found
        if suspects is None:
            unknown = (one for one in self.tree.paths() if self._relative(one) not in self.paths)
            yield from map(_ComparedFile, unknown)
        yield from map(_ComparedFile, left)

    def _resource_files(self) -> Iterator[list[_ComparedFile]]:
        after = ""
        while page := self.expected.page(after, _PAGE):
            after = page[-1].change.uri
            files = self.tree.find_files([one.name for one in page])
            yield [
                # `find` refuses a file behind a symbolic link.
                _ComparedFile(self.tree.find(one.name), one.change)
                if status is None
                else _ComparedFile(path, one.change, status.st_size)
                for one, (path, status) in zip(page, files, strict=True)
            ]

    async def _differing(self, resources: int) -> dict[str, _Difference]:
        differing: dict[str, _Difference] = {}
        activity, files = self.activity, self._files()
        activity.kind, activity.bytes = ActivityKind.COMPARING, 0
        activity.total = resources if self._suspects is None else len(self._suspects)

        async def work() -> None:
            while True:
                part, undecided = await asyncio.to_thread(self._compare_part, files)
                if not part:
                    return
                kinds = await asyncio.gather(*(self._kind(*each) for each in undecided))
                for (file, _), kind in zip(undecided, kinds, strict=True):
                    if kind is not None and kind in self._kinds:
                        entry = file.change and file.change.resource
                        name = entry.uri if entry else self._relative(file.path)
                        differing[file.path] = (kind, name, file.is_expected)
                activity.done += len(part)
                activity.bytes += sum(file.size or 0 for file in part)
                activity.total = max(activity.total or 0, activity.done)  # files of no resource

        await asyncio.gather(*(work() for _ in range(_WORKERS)))
        return differing

    def _compare_part(
        self, files: Iterator[_ComparedFile]
    ) -> tuple[list[_ComparedFile], list[tuple[_ComparedFile, Digester | None]]]:
        """Return the next files, and those without the listed hash together with their digests."""
        with self._finding:
            part = list(islice(files, _PART))
        return part, [(one, self._digest(one)) for one in part if not self._has_listed_hash(one)]

    def _has_listed_hash(self, file: _ComparedFile) -> bool:
        if file.change is None or file.size is None or self._is_contested(file.change):
            return False
        listed = self._announced(file.change).hash
        if listed is None:
            return False
        try:
            return matches(listed, pieces_of(file.path, file.size))
        except FileNotFoundError:
            return False  # just removed

    def _is_contested(self, change: Change) -> bool:
        """Return whether only its server can tell if a resource exists."""
        return change.change is ChangeType.DELETED or change.uri in self.expected.contested

    def _digest(self, file: _ComparedFile) -> Digester | None:
        """Return the digests of a file; None if there is no file.

        A file without a resource is not read, and may be a symbolic link.
        """
        if file.change is None:
            return Digester(None) if os.path.lexists(file.path) else None
        if file.size is None:
            return None
        digester = Digester(self._announced(file.change).hash)
        try:
            for piece in pieces_of(file.path, file.size):
                digester.update(piece)
        except FileNotFoundError:
            return None  # just removed
        return digester

    def _relative(self, path: str) -> str:
        return path[len(self._root) :]

    def _announced(self, change: Change) -> Resource:
        """Return the entry of the representation that is mirrored, as far as it counts."""
        entry = describe_representation(change.resource, self.identity.prefer)
        is_clear = change.check is not CheckMethod.FETCH
        return entry if is_clear else replace(entry, hash=None, length=None)

    def _unknown(self, resource: Resource, reason: str) -> str:
        self._reasons[resource.uri] = reason
        return "unknown"

    async def _kind(self, file: _ComparedFile, local: Digester | None) -> str | None:
        """Return the field of `Audit` for a file that differs; None if it does not."""
        change = file.change
        if change is None:
            return None if local is None else "deleted"
        resource = change.resource
        try:
            if self._is_contested(change):
                return await self._contested(file, local, change)
            if local is None:
                return await self._missing(change)
            same = agree(self._announced(change).hash, local.hashes)
            if same is None:
                return await self._compare_content(local, change)
        except FetchError as error:
            return self._unknown(resource, error.reason)
        return None if same else "updated"

    async def _contested(
        self, file: _ComparedFile, local: Digester | None, change: Change
    ) -> str | None:
        """Request a resource to find out whether it exists: the lists contradict each other."""
        is_there = await self.fetcher.exists(change.resource.uri)
        if change.uri in self.expected.contested and is_there != file.is_expected:
            reason = "the lists and its server contradict each other"
            return self._unknown(change.resource, reason)
        if is_there:
            return "created" if local is None else await self._compare_content(local, change)
        return None if local is None else "gone"

    async def _missing(self, change: Change) -> str:
        """Return "absent" if the Source itself lacks a resource, else "created"."""
        self._checks += 1
        if self._checks > _MOST_CHECKS:
            return "created"
        home = wanted_representation(change, self.identity.prefer).home.uri
        return "created" if await self.fetcher.exists(home) else "absent"

    async def _compare_content(self, local: Digester, change: Change) -> str | None:
        """Compare a file with the resource itself, because the Source announces no usable hash.

        If a follower would doubt the content, the audit reports it as unknown.
        """
        wanted = wanted_representation(change, self.identity.prefer)
        entry = replace(self._announced(change), uri=wanted.home.uri)
        try:
            content = await self.fetcher.content(entry, fresh=True)
        except NotFound:
            return "gone"
        await asyncio.to_thread(content.discard)
        if not agree(content.hashes, local.hashes):
            return "updated"
        if doubt := contradiction_in(content, wanted) or self._doubted.get(change.uri):
            return self._unknown(change.resource, doubt)
        return None
