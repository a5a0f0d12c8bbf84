"""The rules that documents can break, and findings: the places where they break them."""

from __future__ import annotations

from enum import StrEnum

from msgspec import Struct


class Severity(StrEnum):
    """How severe it is to break a rule: an error for a MUST, a warning for a SHOULD."""

    ERROR = "error"
    WARNING = "warning"


class Rule(Struct, frozen=True):
    """One rule of the specifications.

    Args:
        id: A stable name that programs can rely on.
        section: The section of the specification that states the rule, such as `core §12.1`.
        severity: How severe it is to break the rule.
        sentence: What is wrong if the rule is broken, and what to do about it.
    """

    id: str
    section: str
    severity: Severity
    sentence: str


class Finding(Struct, frozen=True, omit_defaults=True):
    """A rule that a document breaks.

    Args:
        rule: The `id` of the rule.
        section: The section of the specification that states the rule.
        severity: How severe it is to break the rule.
        line: The line where the element at fault begins, if it has one.
        element: The element at fault, such as `rs:md`.
        message: A sentence that says what is wrong and what to do about it.
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
