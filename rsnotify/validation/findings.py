"""What a validation finds: rules, and the places where they are broken."""

from __future__ import annotations

from enum import StrEnum

from msgspec import Struct


class Severity(StrEnum):
    """How much a broken rule weighs: a MUST, or a SHOULD."""

    ERROR = "error"
    WARNING = "warning"


class Rule(Struct, frozen=True):
    """One rule of the specifications.

    Args:
        id: A stable name, by which programs know the rule.
        section: Where it is written, such as `core §12.1`.
        severity: What breaking it means.
        sentence: What is wrong where it is broken, and what to do.
    """

    id: str
    section: str
    severity: Severity
    sentence: str


def must(id: str, section: str, sentence: str) -> Rule:
    """Write a rule whose breaking is an error."""
    return Rule(id, section, Severity.ERROR, sentence)


def should(id: str, section: str, sentence: str) -> Rule:
    """Write a rule whose breaking is a warning."""
    return Rule(id, section, Severity.WARNING, sentence)


class Finding(Struct, frozen=True, omit_defaults=True):
    """A rule that a document breaks.

    Args:
        rule: The `id` of the rule.
        section: Where the rule is written.
        severity: What breaking it means.
        line: The line at which the element at fault begins; None if there is none.
        element: The element at fault, such as `rs:md`.
        message: What is wrong and what to do, as a sentence.
        entry: The 1-based position of the `url` or `sitemap` at fault, if one is.
    """

    rule: str
    section: str
    severity: Severity
    line: int | None
    element: str
    message: str
    entry: int | None = None

    @property
    def is_error(self) -> bool:
        """Whether the document is not valid for it."""
        return self.severity is Severity.ERROR
