"""An open Change List has an `until` that lies in the future, and goes on before it is reached.

core §12.1 gives `until` to lists that are closed. Some Sources give it the end of the day, or the
time of the next run, and rewrite the list meanwhile.
"""

from __future__ import annotations

import pytest

from tests.wild.documents import seconds
from tests.wild.running import (
    Copy,
    audited,
    follow_once,
    following,
    run_honest,
    run_right,
    until_right,
)
from tests.wild.source import WildSource

DAY = 86_400


@pytest.fixture(autouse=True)
def begun(source: WildSource) -> None:
    source.offer()
    source.files("a", "b", "c")
    source.clock = source.t(20.5)
    source.list_resources()
    source.list_changes(until=DAY)


def change(source: WildSource, when: float) -> None:
    source.clock = source.t(when + 5.5)
    source.file("a", b"changed at %d" % when, when)
    source.told.append(source.changed("a", "updated", when))
    if "b" in source.resources:
        source.told.append(source.delete("b", when + 1))
    source.list_changes(*source.told, until=DAY)


async def test_changes_before_it_are_applied(source: WildSource, copy: Copy) -> None:
    await run_honest(source, copy)
    for when in (100, 200):
        change(source, when)
        await run_right(source, copy)


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
        source.file("a", b"changed at %d" % when, when)
        source.told.append(source.changed("a", "updated", when))
        source.list_changes(*source.told, until=when + 3600)
        await run_right(source, copy)


async def test_an_until_in_whole_seconds_a_moment_ahead_is_no_reason_to_doubt(
    source: WildSource, copy: Copy
) -> None:
    """It is rounded up: the list is right, and costs nothing more than another."""
    source.list_changes(until=seconds(source.t(21)))
    await run_right(source, copy)


async def test_audit_reads_what_lies_before_it(source: WildSource, folder) -> None:
    await follow_once(source, folder)
    held = (folder / "a").read_bytes()
    change(source, 100)
    (folder / "a").write_bytes(held)
    assert (await audited(source, folder)).code in (1, 2)
