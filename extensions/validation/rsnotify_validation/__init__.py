"""Validation of ResourceSync documents, and inspection of Sources.

`validate` checks a whole document, and `Validator` a document that arrives in chunks. Both take
bytes, return findings, and do no I/O. `RULES` contains all rules by name.
"""

from typing import TYPE_CHECKING

from rsnotify.runtime.lazy_exports import lazy_exports

if TYPE_CHECKING:
    from rsnotify_validation.findings import Finding, Rule, Severity
    from rsnotify_validation.rules import RULES
    from rsnotify_validation.validator import Validator, validate
else:
    __getattr__, __dir__ = lazy_exports(
        __name__,
        {
            "rsnotify_validation.findings": ("Finding", "Rule", "Severity"),
            "rsnotify_validation.rules": ("RULES",),
            "rsnotify_validation.validator": ("Validator", "validate"),
        },
    )

__all__ = ["RULES", "Finding", "Rule", "Severity", "Validator", "validate"]
