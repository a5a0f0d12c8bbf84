"""Checks of single entries, and of any `rs:md` and `rs:ln`."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from rsnotify.format.digest import AUDIT_NS, FORMS
from rsnotify.format.vocabulary import RS_NS, Capability, ChangeType, Rel
from rsnotify.format.writer import Profile
from rsnotify.validation.elements import Element, EntryElement
from rsnotify.validation.kinds import CAPABILITIES, DESCRIBED, NOT_OFFERED, TOPICS, Kind
from rsnotify.validation.outline import TIMES
from rsnotify.validation.strict_datetimes import read_strict_datetime
from rsnotify.validation.values import broken_by, shown

#: Called with a broken rule, the line, the element and a detail.
Report = Callable[..., None]

HEAD_ATTRIBUTES = frozenset({"capability", *TIMES})
ENTRY_ATTRIBUTES = HEAD_ATTRIBUTES | {
    "change", "datetime", "encoding", "hash", "length", "path", "type",
}  # fmt: skip
_OF_LINKED = ("encoding", "hash", "length", "modified", "path", "type", "pri")
LINK_ATTRIBUTES = frozenset({"rel", "href", *_OF_LINKED})
#: Kinds whose entries state the kind of document they lead to.
_OF_ANY_KIND = frozenset({Capability.CAPABILITY_LIST, Capability.FRAMEWORK_NOTIFICATION})
#: Attributes that a mirror has in common with the resource (core §14.2).
_OF_CONTENT = ("encoding", "hash", "length", "type")


def check_attributes(element: Element, name: str, known: frozenset[str], report: Report) -> None:
    """Check that the attributes of an element are known, and the syntax of each (core §7)."""
    for attribute, value in element.attributes.items():
        namespace, _, local = attribute.rpartition(" ")
        if namespace == RS_NS:
            report("attribute-prefixed", element.line, name, local)
        elif not namespace and local not in known:
            report("attribute-unknown", element.line, name, local)
        elif not namespace:
            for rule in broken_by(local, value.strip() if local != "path" else value):
                report(rule, element.line, name, shown(local, value))


def check_audit(md: Element, report: Report) -> None:
    """Check the audit attributes in the `rs:md` of a document (docs/audit.md)."""
    values = {name: md.attributes.get(f"{AUDIT_NS} {name}") for name in FORMS}
    missing = [name for name, value in values.items() if value is None]
    if len(missing) == len(values):
        return
    if missing:
        report("audit-incomplete", md.line, "rs:md", ", ".join(missing))
    for name, value in values.items():
        if value is not None and FORMS[name].fullmatch(value) is None:
            report("audit-value", md.line, "rs:md", shown(name, value))
    if "until" not in md.attributes:
        report("audit-until-missing", md.line, "rs:md")


def check_order_of_times(element: Element, report: Report) -> None:
    """Check that a snapshot or interval does not end before it begins (core §7)."""
    at, completed, from_, until = (
        read_strict_datetime(element.attributes.get(name)) for name in TIMES
    )
    if at and completed and completed.is_before(at):
        report("completed-before-at", element.line, "rs:md")
    if from_ and until and until.is_before(from_):
        report("until-before-from", element.line, "rs:md")


def check_link(link: Element, report: Report) -> None:
    """Check the rules for every `rs:ln` (core §7)."""
    check_attributes(link, "rs:ln", LINK_ATTRIBUTES, report)
    for name in ("href", "rel"):
        if name not in link.attributes:
            report(f"link-{name}-missing", link.line, "rs:ln")


class EntryCheck:
    """Checks the entries of one document, each by itself.

    The kind is None for a document that core and Archives do not describe.
    """

    def __init__(self, kind: Kind | None, spec: Profile, report: Report) -> None:
        self._kind = kind
        self._is_1_0 = spec is Profile.V1_0
        self._report = report

    def check(self, entry: EntryElement) -> None:
        self._texts(entry)
        if entry.md is not None:
            check_attributes(entry.md, "rs:md", ENTRY_ATTRIBUTES, self._report)
            check_order_of_times(entry.md, self._report)
        for link in entry.links:
            check_link(link, self._report)
            self._relation(entry, link)
        self._link_counts(entry)
        if self._kind is not None:
            self._parts(self._kind, entry)
            self._allowed(self._kind, entry)
            self._capability(self._kind, entry)

    def _texts(self, entry: EntryElement) -> None:
        if not entry.text("loc"):
            self._report("loc-missing", entry.line, entry.name)
        for name, (text, line) in entry.texts.items():
            for rule in broken_by(name, text) if text or name != "loc" else ():
                self._report(rule, line, name, shown(name, text))

    def _parts(self, kind: Kind, entry: EntryElement) -> None:
        """Check that the entry has the parts that its kind requires or recommends."""
        deleted = entry.attribute("change") == ChangeType.DELETED
        for part in kind.entry_required + kind.entry_recommended:
            if part == "lastmod":
                missing = self._is_1_0 and part not in entry.texts
            elif part == "describedby" and entry.attribute("capability") in TOPICS:
                missing = False
            elif part == "describedby":
                missing = not any(link.attributes.get("rel") == part for link in entry.links)
            elif deleted and part in ("path", "type"):
                missing = False  # a deleted resource has no bitstream (core §13.2)
            else:
                missing = entry.attribute(part) is None
            if missing:
                line = entry.line if part in ("lastmod", "describedby") else entry.md_line
                self._report(f"{kind.id}-entry-{part}-missing", line, entry.name)

    def _allowed(self, kind: Kind, entry: EntryElement) -> None:
        """Check that the entry has no attributes of other kinds (core §7, Appendix A)."""
        if entry.md is None:
            return
        attributes = entry.md.attributes
        refuse = partial(self._refuse, entry.md, "rs:md")
        if "at" not in kind.entry_time:
            refuse("entry-at-not-allowed", "at", "completed")
        elif "at" not in attributes:
            refuse("completed-without-at", "completed")
        if "from" not in kind.entry_time:
            refuse("entry-from-not-allowed", "from", "until")
        elif "from" not in attributes:
            refuse("until-without-from", "until")
        if self._is_1_0:
            refuse("datetime-not-in-1.0", "datetime")
        elif not kind.changes:
            refuse("datetime-not-allowed", "datetime")
        if not kind.changes:
            refuse("change-not-used", "change")
        if not kind.is_manifest:
            refuse("path-not-allowed", "path")

    def _refuse(self, element: Element, name: str, rule: str, *attributes: str) -> None:
        found = [attribute for attribute in attributes if attribute in element.attributes]
        if found:
            self._report(rule, element.line, name, ", ".join(found))

    def _capability(self, kind: Kind, entry: EntryElement) -> None:
        """Check the kind of document that the entry states (core §8, §9)."""
        if entry.md is None:
            return
        capability = entry.attribute("capability")
        line = entry.md.line
        if kind.id == Capability.DESCRIPTION:
            if capability not in DESCRIBED:
                self._report("description-capability", line, "rs:md")
        elif capability is None:
            return
        elif kind.id not in _OF_ANY_KIND:
            self._report("entry-capability-not-used", line, "rs:md")
        elif capability not in CAPABILITIES:
            self._report("capability-unknown", line, "rs:md", shown("it", capability))
        elif kind.id == Capability.CAPABILITY_LIST and capability in NOT_OFFERED:
            self._report("capability-not-offered", line, "rs:md", capability)

    def _relation(self, entry: EntryElement, link: Element) -> None:
        """Check the rules for single relations (core §14)."""
        relation = link.attributes.get("rel")
        if relation == Rel.DUPLICATE:
            self._refuse(link, "rs:ln", "duplicate-attributes", *_OF_CONTENT)
        elif relation == Rel.ALTERNATE:
            if "type" not in link.attributes:
                self._report("alternate-type-missing", link.line, "rs:ln")
        elif relation == Rel.TIMEGATE:
            self._refuse(link, "rs:ln", "timegate-attributes", *_OF_LINKED)
        elif relation == Rel.PATCH:
            self._patch(entry, link)

    def _patch(self, entry: EntryElement, link: Element) -> None:
        if "type" not in link.attributes:
            self._report("patch-type-missing", link.line, "rs:ln")
        if self._kind is None:
            return
        if not self._kind.changes:
            self._report("patch-not-allowed", link.line, "rs:ln")
        elif self._kind.is_manifest and "path" not in link.attributes:
            self._report("patch-path-missing", link.line, "rs:ln")

    def _link_counts(self, entry: EntryElement) -> None:
        relations = [link.attributes.get("rel") for link in entry.links]
        for relation in (Rel.MEMENTO, Rel.VIA):
            if relations.count(relation) > 1:
                self._report(f"{relation}-repeated", entry.line, entry.name)
        if self._is_1_0 and "lastmod" not in entry.texts:
            # If the kind itself requires lastmod, that was reported already.
            required = self._kind is not None and "lastmod" in self._kind.entry_required
            if not required and {Rel.MEMENTO, Rel.TIMEGATE, Rel.TIMEMAP} & set(relations):
                self._report("memento-lastmod-missing", entry.line, entry.name)
