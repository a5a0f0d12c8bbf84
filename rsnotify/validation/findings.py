"""The findings of a validation: rules, and where a document breaks them."""

from __future__ import annotations

from enum import StrEnum

from msgspec import Struct


class Severity(StrEnum):
    """The severity of breaking a rule: an error for a MUST, a warning for a SHOULD."""

    ERROR = "error"
    WARNING = "warning"


class Rule(Struct, frozen=True):
    """One rule of the specifications.

    Args:
        id: A stable name, for programs.
        section: Its section in the specification, such as `core §12.1`.
        severity: The severity of breaking it.
        sentence: What is wrong when it is broken, and what to do.
    """

    id: str
    section: str
    severity: Severity
    sentence: str


class Finding(Struct, frozen=True, omit_defaults=True):
    """A rule that a document breaks.

    Args:
        rule: The `id` of the rule.
        section: The section of the rule in the specification.
        severity: The severity of breaking it.
        line: The line where the element at fault begins; None if there is none.
        element: The element at fault, such as `rs:md`.
        message: What is wrong and what to do, as a sentence.
        entry: The 1-based position of the `url` or `sitemap` at fault, if there is one.
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
        """Whether the finding makes the document invalid."""
        return self.severity is Severity.ERROR
