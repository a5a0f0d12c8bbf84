"""Validating ResourceSync documents: bytes in, findings out, no I/O.

`validate` checks a whole document, `Validator` one that streams in. `RULES` has all rules by
name; docs/validation.md shows them.
"""

from rsnotify.validation.findings import Finding, Rule, Severity
from rsnotify.validation.rules import RULES
from rsnotify.validation.validator import Validator, validate

__all__ = ["RULES", "Finding", "Rule", "Severity", "Validator", "validate"]
