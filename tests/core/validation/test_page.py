"""The reference lists the rules that there are."""

from __future__ import annotations

from docs.hooks import reference
from rsnotify_validation import RULES


def test_the_page_shows_every_rule_once() -> None:
    page = reference.validation_rules().splitlines()
    for rule in RULES.values():
        row = f"| `{rule.id}` | {rule.section} | {rule.severity} | {rule.sentence} |"
        assert page.count(row) == 1
