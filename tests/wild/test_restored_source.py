"""A Source is restored from a backup: its lists end before what it told already.

What it told since then never happened any more. Neither a list nor a hub says so; a list that ends
before what was told shows it, and so does one that lacks what was told.
"""

from __future__ import annotations

from pathlib import Path
from signal import SIGINT

import pytest

from tests.subscriber.processes import running, until_reported
from tests.wild.hub import WildHub, offer_hub
from tests.wild.running import (
    HURRIED,
    Copy,
    assert_honest,
    command_follow_once,
    follow_once,
    pace,
    pushed,
    run_honest,
    until,
    until_right,
)
from tests.wild.source import WildSource

RARE = pace(poll=600.0, poll_with_push=600.0)


@pytest.fixture(autouse=True)
def begun(source: WildSource, hub: WildHub) -> None:
    source.files("a", "b", "c")
    offer_hub(source, hub)
    back_up(source)


def back_up(source: WildSource) -> None:
    """Put what is there after a first change, at 20."""
    source.file("a", b"changed once", 20)
    source.resources.pop("d", None)
    source.answers.pop("/set/d", None)
    source.file("b", b"b", -1000)
    source.clock = source.t(1000.5)
    source.list_resources()
    source.list_changes(source.changed("a", "updated", 20))


def go_on(source: WildSource, *, listed: bool = True) -> list[str]:
    """Change something that the backup has not."""
    first = source.changed("a", "updated", 20)
    second = source.update("a", 100, b"changed twice")
    third = source.create("d", 110, b"d")
    fourth = source.delete("b", 120)
    if listed:
        source.list_changes(first, second, third, fourth)
    return [second, third, fourth]


async def test_a_run_does_not_call_the_copy_right_that_has_what_was_lost(
    source: WildSource, copy: Copy
) -> None:
    go_on(source)
    await run_honest(source, copy, pace=HURRIED)
    back_up(source)
    for _ in range(2):
        await run_honest(source, copy, pace=HURRIED)


async def test_the_command_says_so_too(source: WildSource, folder: Path) -> None:
    go_on(source)
    assert_honest(folder, source, await command_follow_once(source, folder))
    back_up(source)
    async with running("follow", source.url, folder, "--once", "--json") as process:
        await until_reported(process, lambda status: "restored" in str(status["doubts"]))
        process.send_signal(SIGINT)
        _, errors = await process.communicate()
        assert process.returncode, errors
        assert b"may be an old copy" in errors


async def test_what_only_push_told_and_the_list_lacks_is_not_level(
    source: WildSource, hub: WildHub, copy: Copy
) -> None:
    async with pushed(hub, source, copy, pace=RARE) as subscriber:
        told = go_on(source, listed=False)
        await hub.push(told, source.t(20), source.t(120))
        await until(subscriber, lambda _: copy.files() == source.resources)
    back_up(source)
    for _ in range(2):
        await run_honest(source, copy, pace=HURRIED)


async def test_it_becomes_right_while_following(
    source: WildSource, hub: WildHub, copy: Copy
) -> None:
    async with pushed(hub, source, copy, pace=HURRIED) as subscriber:
        told = go_on(source)
        await hub.push(told, source.t(20), source.t(120))
        await until_right(subscriber, copy, source)
        back_up(source)
        await until_right(subscriber, copy, source)


async def test_it_becomes_right_though_the_source_goes_on_from_the_backup(
    source: WildSource, copy: Copy
) -> None:
    go_on(source)
    await follow_once(source, copy, pace=HURRIED)
    back_up(source)
    first = source.changed("a", "updated", 20)
    source.list_changes(first, source.update("c", 90, b"changed since"))
    for _ in range(2):
        await run_honest(source, copy, pace=HURRIED)
    source.list_changes(first, source.update("c", 400, b"changed again"))
    for _ in range(2):
        await run_honest(source, copy, pace=HURRIED)
