"""Auditing a mirror: whether it has every resource of the Source, unchanged, and nothing else."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from itertools import islice
from pathlib import Path
from tempfile import TemporaryDirectory

import msgspec
from msgspec import Struct

from rsnotify.errors import ConfigurationError, FetchError, NotFound, without_credentials
from rsnotify.format.coverage import Change
from rsnotify.format.model import Resource
from rsnotify.format.offer import Offer
from rsnotify.format.uris import normalize
from rsnotify.format.vocabulary import ChangeType
from rsnotify.selection.representations import (
    WantedRepresentation,
    describe_representation,
    wanted_representation,
)
from rsnotify.sync.actions import Progress
from rsnotify_subscriber.auditing.expectation import ExpectationReader, ExpectedResources
from rsnotify_subscriber.content.freshness import contradiction_in
from rsnotify_subscriber.discovery.descriptions import DescriptionReader
from rsnotify_subscriber.discovery.identification import same_set
from rsnotify_subscriber.discovery.membership import SetMembership
from rsnotify_subscriber.discovery.offers import OfferDiscovery, base_of, discover
from rsnotify_subscriber.fetching.credentials import NO_CREDENTIALS, Credentials, without_login
from rsnotify_subscriber.fetching.digests import Digester, agree
from rsnotify_subscriber.fetching.fetcher import Fetcher
from rsnotify_subscriber.fetching.sessions import Sessions
from rsnotify_subscriber.mirror import MirrorTree, default_state
from rsnotify_subscriber.storage.identity import (
    Identity,
    KnownLinks,
    read_fact,
    read_held,
    read_identity,
)

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
    pause: float = 1.0,
    allow_private_addresses: bool = False,
    credentials: Credentials = NO_CREDENTIALS,
    progress: Callable[[int, int], None] | None = None,
) -> Audit:
    """Compare a mirror with its Source, content against hash.

    Args:
        url: The Source, as it is followed.
        folder: The mirror.
        state: The folder of its state; by default the one that `rsnotify follow` uses.
        pause: The seconds until differences are compared again.
        allow_private_addresses: Whether documents may name hosts at private addresses.
        credentials: The credentials for the origin of `url`, as of a `Subscriber`.
        progress: Called with the number of files that were compared, and of all.

    Raises:
        ConfigurationError: There is no such folder.
        RsnotifyError: The Source could not be read.
    """
    folder = Path(folder)
    if not folder.is_dir():
        raise ConfigurationError(f"there is no folder {folder} to compare with the Source")
    place = default_state(folder) if state is None else Path(state)
    known = read_identity(place)
    sessions = Sessions(
        url, allow_private_addresses=allow_private_addresses, credentials=credentials
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
            comparison = _MirrorComparison(fetcher, tree, identity, place, progress)
            for attempt in range(_ATTEMPTS):
                if attempt:
                    await asyncio.sleep(pause)
                found = await comparison.compare(await expectation.read())
                if found.in_step:
                    break
            return found


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
        progress: Callable[[int, int], None] | None,
    ) -> None:
        self._fetcher = fetcher
        self._tree = tree
        self._state = state
        self._progress = progress
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
        compared = 0

        async def work() -> None:
            nonlocal compared
            while part := list(islice(items, _PART)):
                differing.update(await self._compare(part))
                compared += len(part)
                if self._progress is not None:
                    self._progress(compared, len(resources))

        await asyncio.gather(*(work() for _ in range(_WORKERS)))
        return differing

    async def _compare(self, part: list[tuple[str, Resource | None]]) -> dict[str, _Difference]:
        digests = await asyncio.to_thread(
            lambda: [_digest(path, one and self._announced(one)) for path, one in part]
        )
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
