"""Audits a mirror: checks that it has exactly the resources that its Source lists.

Each file is compared with the hash in the Source's current documents. If there is none, it is
compared with the resource itself.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from enum import StrEnum
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
    ExpectedResource,
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

#: Maximum number of comparisons. The mirror may lag behind a changing Source for a moment.
_MAX_COMPARISONS = 5
#: Number of files that a worker compares in one call in a thread.
_BATCH_SIZE = 64
_WORKERS = 4
#: Number of expected resources to read in one query.
_PAGE_SIZE = 1_000
#: Maximum number of missing files whose resources are requested from the server.
_MAX_EXISTENCE_CHECKS = 100
NOT_FOUND_REASON = "the server returned 404 or 410"


class Audit(Struct, frozen=True):
    """The result of an audit.

    Args:
        resources: Number of resources of the Source.
        equal: Number of resources that the mirror has with the same content.
        created: URIs that the Source has and the mirror lacks.
        updated: URIs whose content differs.
        deleted: Unlisted files, relative to the mirror.
        foreign: Files in `deleted` that are not part of the copy, according to its state.
        absent: Listed URIs that the mirror lacks, and for which the server returns 404 or 410.
        unknown: URIs that could not be compared; with doubts, also unlisted files.
        reasons: Why resources could not be compared, keyed by URI.
        doubts: Why the Source's lists may be incomplete.
        limits: What the lists cannot show, in sentences. The affected resources were compared with
            the server.
        source: The Capability List of the set, or the document itself if there is no such list.
        gone: Listed URIs that the mirror has, but for which the server returns 404 or 410.
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
        options: The options for following the Source. Only `credentials` and
            `allow_private_addresses` are used.
        pause: Seconds to wait before comparing differences again.
        activity: Updated during the audit with the current activity and its progress.

    Raises:
        ConfigurationError: The folder does not exist, or it is a copy of another set of resources.
        RsnotifyError: The Source could not be read.
    """
    folder = Path(folder)
    if not folder.is_dir():
        raise ConfigurationError(f"there is no folder {folder} to compare with the Source")
    state_folder = default_state(folder) if state is None else Path(state)
    known = read_identity(state_folder)
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
            progress = None if known is None else read_fact(state_folder, "progress", Progress)
            links = None if known is None else read_fact(state_folder, "links", KnownLinks)
            memory = known.memory if known is not None else None
            descriptions = DescriptionReader(fetcher, memory)
            offer, identity = await _resolve_offer(fetcher, descriptions, url, folder, known)
            tree = MirrorTree(folder, identity.base, probe=False)  # an audit only reads
            stored = Path(temporary, "expected.sqlite")
            with (
                expected_resources(stored, identity.selection) as expected,
                closing(TemporarySet()) as paths,
            ):
                membership = SetMembership(fetcher, descriptions, url, links)
                expectation = ExpectationReader(
                    fetcher, offer, progress, membership, expected, activity
                )
                comparison = _MirrorComparison(
                    fetcher=fetcher,
                    tree=tree,
                    expected=expected,
                    paths=paths,
                    identity=identity,
                    state_folder=state_folder,
                    activity=activity,
                )
                for attempt in range(_MAX_COMPARISONS):
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


async def _resolve_offer(
    fetcher: Fetcher,
    descriptions: DescriptionReader,
    url: str,
    folder: Path,
    known: Identity | None,
) -> tuple[Offer, Identity]:
    """Read the current offer. Return it with the identity of the copy, or a new one."""
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
            f"{without_credentials(url)} is another set of resources; give the URL that was "
            "followed, or the folder of the other copy. To compare the files anyway, give an empty "
            "folder with --state"
        )
    return now, known


class _DifferenceKind(StrEnum):
    """The fields of `Audit` that list differences."""

    CREATED = "created"
    UPDATED = "updated"
    DELETED = "deleted"
    GONE = "gone"
    ABSENT = "absent"
    UNKNOWN = "unknown"


class _Difference(NamedTuple):
    """A difference between the mirror and the documents."""

    kind: _DifferenceKind
    #: The URI of the resource, or the path of a file without a resource.
    name: str
    #: Whether the resource exists according to the documents.
    is_expected: bool


class _ComparedFile(NamedTuple):
    """A file to compare."""

    path: str
    #: As in `ExpectedResource`; None if the file belongs to no resource.
    change: Change | None = None
    #: None if the file does not exist.
    size: int | None = None
    #: As in `ExpectedResource`.
    is_new: bool = False

    @property
    def is_expected(self) -> bool:
        """Whether the resource exists according to the documents."""
        return self.change is not None and self.change.change is not ChangeType.DELETED


@dataclass(kw_only=True)
class _MirrorComparison:
    """Compares a mirror with its Source.

    Repetitions only compare files that differed, or whose entries have changed since.
    """

    fetcher: Fetcher
    tree: MirrorTree
    expected: ExpectedResources
    #: The paths of resources, relative to the root of the mirror.
    paths: TemporarySet
    identity: Identity
    state_folder: Path
    activity: SyncActivity
    _differed_before: set[str] | None = field(default=None, init=False)
    #: Protects the iterator over files, which all workers share.
    _files_lock: Lock = field(default_factory=Lock, init=False)

    def __post_init__(self) -> None:
        self._root = os.path.join(self.tree.root, "")
        #: The kinds of difference to report. A copy may ignore deletions, for example.
        changes = self.identity.selection.changes or tuple(ChangeType)
        self._reported_kinds = {
            _DifferenceKind.UNKNOWN,
            _DifferenceKind.ABSENT,
            *(_DifferenceKind(change.value) for change in changes),
        }
        if ChangeType.DELETED in changes:
            self._reported_kinds.add(_DifferenceKind.GONE)

    async def compare(self) -> Audit:
        self._existence_checks = 0
        self._reasons: dict[str, str] = {}
        doubts = read_fact(self.state_folder, "doubts", dict[str, str]) or {}
        #: Why fetched content may be wrong, keyed by URI.
        self._content_doubts = {normalize(uri): reason for uri, reason in doubts.items()}
        expected = self.expected
        resources, _ = await asyncio.to_thread(expected.count)
        differing = await self._find_differences(resources)
        self._differed_before = set(differing)
        foreign = await asyncio.to_thread(self._foreign_files, differing)
        names: dict[str, list[str]] = {}
        for path, (kind, name, _) in sorted(differing.items(), key=lambda one: one[1]):
            is_surplus = kind in (_DifferenceKind.DELETED, _DifferenceKind.GONE)
            if is_surplus and expected.doubts:  # the lists may be incomplete
                names.setdefault(_DifferenceKind.UNKNOWN.value, []).append(name)
                if kind is _DifferenceKind.GONE:
                    self._reasons[name] = NOT_FOUND_REASON
                continue
            names.setdefault(kind.value, []).append(name)
            if path in foreign:
                names.setdefault("foreign", []).append(name)
        return replace(
            Audit(
                resources,
                resources - sum(difference.is_expected for difference in differing.values()),
                reasons=self._reasons,
                doubts=expected.doubts,
                limits=expected.limits,
            ),
            **{kind: tuple(found) for kind, found in names.items()},
        )

    def _foreign_files(self, differing: Mapping[str, _Difference]) -> set[str]:
        """Return the paths of files that are not part of the copy, according to its state."""
        unlisted = {path for path, one in differing.items() if one.kind is _DifferenceKind.DELETED}
        has_state = False
        for uri in read_held(self.state_folder) if unlisted else ():
            has_state = True
            unlisted.discard(self.tree.find(uri))
        return unlisted if has_state else set()

    def _files_to_compare(self) -> Iterator[_ComparedFile]:
        """Yield the files of resources, and all others in the mirror's folder."""
        differed_before = self._differed_before
        # File names depend on the copy's spelling of URIs.
        self.expected.store_held(read_held(self.state_folder))
        remaining = set(differed_before or ())
        for files in self._resource_files(self.expected.page):
            if differed_before is None:
                self.paths.update(self._relative(one.path) for one in files)
                yield from files
            else:
                found = [one for one in files if one.is_new or one.path in differed_before]
                remaining.difference_update(one.path for one in found)
                yield from found
        if differed_before is None:
            unknown = (one for one in self.tree.paths() if self._relative(one) not in self.paths)
            yield from map(_ComparedFile, unknown)
        yield from map(_ComparedFile, remaining)
        for files in self._resource_files(self.expected.unlisted_page):
            yield from (_ComparedFile(one.path) for one in files if one.path not in remaining)

    def _resource_files(
        self, next_page: Callable[[str, int], Sequence[ExpectedResource]]
    ) -> Iterator[list[_ComparedFile]]:
        after = ""
        while page := next_page(after, _PAGE_SIZE):
            after = page[-1].change.uri
            files = self.tree.find_files([one.name for one in page])
            yield [
                # `find` refuses a file behind a symbolic link.
                _ComparedFile(self.tree.find(one.name), one.change, is_new=one.is_new)
                if status is None
                else _ComparedFile(path, one.change, status.st_size, one.is_new)
                for one, (path, status) in zip(page, files, strict=True)
            ]

    async def _find_differences(self, resources: int) -> dict[str, _Difference]:
        differing: dict[str, _Difference] = {}
        activity, files = self.activity, self._files_to_compare()
        activity.kind, activity.bytes = ActivityKind.COMPARING, 0
        activity.total = resources if self._differed_before is None else len(self._differed_before)

        async def work() -> None:
            while True:
                part, undecided = await asyncio.to_thread(self._compare_next, files)
                if not part:
                    return
                kinds = await asyncio.gather(*(self._difference_of(*each) for each in undecided))
                for (file, _), kind in zip(undecided, kinds, strict=True):
                    if kind is not None and kind in self._reported_kinds:
                        entry = file.change and file.change.resource
                        name = entry.uri if entry else self._relative(file.path)
                        differing[file.path] = _Difference(kind, name, file.is_expected)
                activity.done += len(part)
                activity.bytes += sum(file.size or 0 for file in part)
                activity.total = max(activity.total or 0, activity.done)  # files without a resource

        await asyncio.gather(*(work() for _ in range(_WORKERS)))
        return differing

    def _compare_next(
        self, files: Iterator[_ComparedFile]
    ) -> tuple[list[_ComparedFile], list[tuple[_ComparedFile, Digester | None]]]:
        """Return the next files, and the digests of those that lack the listed hash."""
        with self._files_lock:
            part = list(islice(files, _BATCH_SIZE))
        return part, [(one, self._digest(one)) for one in part if not self._has_listed_hash(one)]

    def _has_listed_hash(self, file: _ComparedFile) -> bool:
        if file.change is None or file.size is None or self._is_contested(file.change):
            return False
        listed = self._announced_entry(file.change).hash
        if listed is None:
            return False
        try:
            return matches(listed, pieces_of(file.path, file.size))
        except FileNotFoundError:
            return False  # just removed

    def _is_contested(self, change: Change) -> bool:
        """Return whether the documents leave open if a resource exists."""
        return change.change is ChangeType.DELETED or change.uri in self.expected.contested

    def _digest(self, file: _ComparedFile) -> Digester | None:
        """Return the digests of a file; None if there is no file.

        A file without a resource is not read, and may be a symbolic link.
        """
        if file.change is None:
            return Digester(None) if os.path.lexists(file.path) else None
        if file.size is None:
            return None
        digester = Digester(self._announced_entry(file.change).hash)
        try:
            for piece in pieces_of(file.path, file.size):
                digester.update(piece)
        except FileNotFoundError:
            return None  # just removed
        return digester

    def _relative(self, path: str) -> str:
        return path[len(self._root) :]

    def _announced_entry(self, change: Change) -> Resource:
        """Return the entry of the mirrored representation, without an unreliable hash."""
        entry = describe_representation(change.resource, self.identity.prefer)
        is_clear = change.check is not CheckMethod.FETCH
        return entry if is_clear else replace(entry, hash=None, length=None)

    def _note_unknown(self, resource: Resource, reason: str) -> _DifferenceKind:
        self._reasons[resource.uri] = reason
        return _DifferenceKind.UNKNOWN

    async def _difference_of(
        self, file: _ComparedFile, local: Digester | None
    ) -> _DifferenceKind | None:
        change = file.change
        if change is None:
            return None if local is None else _DifferenceKind.DELETED
        resource = change.resource
        try:
            if self._is_contested(change):
                return await self._check_contested(file, local, change)
            if local is None:
                return await self._check_missing(change)
            same = agree(self._announced_entry(change).hash, local.hashes)
            if same is None:
                return await self._compare_content(local, change)
        except FetchError as error:
            return self._note_unknown(resource, error.reason)
        return None if same else _DifferenceKind.UPDATED

    async def _check_contested(
        self, file: _ComparedFile, local: Digester | None, change: Change
    ) -> _DifferenceKind | None:
        """Ask the server whether a resource exists, because the lists contradict each other."""
        exists = await self.fetcher.exists(change.resource.uri)
        if change.uri in self.expected.contested and exists != file.is_expected:
            reason = "the lists and its server contradict each other"
            return self._note_unknown(change.resource, reason)
        if exists:
            if local is None:
                return _DifferenceKind.CREATED
            return await self._compare_content(local, change)
        return None if local is None else _DifferenceKind.GONE

    async def _check_missing(self, change: Change) -> _DifferenceKind:
        self._existence_checks += 1
        if self._existence_checks > _MAX_EXISTENCE_CHECKS:
            return _DifferenceKind.CREATED
        home = wanted_representation(change, self.identity.prefer).home.uri
        exists = await self.fetcher.exists(home)
        return _DifferenceKind.CREATED if exists else _DifferenceKind.ABSENT

    async def _compare_content(self, local: Digester, change: Change) -> _DifferenceKind | None:
        """Compare a file with the resource itself, because no reliable hash is announced.

        The result is "unknown" if a follower would doubt the served content.
        """
        wanted = wanted_representation(change, self.identity.prefer)
        entry = replace(self._announced_entry(change), uri=wanted.home.uri)
        try:
            content = await self.fetcher.content(entry, fresh=True)
        except NotFound:
            return _DifferenceKind.GONE
        await asyncio.to_thread(content.discard)
        if not agree(content.hashes, local.hashes):
            return _DifferenceKind.UPDATED
        if doubt := contradiction_in(content, wanted) or self._content_doubts.get(change.uri):
            return self._note_unknown(change.resource, doubt)
        return None
