"""Checking a ZIP package of a dump against its Manifest (core §11.2, §13.2)."""

from __future__ import annotations

from collections.abc import Iterator

from rsnotify.errors import ContentMismatch
from rsnotify.format.writer import Profile
from rsnotify.validation import Finding, Validator
from rsnotify.validation.outline import Outline, Reference
from rsnotify.validation.rules import broken
from rsnotify_subscriber.content.zip_package import MANIFEST, ZipPackage
from rsnotify_subscriber.fetching.digests import Digester, agree

#: Bytes that members inflate to, beyond which they are not compared any more.
_MOST_INFLATED = 16 * 2**30


class PackageChecker:
    """Checks one open package; its methods block on the disk.

    Args:
        package: The package.
        spec: The version of the specification to hold its Manifest against.
    """

    def __init__(self, package: ZipPackage, spec: Profile) -> None:
        self._package = package
        self._spec = spec
        self._inflated = 0

    def manifest(self) -> tuple[Outline, list[Finding]]:
        """Validate the Manifest.

        Returns:
            What it says, and what is wrong with it.

        Raises:
            ContentMismatch: It cannot be unpacked.
        """
        validator = Validator(self._spec)
        found: list[Finding] = []
        for piece in self._package.pieces(MANIFEST):
            found += validator.feed(piece)
        found += validator.close()
        return validator.outline, found

    @property
    def has_manifest(self) -> bool:
        """Whether there is a Manifest at the top level."""
        return MANIFEST in self._package.names

    def bitstreams(self, manifest: Outline) -> Iterator[Finding]:
        """Compare each bitstream with what the Manifest says of it.

        Yields:
            What is wrong, with the line of the Manifest where there is one.
        """
        present = set(self._package.names) - {MANIFEST}
        described = set()
        for reference in manifest.references:
            name = (reference.path or "").removeprefix("/")
            described.add(name)
            if name in present:
                yield from self._bitstream(reference)
            else:
                detail = f"path is {reference.path!r}"
                yield broken(
                    "package-path-missing", reference.line, "rs:md", detail, reference.entry
                )
        for name in sorted(present - described):
            yield broken("package-not-described", None, "package", repr(name))

    def _bitstream(self, reference: Reference) -> Iterator[Finding]:
        if self._inflated > _MOST_INFLATED:
            return
        digester = Digester(reference.hash)
        try:
            for piece in self._package.pieces(reference.path or ""):
                digester.update(piece)
                self._inflated += len(piece)
        except ContentMismatch as error:
            yield broken("package-unsafe", reference.line, "rs:md", error.reason, reference.entry)
            return
        yield from compare(reference, digester, f"path {reference.path!r}", reference.line)


def compare(told: Reference, content: Digester, what: str, line: int | None) -> Iterator[Finding]:
    """Compare content with the hash and length that are told of it.

    Args:
        told: The entry.
        content: The digests of the content.
        what: What the content is, for the message.
        line: The line of the entry, if the finding belongs there.
    """
    if agree(told.hash, content.hashes) is False:
        detail = f"{what} has hash {content.hashes}, not {told.hash}"
        yield broken("package-content", line, "rs:md", detail, told.entry)
    elif told.length is not None and told.length != str(content.length):
        detail = f"{what} has {content.length} bytes, not {told.length}"
        yield broken("package-content", line, "rs:md", detail, told.entry)
