"""The references of a validated document to other documents, for checks between documents."""

from __future__ import annotations

from collections.abc import Iterator

from msgspec import Struct

from rsnotify.format.model import Rel
from rsnotify_validation.elements import EntryElement
from rsnotify_validation.kinds import Kind

#: Maximum number of references that an outline keeps, unless it is the outline of a manifest. No
#: other references are followed.
MAX_REFERENCES = 2_000
TIMES = ("at", "completed", "from", "until")


class Reference(Struct, frozen=True):
    """An entry or link that leads to another document, a package or a bitstream.

    `line` and `entry` are for findings. `contents` is the URI of a package's Manifest, and `path`
    the path of a bitstream in its package.
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
    """The data about a document that is kept after its entries have been checked.

    Args:
        kind: The kind of the document, or None if the specifications do not define it.
        line: The line of the document's `rs:md`, or of its root if there is none.
        times: The times from `TIMES` that the document has.
        links: For each relation, the target and line of the first link.
        references: The first references, up to a limit.
        fingerprint: A digest of the entries, which is equal for two copies of a Manifest.
    """

    kind: Kind | None = None
    capability: str | None = None
    line: int = 1
    times: dict[str, str] = {}
    links: dict[str, tuple[str, int]] = {}
    references: list[Reference] = []
    entries: int = 0
    fingerprint: str = ""


def times_of(attributes: dict[str, str]) -> dict[str, str]:
    return {name: attributes[name] for name in TIMES if name in attributes}


def references_of(entry: EntryElement, *, manifest: bool) -> Iterator[Reference]:
    """Yield the references of an entry. In a Manifest, these are a bitstream and its patches."""
    uri = entry.text("loc")
    attributes = {} if entry.md is None else entry.md.attributes
    if not uri:
        return
    if manifest:
        for element in ({**attributes, "href": uri}, *(link.attributes for link in entry.links)):
            if "path" in element:
                yield Reference(
                    element.get("href", ""),
                    entry.md_line,
                    entry.number,
                    hash=element.get("hash"),
                    length=element.get("length"),
                    path=element["path"],
                )
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
