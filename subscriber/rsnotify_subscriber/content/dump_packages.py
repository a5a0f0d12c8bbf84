"""The packages of a dump, while their members are applied.

The follower requests the next one only when few members of the last are still to be applied, so two
large ones are open at most. Of small ones, several may have members that are still to be applied. A
member that a package does not have is fetched by its own URI.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from contextlib import ExitStack

from msgspec.structs import replace

from rsnotify.errors import DocumentError, FetchError, StorageError, Unavailable
from rsnotify.format.links import resolve
from rsnotify.format.model import Document, Resource
from rsnotify.format.vocabulary import Rel
from rsnotify_subscriber.content.zip_package import ZipPackage
from rsnotify_subscriber.fetching.contents import Content
from rsnotify_subscriber.fetching.digests import verified_hashes
from rsnotify_subscriber.fetching.fetcher import Fetcher

logger = logging.getLogger("rsnotify.subscriber")

#: The packages that stay open, whatever their size: the last, and the one before it.
_KEPT = 2
#: The most packages that stay open, and the bytes up to which more than two do.
_MOST_KEPT = 16
_KEPT_BYTES = 64_000_000
#: The most bytes of a package, if its dump does not announce fewer.
_MOST_BYTES = 16 * 2**30


class DumpPackages:
    def __init__(self, fetcher: Fetcher) -> None:
        self._fetcher = fetcher
        self._open: list[ZipPackage] = []

    @property
    def open_count(self) -> int:
        return len(self._open)

    async def open(self, entry: Resource) -> Document:
        """GET a package, verify it and open it.

        Returns:
            Its manifest. If the package cannot be used, that is the copy which the Source may
            have beside it (core §11.1), and no package is opened.

        Raises:
            FetchError: It could not be fetched, or is not what was announced.
            DocumentError: It is no package, or its manifest cannot be read.
            StorageError: It could not be written.
        """
        try:
            return await self._manifest(entry)
        except Unavailable:
            raise
        except OSError as error:
            raise StorageError(f"{entry.uri}: {error}") from error
        except (FetchError, DocumentError) as error:
            copy = next((link.href for link in entry.links if link.rel == Rel.CONTENTS), None)
            if copy is None:
                raise
            logger.warning("the copy of its manifest is used instead: %s", error)
            return await self._fetcher.document(resolve(entry.uri, copy))

    async def _manifest(self, entry: Resource) -> Document:
        # Its type is not checked: what is no ZIP with a manifest is refused anyway.
        content = await self._fetcher.content(replace(entry, type=None), most=_MOST_BYTES)
        opening = asyncio.ensure_future(asyncio.to_thread(_opened, content, entry.uri))
        try:
            package, manifest = await asyncio.shield(opening)
        except asyncio.CancelledError:
            package, _ = await opening  # the thread continues, and what it opens must be closed
            package.close()
            raise
        self._open.append(package)
        while len(self._open) > _KEPT and self._too_many:
            await self._close(self._open[:1])
        return manifest

    @property
    def _too_many(self) -> bool:
        return len(self._open) > _MOST_KEPT or sum(one.size for one in self._open) > _KEPT_BYTES

    async def member(self, package: str, entry: Resource) -> Content:
        """Return the member at `entry.path`, verified by the entry's hash and length.

        A `FetchError` means that the package is closed, or does not have it.
        """
        opened = next((one for one in reversed(self._open) if one.uri == package), None)
        if opened is None or entry.path is None:
            raise Unavailable(entry.uri, f"the package {package} is no longer open")
        return await self._fetcher.collect(entry, _asynchronous(opened.pieces(entry.path)))

    async def small_members(
        self, wanted: Sequence[tuple[str | None, Resource]]
    ) -> list[Content | None]:
        """Return members of packages, of which each is verified as by `member`.

        None stands for one that is not small, or for which `member` would raise an error.
        """
        opened = {package.uri: package for package in self._open}
        found = await asyncio.to_thread(_read_small, opened, wanted)
        return [None if each is None else self._fetcher.store(*each) for each in found]

    async def close(self) -> None:
        """Close all packages, and remove their files."""
        await self._close(self._open[:])

    async def _close(self, packages: Sequence[ZipPackage]) -> None:
        for package in packages:
            await asyncio.to_thread(package.close)
            if package in self._open:  # removed only then, as this may be cancelled
                self._open.remove(package)


def _opened(content: Content, uri: str) -> tuple[ZipPackage, Document]:
    with ExitStack() as failing:
        failing.callback(content.discard)
        content.write()
        package = ZipPackage(content.path, uri)
        failing.callback(package.close)
        manifest = package.manifest()
        failing.pop_all()
    return package, manifest


def _read_small(
    opened: Mapping[str, ZipPackage], wanted: Sequence[tuple[str | None, Resource]]
) -> list[tuple[bytes, str] | None]:
    """Return the contents of members and their hashes."""
    found: list[tuple[bytes, str] | None] = []
    for uri, entry in wanted:
        package = opened.get(uri or "")
        data = package.small(entry.path) if package is not None and entry.path else None
        hashes = None if data is None else verified_hashes(data, entry.hash, entry.length)
        found.append(None if data is None or hashes is None else (data, hashes))
    return found


async def _asynchronous(pieces: Iterator[bytes]) -> AsyncIterator[bytes]:
    while (piece := await asyncio.to_thread(next, pieces, None)) is not None:
        yield piece
