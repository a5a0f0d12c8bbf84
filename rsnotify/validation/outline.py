"""What a validated document says of other documents, kept for checks between them."""

from __future__ import annotations

from msgspec import Struct

from rsnotify.validation.elements import Entry
from rsnotify.validation.kinds import Kind

#: Of how many entries an outline keeps where they lead.
MOST_REFERENCES = 50_000
_TIMES = ("at", "completed", "from", "until")


class Reference(Struct, frozen=True):
    """An entry, or link, that names another document or a package.

    Args:
        uri: What it names.
        line: Its line.
        capability: Which kind of document it says that this is.
        times: `at`, `completed`, `from` and `until`, as far as it has them.
        contents: Where it says that the Manifest of a package is.
        hash: Fixity of a package.
        length: Bytes of a package.
    """

    uri: str
    line: int
    capability: str | None = None
    times: dict[str, str] = {}
    contents: str | None = None
    hash: str | None = None
    length: str | None = None


class Outline(Struct):
    """What remains of a document when its entries have gone by.

    Args:
        kind: Its kind; None if the specifications have none such.
        capability: What it says of itself.
        line: The line of its `rs:md`, or of the root.
        times: `at`, `completed`, `from` and `until`, as far as it has them.
        links: The target of the first link of each relation, with its line.
        references: Where its entries lead, if they lead to documents or packages.
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


def times_of(attributes: dict[str, str]) -> dict[str, str]:
    """Return the times among the attributes of an `rs:md`."""
    return {name: attributes[name] for name in _TIMES if name in attributes}


def reference_of(entry: Entry) -> Reference | None:
    """Return where an entry leads, if anywhere."""
    uri = entry.text("loc")
    if not uri:
        return None
    attributes = {} if entry.md is None else entry.md.attributes
    contents = (
        link.attributes.get("href")
        for link in entry.links
        if link.attributes.get("rel") == "contents"
    )
    return Reference(
        uri,
        entry.line,
        capability=attributes.get("capability"),
        times=times_of(attributes),
        contents=next(contents, None),
        hash=attributes.get("hash"),
        length=attributes.get("length"),
    )
