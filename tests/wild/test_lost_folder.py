"""The folder of a copy is removed, emptied, unmounted or replaced, and its state is left.

The state then says that everything is held. A mirror that is moved together with its state, or
restored from a backup, is another folder too, and is to be followed as before.
"""

from __future__ import annotations

import asyncio
import shutil
from pathlib import Path

import pytest

from rsnotify.errors import RsnotifyError
from rsnotify_subscriber import default_state
from rsnotify_subscriber.storage.destination_state import DestinationState
from tests.wild.documents import change_list, entry, resource_list
from tests.wild.running import (
    PATIENCE,
    assert_honest,
    command_follow_once,
    run_honest,
    run_right,
    subscriber,
    until,
)
from tests.wild.source import WildSource

NAMES = ("a", "b", "c")


@pytest.fixture
async def copied(source: WildSource, folder: Path) -> Path:
    source.offer()
    for name in NAMES:
        source.file(name, name.encode())
    listed = [
        entry(source.uri(name), lastmod=source.t(0), content=content)
        for name, content in source.resources.items()
    ]
    source.put("resourcelist.xml", resource_list(listed, at=source.t(10)))
    source.put("changelist.xml", change_list(from_=source.t(5)))
    await run_right(source, folder)
    return folder


async def test_a_folder_that_was_removed_is_missed(source: WildSource, copied: Path) -> None:
    shutil.rmtree(copied)
    outcome = await command_follow_once(source, copied)
    assert_honest(copied, source, outcome)
    assert outcome.code == 2
    assert "lacks 3 of the 3 files" in outcome.reasons[0]
    assert "copy.rsnotify" in outcome.reasons[0]
    assert not copied.exists()
    assert f"the folder and {default_state(copied)}" in outcome.reasons[0]
    shutil.rmtree(default_state(copied))
    outcome = await command_follow_once(source, copied)
    assert_honest(copied, source, outcome)
    assert outcome.claims, outcome


async def test_a_folder_that_was_emptied_or_is_another_is_missed(
    source: WildSource, copied: Path
) -> None:
    for name in NAMES:
        (copied / name).unlink()
    outcome = await run_honest(source, copied)
    assert not outcome.claims
    copied.rename(copied.with_name("old"))
    copied.mkdir()
    outcome = await run_honest(source, copied)
    assert not outcome.claims


async def test_a_copy_of_the_copy_is_followed_if_all_is_there(
    source: WildSource, copied: Path
) -> None:
    there = copied.with_name("there")
    shutil.copytree(copied, there)
    shutil.copytree(default_state(copied), default_state(there))
    source.forget()
    await run_right(source, there)
    assert source.requests("a") == []
    (there / "b").rename(copied.with_name("b"))
    shutil.move(there, copied.with_name("elsewhere"))
    shutil.copytree(copied.with_name("elsewhere"), there)
    await run_right(source, there)
    assert len(source.requests("b")) == 1
    assert source.requests("a") == []


async def test_a_folder_with_other_files_is_not_taken_for_a_copy(
    source: WildSource, copied: Path
) -> None:
    before = {path.name: path.read_bytes() for path in copied.iterdir()}
    shutil.rmtree(default_state(copied))
    outcome = await command_follow_once(source, copied)
    assert_honest(copied, source, outcome)
    assert outcome.code == 2
    assert f"{copied}/" in outcome.reasons[0]  # which file
    assert "must be empty" in outcome.reasons[0]
    assert "choose another folder" in outcome.reasons[0]
    assert f"restore its state, {default_state(copied)}" in outcome.reasons[0]
    assert {path.name: path.read_bytes() for path in copied.iterdir()} == before
    shutil.rmtree(copied)
    (copied / "of no resource").mkdir(parents=True)
    assert (await command_follow_once(source, copied)).claims


async def test_other_files_in_a_copy_that_was_moved_are_named_and_stay(
    source: WildSource, copied: Path
) -> None:
    there = copied.with_name("there")
    shutil.copytree(copied, there)
    shutil.copytree(default_state(copied), default_state(there))
    (there / "stray").touch()
    outcome = await command_follow_once(source, there)
    assert_honest(there, source, outcome)
    assert outcome.code == 1
    assert str(there / "stray") in outcome.reasons[0]
    (there / "stray").unlink()
    assert (await command_follow_once(source, there)).claims


async def test_a_copy_that_was_moved_after_a_crash_may_have_a_file_of_the_last_change(
    source: WildSource, copied: Path
) -> None:
    there = copied.with_name("there")
    shutil.copytree(copied, there)
    (there / "d").write_bytes(b"visible, and not committed")
    shutil.copytree(default_state(copied), default_state(there))
    state = DestinationState(default_state(there))
    state.store_intent([source.uri("d")], ())
    state.close()
    await run_right(source, there)


async def test_a_file_that_is_missed_and_is_in_no_list_is_fetched_from_its_uri(
    source: WildSource, copied: Path
) -> None:
    source.offer(resourcelist=None)
    await run_right(source, copied)
    (copied / "b").unlink()
    await run_right(source, copied)
    (copied / "b").unlink()
    source.put("b", b"", status=404)
    outcome = await run_honest(source, copied)
    assert source.uri("b") in outcome.reasons[0]


@pytest.mark.parametrize("busy", [False, True])
async def test_a_folder_that_vanishes_while_it_is_followed_ends_that(
    busy: bool, source: WildSource, copied: Path
) -> None:
    one = subscriber(source, copied)
    run = asyncio.create_task(one.run())
    await until(one, lambda status: status.level)
    shutil.move(copied, copied.with_name("old"))
    copied.mkdir()
    if busy:
        content = source.file("d", b"new", 60)
        created = entry(source.uri("d"), "created", datetime=source.t(60), content=content)
        source.put("changelist.xml", change_list([created], from_=source.t(5)))
    with pytest.raises(RsnotifyError, match="was removed, unmounted or replaced"):
        async with asyncio.timeout(PATIENCE):
            await run
    assert not one.status.level
    assert one.status.error
    assert list(copied.iterdir()) == []
