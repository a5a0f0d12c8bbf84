"""An open Change List has an `until` that lies in the future, and goes on before it is reached.

core §12.1 gives `until` to lists that are closed. Some Sources give it the end of the day, or the
time of the next run, and rewrite the list meanwhile.
"""

from __future__ import annotations

import pytest

from tests.wild.documents import seconds
from tests.wild.running import (
    Copy,
    assert_honest,
    audited,
    follow_once,
    following,
    until_right,
)
from tests.wild.source import WildSource

DAY = 86_400


@pytest.fixture(autouse=True)
def begun(source: WildSource) -> None:
    source.offer()
    for name in ("a", "b", "c"):
        source.file(name, name.encode(), source.t(-1000))
    source.clock = source.t(20.5)
    source.list_resources(at=source.t(10))
    source.list_changes(from_=source.t(5), until=source.t(DAY))


def change(source: WildSource, when: float) -> None:
    source.clock = source.t(when + 5.5)
    source.file("a", b"changed at %d" % when, source.t(when))
    source.told.append(source.changed("a", "updated", source.t(when)))
    if "b" in source.resources:
        source.remove("b")
        source.told.append(source.changed("b", "deleted", source.t(when + 1)))
    source.list_changes(*source.told, from_=source.t(5), until=source.t(DAY))


async def test_changes_before_it_are_applied(source: WildSource, copy: Copy) -> None:
    assert_honest(copy, source, await follow_once(source, copy))
    for when in (100, 200):
        change(source, when)
        outcome = await follow_once(source, copy)
        assert_honest(copy, source, outcome)
        assert outcome.claims, outcome


async def test_changes_before_it_are_applied_while_following(
    source: WildSource, copy: Copy
) -> None:
    async with following(source, copy) as subscriber:
        for when in (100, 200, 300):
            change(source, when)
            await until_right(subscriber, copy, source)


async def test_an_until_that_moves_ahead_each_time_hides_nothing(
    source: WildSource, copy: Copy
) -> None:
    await follow_once(source, copy)
    for when in (100, 200):
        source.clock = source.t(when + 5.5)
        source.file("a", b"changed at %d" % when, source.t(when))
        source.told.append(source.changed("a", "updated", source.t(when)))
        source.list_changes(*source.told, from_=source.t(5), until=source.t(when + 3600))
        outcome = await follow_once(source, copy)
        assert_honest(copy, source, outcome)
        assert outcome.claims, outcome


async def test_an_until_in_whole_seconds_a_moment_ahead_is_no_reason_to_doubt(
    source: WildSource, copy: Copy
) -> None:
    """It is rounded up: the list is right, and costs nothing more than another."""
    source.list_changes(from_=source.t(5), until=seconds(source.t(21)))
    outcome = await follow_once(source, copy)
    assert_honest(copy, source, outcome)
    assert outcome.claims, outcome


async def test_audit_reads_what_lies_before_it(source: WildSource, folder) -> None:
    await follow_once(source, folder)
    held = (folder / "a").read_bytes()
    change(source, 100)
    (folder / "a").write_bytes(held)
    assert (await audited(source, folder)).code in (1, 2)
