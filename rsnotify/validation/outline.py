"""What a validated document says of other documents, kept for checks between them."""

from __future__ import annotations

from collections.abc import Iterator

from msgspec import Struct

from rsnotify.format.vocabulary import MAX_ENTRIES, Rel
from rsnotify.validation.elements import EntryElement
from rsnotify.validation.kinds import Kind

#: Of how many entries an outline keeps where they lead; nobody follows more.
_MOST_FOLLOWED = 2_000
_TIMES = ("at", "completed", "from", "until")


class Reference(Struct, frozen=True):
    """An entry, or link, that names another document or a package.

    Args:
        uri: What it names.
        line: Its line.
        entry: The position of the entry.
        capability: Which kind of document it says that this is.
        times: `at`, `completed`, `from` and `until`, as far as it has them.
        contents: Where it says that the Manifest of a package is.
        hash: Fixity of a package or bitstream.
        length: Bytes of a package or bitstream.
        path: Where a bitstream is in its package.
    """

    uri: str
    line: int
    entry: int | None = None
    capability: str | None = None
    times: dict[str, str] = {}
    contents: str | None = None
    hash: str | None = None
    length: str | None = None
    path: str | None = None


class Outline(Struct):
    """What remains of a document when its entries have gone by.

    Args:
        kind: Its kind; None if the specifications have none such.
        capability: What it says of itself.
        line: The line of its `rs:md`, or of the root.
        times: `at`, `completed`, `from` and `until`, as far as it has them.
        links: The target of the first link of each relation, with its line.
        references: Where its entries lead, if they lead to documents, packages or, in a
            Manifest, bitstreams. Only so many are kept.
        entries: How many entries it has.
        fingerprint: A digest of its entries; equal for two copies of one Manifest.
    """

    kind: Kind | None = None
    capability: str | None = None
    line: int = 1
    times: dict[str, str] = {}
    links: dict[str, tuple[str, int]] = {}
    references: list[Reference] = []
    entries: int = 0
    fingerprint: str = ""


def most_references(kind: Kind) -> int:
    """Return how many references an outline of this kind of document keeps."""
    return MAX_ENTRIES if kind.is_manifest else _MOST_FOLLOWED


def times_of(attributes: dict[str, str]) -> dict[str, str]:
    """Return the times among the attributes of an `rs:md`."""
    return {name: attributes[name] for name in _TIMES if name in attributes}


def references_of(entry: EntryElement, *, manifest: bool) -> Iterator[Reference]:
    """Yield where an entry leads.

    Args:
        entry: An entry of a document whose entries lead anywhere.
        manifest: Whether it describes a bitstream, and the patches to it (core §14.4).
    """
    uri = entry.text("loc")
    attributes = {} if entry.md is None else entry.md.attributes
    if not uri:
        return
    if manifest:
        for element in ({**attributes, "href": uri}, *(link.attributes for link in entry.links)):
            if "path" in element:
                yield _bitstream(element, entry)
        return
    contents = (
        link.attributes.get("href")
        for link in entry.links
        if link.attributes.get("rel") == Rel.CONTENTS
    )
    yield Reference(
        uri,
        entry.line,
        entry.number,
        capability=attributes.get("capability"),
        times=times_of(attributes),
        contents=next(contents, None),
        hash=attributes.get("hash"),
        length=attributes.get("length"),
    )


def _bitstream(attributes: dict[str, str], entry: EntryElement) -> Reference:
    return Reference(
        attributes.get("href", ""),
        entry.md_line,
        entry.number,
        hash=attributes.get("hash"),
        length=attributes.get("length"),
        path=attributes["path"],
    )
