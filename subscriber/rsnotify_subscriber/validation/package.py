"""Checking a ZIP package of a dump against its manifest (core §11.2, §13.2)."""

from __future__ import annotations

from collections.abc import Iterator

from rsnotify.errors import ContentMismatch
from rsnotify.format.writer import Profile
from rsnotify.validation import Finding, Validator
from rsnotify.validation.outline import Outline, Reference
from rsnotify.validation.rules import make_finding
from rsnotify_subscriber.content.zip_package import MANIFEST, ZipPackage
from rsnotify_subscriber.fetching.digests import Digester, agree

#: The bytes of inflated members after which no further ones are compared.
_MOST_INFLATED = 16 * 2**30


class PackageChecker:
    """Checks one open package; its methods block on the disk."""

    def __init__(self, package: ZipPackage, spec: Profile) -> None:
        self._package = package
        self._spec = spec
        self._inflated = 0

    def manifest(self) -> tuple[Outline, list[Finding]]:
        """Validate the manifest; ContentMismatch if it cannot be unpacked."""
        validator = Validator(self._spec)
        found: list[Finding] = []
        for piece in self._package.pieces(MANIFEST):
            found += validator.feed(piece)
        found += validator.close()
        return validator.outline, found

    @property
    def has_manifest(self) -> bool:
        return MANIFEST in self._package.names

    def bitstreams(self, manifest: Outline) -> Iterator[Finding]:
        """Compare each bitstream with its entry in the manifest, and yield the findings."""
        present = set(self._package.names) - {MANIFEST}
        described = set()
        for reference in manifest.references:
            name = (reference.path or "").removeprefix("/")
            described.add(name)
            if name in present:
                yield from self._bitstream(reference)
            else:
                detail = f"path is {reference.path!r}"
                yield make_finding(
                    "package-path-missing", reference.line, "rs:md", detail, reference.entry
                )
        for name in sorted(present - described):
            yield make_finding("package-not-described", None, "package", repr(name))

    def _bitstream(self, reference: Reference) -> Iterator[Finding]:
        if self._inflated > _MOST_INFLATED:
            return
        digester = Digester(reference.hash)
        try:
            for piece in self._package.pieces(reference.path or ""):
                digester.update(piece)
                self._inflated += len(piece)
        except ContentMismatch as error:
            yield make_finding(
                "package-unsafe", reference.line, "rs:md", error.reason, reference.entry
            )
            return
        yield from compare(reference, digester, f"path {reference.path!r}", reference.line)


def compare(entry: Reference, content: Digester, what: str, line: int | None) -> Iterator[Finding]:
    """Compare content with its entry; `line` is that of the entry, if the finding belongs there."""
    if agree(entry.hash, content.hashes) is False:
        detail = f"{what} has hash {content.hashes}, not {entry.hash}"
        yield make_finding("package-content", line, "rs:md", detail, entry.entry)
    elif entry.length is not None and entry.length != str(content.length):
        detail = f"{what} has {content.length} bytes, not {entry.length}"
        yield make_finding("package-content", line, "rs:md", detail, entry.entry)
