"""docs/validation.md shows the rules that there are."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from rsnotify_validation import RULES, Rule
from rsnotify_validation.rules import DOCUMENT_RULES, TREE_RULES, VALUE_RULES

PAGE = Path(__file__).resolve().parents[3] / "docs/validation.md"


def table(rules: Iterable[Rule]) -> str:
    rows = [f"| `{r.id}` | {r.section} | {r.severity} | {r.sentence} |\n" for r in rules]
    head = "| rule | section | severity | what is wrong, and what to do |\n"
    return head + "| --- | --- | --- | --- |\n" + "".join(rows)


def tables() -> str:
    """Return the part of the page that has the rules."""
    apart = {rule.id for rule in (*DOCUMENT_RULES, *VALUE_RULES, *TREE_RULES)}
    parts = {
        "Rules on every document": DOCUMENT_RULES,
        "Rules on values and links": VALUE_RULES,
        "Rules on each kind of document": [r for r in RULES.values() if r.id not in apart],
        "Rules between documents, and on packages": TREE_RULES,
    }
    return "\n".join(f"## {title}\n\n{table(rules)}" for title, rules in parts.items())


def test_the_page_shows_every_rule() -> None:
    assert PAGE.read_text().endswith(tables())
