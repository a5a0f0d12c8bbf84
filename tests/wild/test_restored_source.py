"""A Source is restored from a backup: its lists end before what it told already.

What it told since then never happened any more. Neither a list nor a hub says so; a list that ends
before what was told shows it, and so does one that lacks what was told.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from signal import SIGINT

import pytest
from msgspec.structs import replace

from tests.relay.running import Running
from tests.subscriber.processes import running, until_reported
from tests.wild.hub import Hub, offer_hub
from tests.wild.running import (
    HURRIED,
    Copy,
    Folder,
    command_honest,
    follow_once,
    following,
    pace,
    pushed,
    run_honest,
    until,
    until_right,
)
from tests.wild.source import Source

RARE = pace(poll=600.0, poll_with_push=600.0)


@pytest.fixture
def backed_up(source: Source, hub: Hub) -> None:
    source.files("a", "b", "c")
    offer_hub(source, hub)
    back_up(source)


def back_up(source: Source) -> None:
    """Put what is there after a first change, at 20."""
    source.file("a", b"changed once", 20)
    source.resources.pop("d", None)
    source.answers.pop("/set/d", None)
    source.file("b", b"b", -1000)
    source.clock = source.t(1000.5)
    source.list_resources()
    source.list_changes(source.changed("a", "updated", 20))


def go_on(source: Source, *, listed: bool = True) -> list[str]:
    """Change something that the backup has not."""
    first = source.changed("a", "updated", 20)
    second = source.update("a", 100, b"changed twice")
    third = source.create("d", 110, b"d")
    fourth = source.delete("b", 120)
    if listed:
        source.list_changes(first, second, third, fourth)
    return [second, third, fourth]


@pytest.mark.usefixtures("backed_up")
async def test_a_run_does_not_call_the_copy_right_that_has_what_was_lost(
    source: Source, copy: Copy
):
    go_on(source)
    await run_honest(source, copy, pace=HURRIED)
    back_up(source)
    for _ in range(2):
        await run_honest(source, copy, pace=HURRIED)


@pytest.mark.usefixtures("backed_up")
async def test_the_command_says_so_too(source: Source, folder: Path):
    go_on(source)
    await command_honest(source, folder)
    back_up(source)
    async with running("follow", source.url, folder, "--once", "--json") as process:
        await until_reported(process, lambda status: "restored" in str(status["doubts"]))
        process.send_signal(SIGINT)
        _, errors = await process.communicate()
        assert process.returncode, errors
        assert b"may be an outdated copy" in errors


@pytest.mark.usefixtures("backed_up")
async def test_what_only_push_told_and_the_list_lacks_is_not_level(
    source: Source, hub: Hub, copy: Copy
):
    async with pushed(hub, source, copy, pace=RARE) as subscriber:
        told = go_on(source, listed=False)
        await hub.push(told, source.t(20), source.t(120))
        await until(subscriber, lambda _: copy.files() == source.resources)
    back_up(source)
    for _ in range(2):
        await run_honest(source, copy, pace=HURRIED)


@pytest.mark.usefixtures("backed_up")
async def test_it_becomes_right_while_following(source: Source, hub: Hub, copy: Copy):
    async with pushed(hub, source, copy, pace=HURRIED) as subscriber:
        told = go_on(source)
        await hub.push(told, source.t(20), source.t(120))
        await until_right(subscriber, copy, source)
        back_up(source)
        await until_right(subscriber, copy, source)


@pytest.mark.usefixtures("backed_up")
async def test_it_becomes_right_though_the_source_goes_on_from_the_backup(
    source: Source, copy: Copy
):
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


# A relay follows a wild Source, and a Destination follows the relay.
#
# What the relay corrects, it publishes as changes of its own, so that all who follow it correct it,
# too; what it doubts, it does not call right.


@pytest.fixture
async def relay(source: Source, offered: None, tmp_path: Path) -> AsyncIterator[Running]:
    relay = Running(source.url, tmp_path / "relay", pace=replace(HURRIED, compare=0.5))
    await relay.start()
    yield relay
    await relay.stop()


async def both_are_right(relay: Running, source: Source, copy: Path) -> None:
    await relay.until(
        lambda: (
            relay.relay.subscriber.status.level and Folder(relay.folder).files() == source.resources
        )
    )
    url = relay.url + "capabilitylist.xml"
    async with following(url, copy) as subscriber:
        await until_right(subscriber, copy, source)


@pytest.mark.usefixtures("offered")
async def test_a_late_entry_and_a_deletion_that_only_the_resource_list_shows(
    source: Source, relay: Running, folder: Path
):
    await both_are_right(relay, source, folder)
    first = source.update("a", 100)
    source.list_changes(first)
    await both_are_right(relay, source, folder)
    source.list_changes(source.update("b", 90), first)
    await both_are_right(relay, source, folder)
    source.remove("b")
    source.list_resources(at=200)
    await both_are_right(relay, source, folder)


@pytest.mark.usefixtures("offered")
async def test_an_invented_deletion(source: Source, hub: Hub, relay: Running, folder: Path):
    await hub.subscribed()
    async with following(relay.url + "capabilitylist.xml", folder) as behind:
        await until_right(behind, folder, source)
        await hub.push([source.changed("a", "deleted", 50)], source.t(10), source.t(50))
        before = len(source.requests("changelist.xml"))
        await relay.until(lambda: len(source.requests("changelist.xml")) >= before + 2)
        await until(behind, lambda _: Folder(folder).files() == source.resources)
    await both_are_right(relay, source, folder)


@pytest.mark.usefixtures("offered")
async def test_a_restored_source(source: Source, relay: Running, folder: Path):
    source.list_changes(source.update("a", 100), source.create("d", 110, b"d"))
    await both_are_right(relay, source, folder)
    source.remove("d")
    source.file("a", b"a", -1000)
    source.clock = source.t(1000.5)
    source.list_changes()
    await both_are_right(relay, source, folder)
