"""A Resource List's `at` lies ahead of the clock by which the Change List is dated.

Two machines write the two lists and their clocks differ, by seconds or by an hour; or `at` is the
time at which writing the list ended, while core §5.2.1 wants that at which it began. Changes
dated between the true time and `at` are missing from the Resource List, and look old beside it. No
time in a document that lies after the Date of its answer (RFC 9110 §6.6.1) can be right.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.wild.running import (
    Copy,
    Folder,
    assert_honest,
    audited,
    follow_once,
    following,
    run_honest,
    run_right,
    until_right,
)
from tests.wild.source import WildSource


@pytest.fixture(params=[12, 3600], ids=["by 12 s", "by an hour"])
def ahead(request: pytest.FixtureRequest, source: WildSource) -> float:
    """Put a set whose Resource List was made at 100, and says that it was later."""
    source.offer()
    source.files("a", "b", "c")
    source.clock = source.t(100.5)
    source.list_resources(at=100 + request.param)
    source.list_changes()
    return float(request.param)


def change_at(source: WildSource, when: float) -> None:
    """Change all there is to change, within seconds, and list it."""
    source.clock = source.t(when + 3.5)
    source.file("a", b"changed", when)
    source.remove("b")
    source.file("d", b"d", when + 2)
    source.told = [
        source.changed("a", "updated", when),
        source.changed("b", "deleted", when + 1),
        source.changed("d", "created", when + 2),
    ]
    source.list_changes(*source.told)


async def test_changes_after_it_are_applied_in_the_next_run(
    source: WildSource, copy: Copy, ahead: float
) -> None:
    await run_honest(source, copy)
    change_at(source, 104)
    await run_right(source, copy)


async def test_changes_after_it_are_applied_while_following(
    source: WildSource, copy: Copy, ahead: float
) -> None:
    async with following(source, copy) as subscriber:
        await until_right(subscriber, copy, source)
        change_at(source, 104)
        await until_right(subscriber, copy, source)


async def test_changes_that_the_list_already_had_are_applied(
    source: WildSource, copy: Copy, ahead: float
) -> None:
    """The Change List had them at the first copy already, and the Resource List did not."""
    change_at(source, 104)
    await run_right(source, copy)


async def test_without_a_date_nothing_is_believed_either(
    source: WildSource, copy: Copy, ahead: float
) -> None:
    source.list_resources(at=100 + ahead, headers={"Date": None})
    source.list_changes(headers={"Date": None})
    await run_honest(source, copy)
    change_at(source, 104)
    await run_right(source, copy)


async def test_audit_does_not_call_a_copy_right_that_lacks_the_changes(
    source: WildSource, tmp_path: Path, ahead: float
) -> None:
    copy = Folder(tmp_path / "copy")
    before = dict(source.resources)
    await follow_once(source, copy)
    change_at(source, 104)
    for name, content in before.items():
        (copy.path / name).write_bytes(content)
    (copy.path / "d").unlink(missing_ok=True)
    outcome = await audited(source, copy.path)
    assert outcome.code in (1, 2), outcome
    assert_honest(copy, source, outcome)
