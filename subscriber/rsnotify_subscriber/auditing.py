"""Auditing a mirror: is every resource here, as the Source has it, and nothing else?"""

from __future__ import annotations

import asyncio
import os
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import NamedTuple

import msgspec
from msgspec import Struct

from rsnotify.errors import FetchError, NotFound
from rsnotify.model import Resource
from rsnotify_subscriber.digests import Digester, agree
from rsnotify_subscriber.discovery import base_of, discover, rediscover
from rsnotify_subscriber.expected import Expected, read_expected
from rsnotify_subscriber.fetching import Fetcher
from rsnotify_subscriber.mirror import Tree, default_state
from rsnotify_subscriber.sessions import Sessions
from rsnotify_subscriber.state import read_identity

#: How often what differs is looked at: the Source may be changing, the mirror a moment behind.
_LOOKS = 5
_COMPARISONS = 16


class Audit(Struct, frozen=True):
    """What an audit found.

    Args:
        resources: How many resources the Source has.
        created: URIs that the Source has and the mirror has not.
        updated: URIs whose content differs.
        deleted: Files, relative to the mirror, that the Source has nothing for.
        unknown: URIs of which it could not be told.
        doubts: Why the Source's lists may not tell all.
    """

    resources: int
    created: tuple[str, ...] = ()
    updated: tuple[str, ...] = ()
    deleted: tuple[str, ...] = ()
    unknown: tuple[str, ...] = ()
    doubts: tuple[str, ...] = ()

    @property
    def in_step(self) -> bool | None:
        """Whether Source and mirror are equal; None if it could not be told."""
        if self.doubts:
            return None
        if self.created or self.updated or self.deleted:
            return False
        return None if self.unknown else True


async def audit(
    url: str,
    folder: Path,
    *,
    state: Path | None = None,
    pause: float = 1.0,
    allow_private_addresses: bool = False,
) -> Audit:
    """Compare a mirror with its Source, content against hash.

    Args:
        url: The Source, as it is followed.
        folder: The mirror.
        state: Where its state is kept; None for the place where `rsnotify follow` keeps it.
        pause: Seconds until what differs is looked at again.
        allow_private_addresses: Whether documents may name hosts at private addresses.

    Raises:
        RsnotifyError: The Source could not be read.
    """
    identity = read_identity(state or default_state(folder))
    sessions = Sessions(url, allow_private_addresses=allow_private_addresses)
    with TemporaryDirectory(prefix="rsnotify-audit-") as temporary:
        async with sessions:
            fetcher = Fetcher(sessions, Path(temporary))
            if identity is None:
                offer = await discover(fetcher, url)
                tree = Tree(folder, base_of(offer))
            else:
                offer = await rediscover(fetcher, url, identity.offer)
                tree = Tree(folder, identity.base)
            looks = _Looks(fetcher, tree)
            for number in range(_LOOKS):
                if number:
                    await asyncio.sleep(pause)
                found = await looks.look(await read_expected(fetcher, offer))
                if found.in_step:
                    break
            return found


class _Difference(NamedTuple):
    """How a file differs from what is expected in its place; `kind` is a field of `Audit`."""

    kind: str
    name: str


class _Looks:
    """Looks at the mirror; each time only at what differed the time before."""

    def __init__(self, fetcher: Fetcher, tree: Tree) -> None:
        self._fetcher = fetcher
        self._tree = tree
        self._suspects: set[Path] | None = None

    async def look(self, expected: Expected) -> Audit:
        places = await asyncio.to_thread(self._places, expected)
        differing = await self._differing(places)
        self._suspects = set(differing)
        names: dict[str, list[str]] = {}
        for kind, name in sorted(differing.values()):
            names.setdefault(kind, []).append(name)
        return msgspec.structs.replace(
            Audit(len(expected.resources), doubts=expected.doubts),
            **{kind: tuple(found) for kind, found in names.items()},
        )

    def _places(self, expected: Expected) -> dict[Path, Resource | None]:
        """Return what is expected at each place to look at; None: nothing."""
        places: dict[Path, Resource | None] = dict.fromkeys(self._tree.files())
        places |= {self._tree.find(uri): resource for uri, resource in expected.resources.items()}
        if self._suspects is None:
            return places
        return {path: places.get(path) for path in self._suspects}

    async def _differing(self, places: dict[Path, Resource | None]) -> dict[Path, _Difference]:
        turn = asyncio.Semaphore(_COMPARISONS)

        async def compare(path: Path, resource: Resource | None) -> str | None:
            async with turn:
                return await self._compare(path, resource)

        items = list(places.items())
        kinds = await asyncio.gather(*(compare(path, resource) for path, resource in items))
        return {
            path: _Difference(kind, resource.uri if resource else self._relative(path))
            for (path, resource), kind in zip(items, kinds, strict=True)
            if kind is not None
        }

    def _relative(self, path: Path) -> str:
        return os.path.relpath(path, self._tree.root)

    async def _compare(self, path: Path, resource: Resource | None) -> str | None:
        """Return how a file differs, as a field of `Audit`."""
        local = await asyncio.to_thread(_digest, path, resource)
        if resource is None:
            return None if local is None else "deleted"
        if local is None:
            return "created"
        same = agree(resource.hash, local.hashes)
        if same is None:
            return await self._compare_content(local, resource)
        return None if same else "updated"

    async def _compare_content(self, local: Digester, resource: Resource) -> str | None:
        """Compare with the resource itself, as the Source announces no hash."""
        try:
            content = await self._fetcher.content(resource)
        except NotFound:
            return "deleted"
        except FetchError:
            return "unknown"
        await asyncio.to_thread(content.discard)
        return None if agree(content.hashes, local.hashes) else "updated"


def _digest(path: Path, resource: Resource | None) -> Digester | None:
    """Digest a file; None if there is none."""
    if not path.is_file() or path.is_symlink():
        return None
    digester = Digester(resource.hash if resource else None)
    if resource is not None:
        with path.open("rb") as file:
            while chunk := file.read(1 << 20):
                digester.update(chunk)
    return digester
