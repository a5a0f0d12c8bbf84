"""Checks documents, and compares ZIP packages of dumps with their manifests (core §11.2, §13.2).

Content is streamed through the validator. The result contains all checked documents, with the
findings in each.
"""

from __future__ import annotations

import asyncio
import zlib
from collections.abc import AsyncIterator, Callable, Iterable, Iterator
from functools import partial
from itertools import chain
from pathlib import Path

from msgspec import Struct

from rsnotify.errors import (
    ContentMismatch,
    FetchError,
    MalformedDocument,
    RsnotifyError,
    WrongDocument,
)
from rsnotify.format.hashes import Digester, agree
from rsnotify.format.model import Resource
from rsnotify.format.writer import Profile
from rsnotify_subscriber.content.packages import MANIFEST, ZipPackage
from rsnotify_subscriber.fetching.fetcher import Content, Fetcher
from rsnotify_subscriber.fetching.responses import body, check_status, inflated_if_gzip
from rsnotify_subscriber.fetching.sessions import Sessions
from rsnotify_validation import RULES, Finding, Severity, Validator
from rsnotify_validation.outline import Outline, Reference
from rsnotify_validation.rules import make_finding
from rsnotify_validation.tree import LocatedFinding, TreePosition

#: Number of inflated bytes of members after which no further members are compared.
_MOST_INFLATED = 16 * 2**30


def bitstream_findings(package: ZipPackage, manifest: Outline) -> Iterator[Finding]:
    """Compare each bitstream of a package with its entry in the manifest.

    This reads from the disk.
    """
    present = set(package.names) - {MANIFEST}
    described = set()
    inflated = 0
    for reference in manifest.references:
        name = (reference.path or "").removeprefix("/")
        described.add(name)
        finding = partial(make_finding, line=reference.line, element="rs:md", entry=reference.entry)
        if name not in present:
            yield finding("package-path-missing", detail=f"path is {reference.path!r}")
        elif inflated <= _MOST_INFLATED:
            digester = Digester(reference.hash)
            try:
                for piece in package.pieces(reference.path or ""):
                    digester.update(piece)
            except ContentMismatch as error:
                yield finding("package-unsafe", detail=error.reason)
            else:
                yield from compare(reference, digester, f"path {reference.path!r}", reference.line)
            inflated += digester.length
    for name in sorted(present - described):
        yield make_finding("package-not-described", None, "package", repr(name))


def compare(entry: Reference, content: Digester, what: str, line: int | None) -> Iterator[Finding]:
    """Compare content with its entry, and yield a finding if they differ.

    `line` is the line of the entry, or None if the finding does not belong there.
    """
    if agree(entry.hash, content.hashes) is False:
        detail = f"{what} has hash {content.hashes}, not {entry.hash}"
        yield make_finding("package-content", line, "rs:md", detail, entry.entry)
    elif entry.length is not None and entry.length != str(content.length):
        detail = f"{what} has {content.length} bytes, not {entry.length}"
        yield make_finding("package-content", line, "rs:md", detail, entry.entry)


#: Maximum number of findings of one rule that are kept for one document. Others are only counted.
_MOST_PLACES = 100


class CheckedDocument(Struct):
    """The findings in one document or package.

    Args:
        name: The file name or URI of the document. For the manifest of a package, it is the
            package's name followed by `!manifest.xml`.
        capability: The capability that the document states.
        entries: The number of the document's entries.
        findings: The findings, up to a limit for each rule.
        more: For each rule, the number of further findings, which are not in `findings`.
    """

    name: str
    capability: str | None = None
    entries: int = 0
    findings: list[Finding] = []
    more: dict[str, int] = {}

    def add(self, findings: Iterable[Finding]) -> None:
        """Add findings, keeping a limited number of them for each rule."""
        for finding in findings:
            if finding in self.findings[-_MOST_PLACES:]:
                continue  # two documents lead to this one and result in the same finding
            places = sum(one.rule == finding.rule for one in self.findings)
            if places < _MOST_PLACES:
                self.findings.append(finding)
            else:
                self.more[finding.rule] = self.more.get(finding.rule, 0) + 1

    def count(self, severity: Severity) -> int:
        shown = sum(finding.severity is severity for finding in self.findings)
        more = sum(n for rule, n in self.more.items() if RULES[rule].severity is severity)
        return shown + more


class ValidationResult(Struct):
    """The result of a validation, with the checked documents in the order of checking."""

    target: str
    spec: str
    documents: list[CheckedDocument] = []
    #: The URI of the validated document, if `target` is not a document itself but leads to it.
    found: str | None = None

    def count(self, severity: Severity) -> int:
        return sum(document.count(severity) for document in self.documents)

    @property
    def valid(self) -> bool:
        return self.count(Severity.ERROR) == 0


#: Maximum size of a package in bytes.
_MOST_PACKAGE_BYTES = 4 * 2**30
_PIECE = 131_072
_ZIP = b"PK\x03\x04"
#: The media types that servers use for documents.
_DOCUMENT_TYPES = frozenset(
    {"application/xml", "text/xml", "text/plain", "application/octet-stream", "application/gzip"}
)


class PackageReceived(RsnotifyError):
    """Raised when a ZIP file is received in place of a document."""


class DocumentChecker:
    """Checks the documents and packages of one validation, and adds findings to its result."""

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
        """Add findings about documents that were already checked."""
        for located in found:
            self._checked[located.name].add([located.finding])

    async def file(self, path: Path) -> TreePosition:
        """Check a file, which is a document or a package.

        Raises:
            OSError: The file cannot be read.
        """
        name = str(path)
        with path.open("rb") as file:
            is_package = file.read(len(_ZIP)) == _ZIP
        if not is_package:
            outline, checked = await self._read(name, inflated_if_gzip(_pieces(path)))
            self._begin(checked)
            return _placed("", name, outline)
        self._begin(CheckedDocument(name))
        return await self._package(_linked(path, self._folder), name, "")

    async def fetch(self, uri: str, *, may_be_page: bool = False) -> TreePosition:
        """Fetch and check a document or package.

        Raises:
            FetchError: The document or package cannot be fetched.
            WrongDocument: `may_be_page` is set, and the type and content of the response show that
                it is a page or resource, not a document.
        """
        try:
            outline, checked, media_type = await self._get(uri)
        except PackageReceived:
            return await self.fetch_package(Reference(uri, 1))
        if may_be_page and outline.kind is None and media_type not in _DOCUMENT_TYPES:
            raise WrongDocument(f"it is no ResourceSync document but {media_type}", source=uri)
        self._begin(checked)
        return _placed(uri, uri, outline)

    async def peek(self, uri: str) -> TreePosition | None:
        """Fetch and read a document without adding findings about it. Return None on failure."""
        try:
            outline, *_ = await self._get(uri)
        except (FetchError, PackageReceived):
            return None
        return TreePosition(uri, uri, outline)

    async def fetch_package(self, reference: Reference) -> TreePosition:
        """Fetch a package, check it and its manifest, and return the manifest's position.

        Raises:
            FetchError: The package cannot be fetched.
        """
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

    async def _get(self, uri: str) -> tuple[Outline, CheckedDocument, str]:
        async with self._sessions.get(uri, {"Accept-Encoding": "gzip"}) as response:
            check_status(uri, response)
            outline, checked = await self._read(uri, inflated_if_gzip(body(uri, response)))
            return outline, checked, response.content_type

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
        try:
            if MANIFEST not in package.names:
                return self._unusable(uri, name, "package-manifest-missing")
            outline, found = await asyncio.to_thread(self._validated, package.pieces(MANIFEST))
            manifest = self._begin(CheckedDocument(f"{name}!{MANIFEST}"))
            manifest.capability, manifest.entries = outline.capability, outline.entries
            manifest.add(found)
            for finding in await asyncio.to_thread(list, bitstream_findings(package, outline)):
                (manifest if finding.line else self._checked[name]).add([finding])
        except ContentMismatch as error:
            return self._unusable(uri, name, "package-unsafe", error.reason)
        finally:
            await asyncio.to_thread(package.close)
        return _placed(uri, manifest.name, outline)

    def _validated(self, chunks: Iterable[bytes]) -> tuple[Outline, list[Finding]]:
        validator = Validator(self._spec)
        found = list(chain.from_iterable(map(validator.feed, chunks)))
        return validator.outline, found + validator.close()

    def _unusable(self, uri: str, name: str, rule: str, detail: str = "") -> TreePosition:
        self._checked[name].add([make_finding(rule, None, "package", detail)])
        return TreePosition(uri, name, Outline())


def _placed(uri: str, name: str, outline: Outline) -> TreePosition:
    """Return the position of a document.

    The references of a manifest are dropped, because its bitstreams have already been checked.
    """
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
    """Return a symbolic link to a file, because closing a package removes its file."""
    link = folder / "package"
    link.symlink_to(path.resolve())
    return link


async def _pieces(path: Path) -> AsyncIterator[bytes]:
    with path.open("rb") as file:
        while piece := file.read(_PIECE):
            yield piece
