"""The result of a validation: the documents that were checked, and the findings in each."""

from __future__ import annotations

from collections.abc import Iterable

from msgspec import Struct

from rsnotify.validation import RULES, Finding, Severity

#: The most findings of one rule that are kept for one document; the others are counted.
_MOST_PLACES = 100


class CheckedDocument(Struct):
    """The findings in one document or package.

    Args:
        name: The file or URI; for the manifest of a package, that of the package with
            `!manifest.xml`.
        capability: Its capability.
        entries: The number of its entries.
        findings: The findings.
        more: How many times a rule is broken beside those in `findings`, by rule.
    """

    name: str
    capability: str | None = None
    entries: int = 0
    findings: list[Finding] = []
    more: dict[str, int] = {}

    def add(self, findings: Iterable[Finding]) -> None:
        """Add findings, in bounded memory."""
        for finding in findings:
            if finding in self.findings[-_MOST_PLACES:]:
                continue  # two documents lead here, with the same finding
            places = sum(one.rule == finding.rule for one in self.findings)
            if places < _MOST_PLACES:
                self.findings.append(finding)
            else:
                self.more[finding.rule] = self.more.get(finding.rule, 0) + 1

    def count(self, severity: Severity) -> int:
        shown = sum(finding.severity is severity for finding in self.findings)
        more = sum(n for rule, n in self.more.items() if RULES[rule].severity is severity)
        return shown + more


class ValidationResult(Struct):
    """The result of a validation, with each document that was checked, in order."""

    target: str
    spec: str
    documents: list[CheckedDocument] = []

    def count(self, severity: Severity) -> int:
        return sum(document.count(severity) for document in self.documents)

    @property
    def valid(self) -> bool:
        return self.count(Severity.ERROR) == 0
