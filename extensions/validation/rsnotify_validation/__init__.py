"""Validating ResourceSync documents: bytes in, findings out, no I/O.

`validate` checks a whole document, `Validator` one that streams in. `RULES` has all rules by
name; docs/validation.md shows them.
"""

from rsnotify_validation.kinds import Finding, Rule, Severity
from rsnotify_validation.rules import RULES
from rsnotify_validation.validator import Validator, validate

__all__ = ["RULES", "Finding", "Rule", "Severity", "Validator", "validate"]
