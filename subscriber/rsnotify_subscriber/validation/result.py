"""The outcome of a validation: what was looked at, and what was found there."""

from __future__ import annotations

from collections.abc import Iterable

from msgspec import Struct

from rsnotify.validation import RULES, Finding, Severity

#: Places of one rule that are kept for one document; the others are counted.
_MOST_PLACES = 100


class CheckedDocument(Struct):
    """What was found in one document or package.

    Args:
        name: The file or URI; the Manifest of a package has the package's, with
            `!manifest.xml`.
        capability: What it calls itself.
        entries: How many entries it has.
        findings: What was found.
        more: How many times more a rule is broken than `findings` shows, by rule.
    """

    name: str
    capability: str | None = None
    entries: int = 0
    findings: list[Finding] = []
    more: dict[str, int] = {}

    def add(self, findings: Iterable[Finding]) -> None:
        """Note what was found, in bounded memory."""
        for finding in findings:
            if finding in self.findings[-_MOST_PLACES:]:
                continue  # two documents lead here, and both have found the same
            places = sum(one.rule == finding.rule for one in self.findings)
            if places < _MOST_PLACES:
                self.findings.append(finding)
            else:
                self.more[finding.rule] = self.more.get(finding.rule, 0) + 1

    def count(self, severity: Severity) -> int:
        """Count the errors, or the warnings."""
        shown = sum(finding.severity is severity for finding in self.findings)
        more = sum(n for rule, n in self.more.items() if RULES[rule].severity is severity)
        return shown + more


class ValidationResult(Struct):
    """The outcome of a validation.

    Args:
        target: What was validated.
        spec: The version of the specification it was held against.
        documents: Each document that was looked at, in the order of looking.
    """

    target: str
    spec: str
    documents: list[CheckedDocument] = []

    def count(self, severity: Severity) -> int:
        """Count the errors, or the warnings, in all documents."""
        return sum(document.count(severity) for document in self.documents)

    @property
    def valid(self) -> bool:
        """Whether no error was found."""
        return self.count(Severity.ERROR) == 0
