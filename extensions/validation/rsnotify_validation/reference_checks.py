"""Checks the references between documents (core §6), without I/O.

The caller fetches the documents, and passes the outlines of a document and of another one that it
leads to. The functions return findings, each with the name of the document at fault.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

from msgspec import Struct
from msgspec.structs import replace

from rsnotify.format.links import resolve
from rsnotify.format.model import Capability, Rel
from rsnotify_validation.document_outline import Outline, Reference
from rsnotify_validation.entries import read_strict_datetime
from rsnotify_validation.findings import Finding
from rsnotify_validation.kinds import TOPICS, Kind
from rsnotify_validation.rules import make_finding

_ABOVE = frozenset({Capability.DESCRIPTION, Capability.CAPABILITY_LIST})
#: Kinds for which core §12.2 (and §13.1 by analogy) specifies whether entries have `until`.
_UNTIL_IS_SPECIFIED = frozenset({"changelist-index", "changedump-index"})


class TreePosition(Struct, frozen=True):
    """A validated document in the tree of documents.

    `uri` is the base URI of its references, or empty for a file. `name` identifies the document in
    findings.
    """

    uri: str
    name: str
    outline: Outline

    def finding(
        self, rule: str, line: int | None, element: str, detail: str = "", entry: int | None = None
    ) -> LocatedFinding:
        """Return a finding in this document."""
        return LocatedFinding(self.name, make_finding(rule, line, element, detail, entry))


class LocatedFinding(Struct, frozen=True):
    """A finding, and the name of the document at fault."""

    name: str
    finding: Finding


def references_below(place: TreePosition) -> Iterator[Reference]:
    """Yield the references to the documents and packages below a document.

    Each reference has the capability that the document below must have. Its URI is absolute if the
    parent document has a URI.
    """
    kind = place.outline.kind
    if kind is None:
        return
    if kind.documents or kind.packages:
        for reference in place.outline.references:
            capability = _expected_capability(kind, reference)
            if capability not in TOPICS:
                uri = resolve(place.uri, reference.uri)
                yield replace(reference, uri=uri, capability=capability)
    archives = place.outline.links.get(Rel.ARCHIVES)
    if archives is not None and not kind.is_archive:
        uri, line = resolve(place.uri, archives[0]), archives[1]
        yield Reference(uri, line, capability=f"{kind.capability}-archive")


def _expected_capability(kind: Kind, reference: Reference) -> str | None:
    if kind.packages:
        return f"{kind.capability}-manifest"
    if kind.index:
        return kind.capability
    if kind.is_archive:
        return kind.capability.removesuffix("-archive")
    if kind.capability == Capability.DESCRIPTION:
        stated = reference.capability
        return stated if stated in TOPICS else Capability.CAPABILITY_LIST
    return reference.capability


def lists(above: TreePosition, uri: str) -> bool:
    return any(resolve(above.uri, each.uri) == uri for each in above.outline.references)


def link_target(place: TreePosition, rel: str) -> str | None:
    """Return the target of a document's first link with a relation."""
    found = place.outline.links.get(rel)
    return None if found is None else resolve(place.uri, found[0])


def expected_up(parent: TreePosition) -> str | None:
    """Return the correct target of `up` in the documents below, or None if any target is allowed.

    Below an index, archive or dump, `up` must not lead to that document but, like its own `up`
    link, to the Capability List (core Examples 16 and 21).
    """
    return parent.uri or None if is_directly_above(parent) else link_target(parent, Rel.UP)


def is_directly_above(parent: TreePosition) -> bool:
    """Return whether the `up` links of the documents below must lead to this document."""
    kind = parent.outline.kind
    return kind is not None and kind.capability in _ABOVE and not kind.index


def is_index(place: TreePosition, part: TreePosition) -> bool:
    """Return whether a document is an index that lists the given part.

    A document may be listed in several indexes: the current index, and a copy in an archive.
    """
    kind = place.outline.kind
    same = place.outline.capability == part.outline.capability
    return kind is not None and kind.index and same and lists(place, part.uri)


def check_pair(
    parent: TreePosition, reference: Reference, child: TreePosition
) -> Iterator[LocatedFinding]:
    """Check a document against a document below it, except for the `up` and `index` links.

    `reference` comes from `references_below(parent)`. Below a dump, the child is a Manifest.
    """
    kind, outline = parent.outline.kind, child.outline
    expected = reference.capability
    if outline.capability is not None and expected not in (None, outline.capability):
        detail = f"{parent.name} states {expected}, the document {outline.capability}"
        yield child.finding("tree-capability", outline.line, "rs:md", detail)
        return
    if kind is None:
        return
    if kind.index and reference.capability == kind.capability:  # not its archive
        if outline.kind is not None and outline.kind.index:
            line, entry = reference.line, reference.entry
            yield parent.finding("tree-index-nested", line, "sitemap", child.name, entry)
        elif Rel.INDEX not in outline.links:
            yield child.finding("tree-index-missing", outline.line, "urlset")
    yield from _check_times(parent, reference, child)


def _check_times(
    parent: TreePosition, reference: Reference, child: TreePosition
) -> Iterator[LocatedFinding]:
    """Check the times in an entry against the times in the document (core §7, §12.2)."""
    times, actual = reference.times, child.outline.times
    if not times:
        return
    at_fault = partial(parent.finding, line=reference.line, element="rs:md", entry=reference.entry)
    kind = parent.outline.kind
    if kind is not None and kind.id in _UNTIL_IS_SPECIFIED:
        if "until" in actual and "until" not in times:
            detail = f"{child.name} has until {actual['until']}"
            yield at_fault("tree-until-missing", detail=detail)
        if "until" in times and "until" not in actual:
            yield at_fault("tree-until-early", detail=f"{child.name} has no until")
    for name, text in times.items():
        stated, own = read_strict_datetime(text), read_strict_datetime(actual.get(name))
        if stated and own and (stated.is_before(own) or own.is_before(stated)):
            detail = f"{name} is {text}, but {actual[name]} in {child.name}"
            yield at_fault("tree-times", detail=detail)


def check_copy(
    dump: TreePosition, reference: Reference, manifest: TreePosition, copy: TreePosition
) -> Iterator[LocatedFinding]:
    """Check that the Manifest at `contents` equals the one in the package (core §11.1)."""
    both_read = manifest.outline.kind is not None and copy.outline.kind is not None
    if both_read and manifest.outline.fingerprint != copy.outline.fingerprint:
        line, entry = reference.line, reference.entry
        yield dump.finding("tree-contents", line, "rs:ln", copy.name, entry)
