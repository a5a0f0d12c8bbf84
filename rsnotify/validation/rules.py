"""All rules of the validator, by `id`.

The rules on what a kind of document must or should have are derived from the table of kinds; the
others are written out. docs/validation.md shows them all.
"""

from __future__ import annotations

from collections.abc import Iterator

from rsnotify.validation.document_rules import DOCUMENT_RULES
from rsnotify.validation.findings import Finding, Rule, Severity
from rsnotify.validation.kinds import KINDS, Kind
from rsnotify.validation.tree_rules import TREE_RULES
from rsnotify.validation.value_rules import VALUE_RULES

#: The parts of a document that a kind may require, and what to add where one is missing.
_DOCUMENT_PARTS = {
    "at": ("at in its rs:md", "the datetime at which the snapshot began"),
    "from": ("from in its rs:md", "the datetime since which it has every change"),
    "up": ("an rs:ln with rel up", "the URI of the document above it"),
    "describedby": ("an rs:ln with rel describedby", "a document that describes what this is"),
}
#: The same for an entry.
_ENTRY_PARTS = {
    "at": ("at in its rs:md", "when the snapshot began"),
    "capability": ("capability in its rs:md", "which kind of document loc leads to"),
    "change": ("change in its rs:md", "one of created, updated, deleted"),
    "describedby": ("an rs:ln with rel describedby", "a document that describes the set"),
    "from": ("from in its rs:md", "since when it has every change"),
    "lastmod": ("lastmod", "the datetime of the change, as version 1.0 requires"),
    "length": ("length in its rs:md", "the bytes of the package"),
    "path": ("path in its rs:md", "where the bitstream is in the package"),
    "type": ("type in its rs:md", "the Media Type"),
}


def _of_kind(kind: Kind) -> Iterator[Rule]:
    for verb, severity, parts, entry_parts in (
        ("must", Severity.ERROR, kind.required, kind.entry_required),
        ("should", Severity.WARNING, kind.recommended, kind.entry_recommended),
    ):
        for part in parts:
            what, add = _DOCUMENT_PARTS[part]
            sentence = f"{kind.name} {verb} have {what}; add {add}"
            yield Rule(f"{kind.id}-{part}-missing", kind.section, severity, sentence)
        for part in entry_parts:
            what, add = _ENTRY_PARTS[part]
            sentence = f"an entry of {kind.name} {verb} have {what}; add {add}"
            yield Rule(f"{kind.id}-entry-{part}-missing", kind.section, severity, sentence)
    if kind.ordered is not None:
        verb = "must" if kind.ordered is Severity.ERROR else "should"
        sentence = f"{kind.name} {verb} be in chronological order, the oldest first; sort it"
        yield Rule(f"{kind.id}-order", kind.section, kind.ordered, sentence)


#: Every rule, by its `id`.
RULES: dict[str, Rule] = {
    rule.id: rule
    for rule in (
        *DOCUMENT_RULES,
        *VALUE_RULES,
        *(rule for kind in KINDS for rule in _of_kind(kind)),
        *TREE_RULES,
    )
}


def make_finding(
    rule: str, line: int | None, element: str, detail: str = "", entry: int | None = None
) -> Finding:
    """Return a finding for a broken rule; `detail` says what the document has."""
    known = RULES[rule]
    message = f"{known.sentence} ({detail})" if detail else known.sentence
    return Finding(rule, known.section, known.severity, line, element, message, entry)
