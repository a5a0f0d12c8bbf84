"""What `rsnotify audit` prints: each difference by its kind, up to a limit, and a verdict."""

from __future__ import annotations

import pytest

from rsnotify_subscriber import Audit
from rsnotify_subscriber.commands.audit import audit_lines

A, B = "http://a.example/a", "http://a.example/b"


@pytest.mark.parametrize(
    ("found", "lines"),
    [
        (Audit(2, 2), ["in step: 2 resources at the Source"]),
        (
            Audit(
                9,
                4,
                created=(A,),
                updated=(B,),
                deleted=("kept", "mine"),
                foreign=("mine",),
                gone=(A,),
                absent=(B,),
                unknown=(A,),
                reasons={A: "the server says 503"},
                limits=("no dates",),
            ),
            [
                f"missing         {A}",
                f"different       {B}",
                "not listed      kept",
                "not listed      mine: not part of this copy",
                f"gone            {A}: the server returned 404 or 410",
                f"unavailable     {B}: the server returned 404 or 410",
                f"unknown         {A}: the server says 503",
                "limit           no dates",
                "not in step: 9 resources at the Source, 4 equal in the copy, 1 missing, "
                "1 different, 2 not listed, 1 gone, 1 unavailable, 1 could not be compared",
            ],
        ),
        (
            Audit(1, 1, unknown=("mine",), doubts=("a list could not be read",)),
            [
                "unknown         mine: not listed, but the lists may be incomplete",
                "doubt           a list could not be read",
                "unknown: 1 resource at the Source, 1 equal in the copy, 1 could not be compared",
            ],
        ),
    ],
)
def test_each_difference_has_a_kind(found: Audit, lines: list[str]) -> None:
    assert list(audit_lines(found)) == lines


def test_of_many_differences_a_few_are_shown_and_the_rest_counted() -> None:
    found = Audit(
        1_030, 0, created=tuple(map(str, range(1_025))), updated=("a", "b", "c", "d", "e")
    )
    lines = list(audit_lines(found, 5))
    assert len(lines) == 5 + 1 + 5 + 1
    assert lines[5] == "missing         … and 1,020 more; --all shows all"
    assert lines[-1].endswith("0 equal in the copy, 1,025 missing, 5 different")
    assert len(list(audit_lines(found))) == 1_031
