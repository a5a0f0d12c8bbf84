"""Checks documents, and compares ZIP packages of dumps with their manifests (core §11.2, §13.2)."""

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
from rsnotify_validation.document_outline import Outline, Reference
from rsnotify_validation.reference_checks import LocatedFinding, TreePosition
from rsnotify_validation.rules import make_finding

#: No more members of a package are compared once this many bytes have been inflated.
_MAX_INFLATED_BYTES = 16 * 2**30


def bitstream_findings(package: ZipPackage, manifest: Outline) -> Iterator[Finding]:
    """Compare each bitstream of a package with its entry in the manifest. Blocks on disk I/O."""
    present = set(package.names) - {MANIFEST}
    described = set()
    inflated = 0
    for reference in manifest.references:
        name = (reference.path or "").removeprefix("/")
        described.add(name)
        finding = partial(make_finding, line=reference.line, element="rs:md", entry=reference.entry)
        if name not in present:
            yield finding("package-path-missing", detail=f"path is {reference.path!r}")
        elif inflated <= _MAX_INFLATED_BYTES:
            digester = Digester(reference.hash)
            try:
                for piece in package.pieces(reference.path or ""):
                    digester.update(piece)
            except ContentMismatch as error:
                yield finding("package-unsafe", detail=error.reason)
            else:
                what = f"path {reference.path!r}"
                yield from content_findings(reference, digester, what, reference.line)
            inflated += digester.length
    for name in sorted(present - described):
        yield make_finding("package-not-described", None, "package", repr(name))


def content_findings(
    entry: Reference, content: Digester, what: str, line: int | None
) -> Iterator[Finding]:
    """Compare content with its entry, and yield a finding if they differ.

    `line` is the line of the entry, or None if the entry is in another document.
    """
    if agree(entry.hash, content.hashes) is False:
        detail = f"{what} has hash {content.hashes}, not {entry.hash}"
        yield make_finding("package-content", line, "rs:md", detail, entry.entry)
    elif entry.length is not None and entry.length != str(content.length):
        detail = f"{what} has {content.length} bytes, not {entry.length}"
        yield make_finding("package-content", line, "rs:md", detail, entry.entry)


#: Maximum number of findings kept per rule and document. Further findings are only counted.
_MAX_PER_RULE = 100


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
            if finding in self.findings[-_MAX_PER_RULE:]:
                continue  # two documents that reference this one result in the same finding
            places = sum(one.rule == finding.rule for one in self.findings)
            if places < _MAX_PER_RULE:
                self.findings.append(finding)
            else:
                self.more[finding.rule] = self.more.get(finding.rule, 0) + 1

    def count(self, severity: Severity) -> int:
        shown = sum(finding.severity is severity for finding in self.findings)
        more = sum(n for rule, n in self.more.items() if RULES[rule].severity is severity)
        return shown + more


class ValidationResult(Struct):
    """The result of a validation.

    Args:
        documents: The checked documents, in the order of checking.
        found: The URI of the validated document, if `target` leads to it but is not a document.
    """

    target: str
    spec: str
    documents: list[CheckedDocument] = []
    found: str | None = None

    def count(self, severity: Severity) -> int:
        return sum(document.count(severity) for document in self.documents)

    @property
    def valid(self) -> bool:
        return self.count(Severity.ERROR) == 0


_MAX_PACKAGE_BYTES = 4 * 2**30
_CHUNK_BYTES = 131_072
_ZIP_SIGNATURE = b"PK\x03\x04"
#: Media types that servers use for documents.
_DOCUMENT_TYPES = frozenset(
    {"application/xml", "text/xml", "text/plain", "application/octet-stream", "application/gzip"}
)


class PackageReceived(RsnotifyError):
    """The response is a ZIP file, not a document."""


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

    def add_findings(self, found: Iterable[LocatedFinding]) -> None:
        """Add findings to documents that were already checked."""
        for located in found:
            self._checked[located.name].add([located.finding])

    async def file(self, path: Path) -> TreePosition:
        """Check a file, which is a document or a package.

        Raises:
            OSError: The file cannot be read.
        """
        name = str(path)
        with path.open("rb") as file:
            is_package = file.read(len(_ZIP_SIGNATURE)) == _ZIP_SIGNATURE
        if not is_package:
            outline, checked = await self._read(name, inflated_if_gzip(_chunks(path)))
            self._add_document(checked)
            return _position("", name, outline)
        self._add_document(CheckedDocument(name))
        return await self._package(_symlink(path, self._folder), name, "")

    async def fetch(self, uri: str, *, may_be_page: bool = False) -> TreePosition:
        """Fetch and check a document or package.

        Raises:
            FetchError: The document or package cannot be fetched.
            WrongDocument: `may_be_page` is set, and the response is a page or resource rather than
                a document.
        """
        try:
            outline, checked, media_type = await self._get(uri)
        except PackageReceived:
            return await self.fetch_package(Reference(uri, 1))
        if may_be_page and outline.kind is None and media_type not in _DOCUMENT_TYPES:
            raise WrongDocument(f"it is {media_type}, not a ResourceSync document", source=uri)
        self._add_document(checked)
        return _position(uri, uri, outline)

    async def peek(self, uri: str) -> TreePosition | None:
        """Fetch a document without adding findings about it. Return None on failure."""
        try:
            outline, *_ = await self._get(uri)
        except (FetchError, PackageReceived):
            return None
        return TreePosition(uri, uri, outline)

    async def fetch_package(self, reference: Reference) -> TreePosition:
        """Fetch a package, check it and its manifest, and return the position of the manifest.

        Raises:
            FetchError: The package cannot be fetched.
        """
        uri = reference.uri
        content = await self._fetcher.content(Resource(uri), most=_MAX_PACKAGE_BYTES)
        checked = self._add_document(CheckedDocument(uri))
        digester = await asyncio.to_thread(_digest, content, reference.hash)
        checked.add(content_findings(reference, digester, "the package", None))
        return await self._package(content.path, uri, uri)

    def _add_document(self, checked: CheckedDocument) -> CheckedDocument:
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
                if not begun and chunk.startswith(_ZIP_SIGNATURE):
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
            outline, found = await asyncio.to_thread(self._validate, package.pieces(MANIFEST))
            manifest = self._add_document(CheckedDocument(f"{name}!{MANIFEST}"))
            manifest.capability, manifest.entries = outline.capability, outline.entries
            manifest.add(found)
            for finding in await asyncio.to_thread(list, bitstream_findings(package, outline)):
                (manifest if finding.line else self._checked[name]).add([finding])
        except ContentMismatch as error:
            return self._unusable(uri, name, "package-unsafe", error.reason)
        finally:
            await asyncio.to_thread(package.close)
        return _position(uri, manifest.name, outline)

    def _validate(self, chunks: Iterable[bytes]) -> tuple[Outline, list[Finding]]:
        validator = Validator(self._spec)
        found = list(chain.from_iterable(map(validator.feed, chunks)))
        return validator.outline, found + validator.close()

    def _unusable(self, uri: str, name: str, rule: str, detail: str = "") -> TreePosition:
        self._checked[name].add([make_finding(rule, None, "package", detail)])
        return TreePosition(uri, name, Outline())


def _position(uri: str, name: str, outline: Outline) -> TreePosition:
    """Return the position of a document.

    A manifest's references are dropped, because its bitstreams have already been checked.
    """
    if outline.kind is not None and outline.kind.is_manifest:
        outline.references.clear()
    return TreePosition(uri, name, outline)


def _digest(content: Content, announced: str | None) -> Digester:
    content.write()
    digester = Digester(announced)
    with content.path.open("rb") as file:
        while chunk := file.read(_CHUNK_BYTES):
            digester.update(chunk)
    return digester


def _symlink(path: Path, folder: Path) -> Path:
    """Return a symbolic link to a file, because closing a package deletes its file."""
    link = folder / "package"
    link.symlink_to(path.resolve())
    return link


async def _chunks(path: Path) -> AsyncIterator[bytes]:
    with path.open("rb") as file:
        while chunk := file.read(_CHUNK_BYTES):
            yield chunk
