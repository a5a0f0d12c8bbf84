"""Checks across the entries of a document: their order, times and repetitions."""

from __future__ import annotations

from rsnotify.format.uris import normalize
from rsnotify.format.vocabulary import MAX_ENTRIES, Capability
from rsnotify.format.writer import Profile
from rsnotify.validation.elements import Element, EntryElement
from rsnotify.validation.entries import Report
from rsnotify.validation.kinds import Kind
from rsnotify.validation.strict_datetimes import StrictDatetime, read_strict_datetime

#: The kinds of document of which each entry is a resource.
_RESOURCES = frozenset({Capability.RESOURCE_LIST, Capability.RESOURCE_DUMP_MANIFEST})


class SequenceCheck:
    """Checks the entries of one document, in document order."""

    def __init__(self, kind: Kind, spec: Profile, head: Element, report: Report) -> None:
        self._kind = kind
        self._is_1_0 = spec is Profile.V1_0
        self._report = report
        self._at = read_strict_datetime(head.attributes.get("at"))
        self._from = read_strict_datetime(head.attributes.get("from"))
        self._until = read_strict_datetime(head.attributes.get("until"))
        self._latest: StrictDatetime | None = None
        self._previous_until: StrictDatetime | None = None
        self._uris_of_latest: set[str] = set()
        self._capabilities: set[str] = set()
        #: By the normal form of its URI, how each resource is spelled.
        self._spellings: dict[str, str] = {}
        self._format: str | None = None

    def add(self, entry: EntryElement) -> None:
        if self._kind.changes:
            self._change(entry)
        elif self._kind.id in _RESOURCES:
            self._spelling(entry)
        elif self._kind.entry_time == "from":
            self._interval(entry)
        elif self._kind.entry_time == "at":
            self._snapshot(entry)
        if self._kind.packages:
            self._package(entry)
        if self._kind.id == Capability.CAPABILITY_LIST:
            self._capability(entry)

    def _change(self, entry: EntryElement) -> None:
        """Check the datetime of a change (core §12.1; 1.1 §7).

        In 1.0 that is `lastmod`. In 1.1 it is `datetime`; `lastmod` may then be anything, and
        without `datetime` only the position in the list counts.
        """
        name = "lastmod" if self._is_1_0 else "datetime"
        text = entry.text(name) if self._is_1_0 else entry.attribute(name)
        moment = read_strict_datetime(text)
        if moment is None:
            return
        line = entry.texts[name].line if self._is_1_0 else entry.md_line
        element = name if self._is_1_0 else "rs:md"
        if self._is_outside(moment, moment):
            self._report(f"{name}-outside", line, element, text)
        self._in_order(moment, line, element, text or "")
        if self._is_1_0:
            self._unique(entry, moment, line)

    def _in_order(self, moment: StrictDatetime, line: int, element: str, text: str) -> None:
        if self._latest is not None and moment.is_before(self._latest):
            if self._kind.ordered is not None:
                self._report(f"{self._kind.id}-order", line, element, text)
        elif self._latest is None or moment != self._latest:
            self._latest = moment
            self._uris_of_latest.clear()

    def _unique(self, entry: EntryElement, moment: StrictDatetime, line: int) -> None:
        uri = entry.text("loc")
        if moment != self._latest or uri is None or len(self._uris_of_latest) > MAX_ENTRIES:
            return
        if uri in self._uris_of_latest:
            self._report("change-not-unique", line, "lastmod", uri)
        self._uris_of_latest.add(uri)

    def _spelling(self, entry: EntryElement) -> None:
        uri = entry.text("loc")
        if uri is None or len(self._spellings) > MAX_ENTRIES:
            return
        first = self._spellings.setdefault(normalize(uri), uri)
        if first != uri:
            self._report("resource-repeated", entry.texts["loc"].line, "loc", f"{first}, {uri}")

    def _is_outside(self, first: StrictDatetime | None, last: StrictDatetime | None) -> bool:
        early = first is not None and self._from is not None and first.is_before(self._from)
        late = last is not None and self._until is not None and self._until.is_before(last)
        return early or late

    def _interval(self, entry: EntryElement) -> None:
        from_ = read_strict_datetime(entry.attribute("from"))
        until = read_strict_datetime(entry.attribute("until"))
        line = entry.md_line
        if self._is_outside(from_, until):
            self._report("entry-interval-outside", line, "rs:md")
        if from_ is None:
            return
        before = self._latest
        self._in_order(from_, line, "rs:md", entry.attribute("from") or "")
        in_order = before is not None and not from_.is_before(before)
        if in_order and self._previous_until is not None and from_.is_before(self._previous_until):
            self._report("entry-interval-overlap", line, "rs:md")
        self._previous_until = until

    def _snapshot(self, entry: EntryElement) -> None:
        at = read_strict_datetime(entry.attribute("at"))
        if at is not None and self._at is not None and at.is_before(self._at):
            self._report("entry-at-early", entry.md_line, "rs:md")

    def _package(self, entry: EntryElement) -> None:
        format_ = entry.attribute("type")
        if format_ is None:
            return
        if self._format is not None and format_ != self._format:
            self._report("packages-mixed", entry.md_line, "rs:md", f"{self._format}, {format_}")
        self._format = self._format or format_

    def _capability(self, entry: EntryElement) -> None:
        capability = entry.attribute("capability")
        if capability is None:
            return
        if capability in self._capabilities:
            self._report("capability-repeated", entry.md_line, "rs:md", capability)
        self._capabilities.add(capability)
