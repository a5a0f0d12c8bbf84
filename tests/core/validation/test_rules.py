"""Each rule is found where it is broken, and nothing else is."""

from __future__ import annotations

import pytest

from rsnotify_validation import RULES, validate
from tests.core.validation.broken import BREAKS, Break


@pytest.mark.parametrize("case", BREAKS, ids=lambda case: case.rule)
def test_a_rule_that_is_broken_once_is_found_at_its_line_and_nothing_else(case: Break) -> None:
    found = [(finding.rule, finding.line) for finding in validate(case.edited, spec=case.spec)]
    assert found == [(case.rule, case.expected_line)]


def test_every_rule_on_documents_is_broken_by_some_case() -> None:
    between = {name for name in RULES if name.startswith(("tree-", "package-"))}
    assert {case.rule for case in BREAKS} == set(RULES) - between
