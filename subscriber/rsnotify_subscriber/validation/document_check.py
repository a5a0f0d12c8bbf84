"""Checking single documents and packages, streamed through the validator."""

from __future__ import annotations

import asyncio
import zlib
from collections.abc import AsyncIterator, Callable, Iterable
from pathlib import Path

from rsnotify.errors import ContentMismatch, FetchError, MalformedDocument, RsnotifyError
from rsnotify.format.model import Resource
from rsnotify.format.writer import Profile
from rsnotify.validation import Validator
from rsnotify.validation.outline import Outline, Reference
from rsnotify.validation.rules import make_finding
from rsnotify.validation.tree import LocatedFinding, TreePosition
from rsnotify_subscriber.content.zip_package import MANIFEST, ZipPackage
from rsnotify_subscriber.fetching.contents import Content
from rsnotify_subscriber.fetching.digests import Digester
from rsnotify_subscriber.fetching.fetcher import Fetcher
from rsnotify_subscriber.fetching.inflating import inflated_if_gzip
from rsnotify_subscriber.fetching.responses import body, check_status
from rsnotify_subscriber.fetching.sessions import Sessions
from rsnotify_subscriber.validation.package import PackageChecker, compare
from rsnotify_subscriber.validation.result import CheckedDocument, ValidationResult

#: The most bytes of one package.
_MOST_PACKAGE_BYTES = 4 * 2**30
_PIECE = 131_072
_ZIP = b"PK\x03\x04"


class PackageReceived(RsnotifyError):
    """The response for a document is a ZIP."""


class DocumentChecker:
    """Checks the documents and packages of one validation, and adds the findings to its result."""

    def __init__(
        self,
        sessions: Sessions,
        folder: Path,
        result: ValidationResult,
        spec: Profile,
        progress: Callable[[str], None],
    ) -> None:
        self._sessions = sessions
        self._folder = folder
        self._fetcher = Fetcher(sessions, folder)
        self._result = result
        self._spec = spec
        self._progress = progress
        self._checked: dict[str, CheckedDocument] = {}

    def note(self, found: Iterable[LocatedFinding]) -> None:
        """Add findings about documents that were checked before."""
        for located in found:
            self._checked[located.name].add([located.finding])

    async def file(self, path: Path) -> TreePosition:
        """Check a file, a document or a package; OSError if it cannot be read."""
        name = str(path)
        with path.open("rb") as file:
            is_package = file.read(len(_ZIP)) == _ZIP
        if not is_package:
            outline, checked = await self._read(name, inflated_if_gzip(_pieces(path)))
            self._begin(checked)
            return _placed("", name, outline)
        self._begin(CheckedDocument(name))
        return await self._package(_linked(path, self._folder), name, "")

    async def fetch(self, uri: str) -> TreePosition:
        """GET and check a document, or a package; FetchError if that fails."""
        try:
            outline, checked = await self._get(uri)
        except PackageReceived:
            return await self.fetch_package(Reference(uri, 1))
        self._begin(checked)
        return _placed(uri, uri, outline)

    async def peek(self, uri: str) -> TreePosition | None:
        """GET and read a document without adding findings about it; None if that fails."""
        try:
            outline, _ = await self._get(uri)
        except (FetchError, PackageReceived):
            return None
        return TreePosition(uri, uri, outline)

    async def fetch_package(self, reference: Reference) -> TreePosition:
        """GET a package, check it and its manifest, and return that; FetchError if that fails."""
        uri = reference.uri
        content = await self._fetcher.content(Resource(uri), most=_MOST_PACKAGE_BYTES)
        checked = self._begin(CheckedDocument(uri))
        digester = await asyncio.to_thread(_digested, content, reference.hash)
        checked.add(compare(reference, digester, "the package", None))
        return await self._package(content.path, uri, uri)

    def _begin(self, checked: CheckedDocument) -> CheckedDocument:
        self._checked[checked.name] = checked
        self._result.documents.append(checked)
        self._progress(checked.name)
        return checked

    async def _get(self, uri: str) -> tuple[Outline, CheckedDocument]:
        async with self._sessions.get(uri, {"Accept-Encoding": "gzip"}) as response:
            check_status(uri, response)
            return await self._read(uri, inflated_if_gzip(body(uri, response)))

    async def _read(
        self, name: str, chunks: AsyncIterator[bytes]
    ) -> tuple[Outline, CheckedDocument]:
        validator = Validator(self._spec)
        checked = CheckedDocument(name)
        begun = False
        try:
            async for chunk in chunks:
                if not begun and chunk.startswith(_ZIP):
                    raise PackageReceived
                begun = True
                checked.add(validator.feed(chunk))
                await asyncio.sleep(0)
        except (zlib.error, ContentMismatch) as error:
            detail = f"its compression is damaged: {error}"
            checked.add([make_finding("not-well-formed", None, "document", detail)])
        else:
            checked.add(validator.close())
        outline = validator.outline
        checked.capability, checked.entries = outline.capability, outline.entries
        return outline, checked

    async def _package(self, path: Path, name: str, uri: str) -> TreePosition:
        try:
            package = await asyncio.to_thread(ZipPackage, path, name)
        except MalformedDocument as error:
            return self._unusable(uri, name, "package-format", error.reason)
        check = PackageChecker(package, self._spec)
        try:
            if not check.has_manifest:
                return self._unusable(uri, name, "package-manifest-missing")
            outline, found = await asyncio.to_thread(check.manifest)
            manifest = self._begin(CheckedDocument(f"{name}!{MANIFEST}"))
            manifest.capability, manifest.entries = outline.capability, outline.entries
            manifest.add(found)
            for finding in await asyncio.to_thread(list, check.bitstreams(outline)):
                (manifest if finding.line else self._checked[name]).add([finding])
        except ContentMismatch as error:
            return self._unusable(uri, name, "package-unsafe", error.reason)
        finally:
            await asyncio.to_thread(package.close)
        return _placed(uri, manifest.name, outline)

    def _unusable(self, uri: str, name: str, rule: str, detail: str = "") -> TreePosition:
        self._checked[name].add([make_finding(rule, None, "package", detail)])
        return TreePosition(uri, name, Outline())


def _placed(uri: str, name: str, outline: Outline) -> TreePosition:
    """Return the position of a document, without the bitstreams of a manifest (checked before)."""
    if outline.kind is not None and outline.kind.is_manifest:
        outline.references.clear()
    return TreePosition(uri, name, outline)


def _digested(content: Content, announced: str | None) -> Digester:
    content.write()
    digester = Digester(announced)
    with content.path.open("rb") as file:
        while piece := file.read(_PIECE):
            digester.update(piece)
    return digester


def _linked(path: Path, folder: Path) -> Path:
    """Return a link to a file, as closing a package removes its file."""
    link = folder / "package"
    link.symlink_to(path.resolve())
    return link


async def _pieces(path: Path) -> AsyncIterator[bytes]:
    with path.open("rb") as file:
        while piece := file.read(_PIECE):
            yield piece
