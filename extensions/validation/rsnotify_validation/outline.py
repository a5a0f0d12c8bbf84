"""The references of a validated document to other documents, for checks between them."""

from __future__ import annotations

from collections.abc import Iterator

from msgspec import Struct

from rsnotify.format.model import MAX_ENTRIES, Rel
from rsnotify_validation.elements import EntryElement
from rsnotify_validation.kinds import Kind

#: How many references an outline keeps; the validator follows no more.
_MAX_REFERENCES = 2_000
TIMES = ("at", "completed", "from", "until")


class Reference(Struct, frozen=True):
    """An entry, or link, that leads to another document, a package or a bitstream.

    `entry` is the position of the entry, and `capability` the kind of document that it states.
    `contents` is the stated URI of a package's Manifest, and `path` where a bitstream is in its
    package; `hash` and `length` are of the package or bitstream.
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
    """The part of a document that is kept after its entries were checked.

    Args:
        kind: Its kind; None if the specifications do not define it.
        capability: Its stated capability.
        line: The line of its `rs:md`, or of the root.
        times: Those of `TIMES` that it has.
        links: The target of the first link of each relation, with its line.
        references: The first references, up to a limit.
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
    return MAX_ENTRIES if kind.is_manifest else _MAX_REFERENCES


def times_of(attributes: dict[str, str]) -> dict[str, str]:
    return {name: attributes[name] for name in TIMES if name in attributes}


def references_of(entry: EntryElement, *, manifest: bool) -> Iterator[Reference]:
    """Yield the references of an entry.

    In a Manifest they are a bitstream and the patches to it (core §14.4).
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
