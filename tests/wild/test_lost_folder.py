"""The folder of a copy is removed, emptied, unmounted or replaced, and its state is left.

The state then says that everything is held. A mirror that is moved together with its state, or
restored from a backup, is another folder too, and is to be followed as before.
"""

from __future__ import annotations

import asyncio
import shutil
import sqlite3
from contextlib import closing
from pathlib import Path
from random import Random
from typing import Any

import pytest

from rsnotify.errors import RsnotifyError
from rsnotify_subscriber import PostgreSQLState, Received, default_state
from rsnotify_subscriber.following import copy_check
from rsnotify_subscriber.mirror import MirrorTree
from rsnotify_subscriber.storage.destination_state import DestinationState
from tests.subscriber.destination import PATIENCE, files_of
from tests.subscriber.processes import running
from tests.wild.running import (
    Recorder,
    command_follow_once,
    command_honest,
    run_honest,
    run_right,
    subscriber,
    until,
)
from tests.wild.source import Source

NAMES = ("a", "b", "c")


@pytest.fixture
async def copied(source: Source, folder: Path) -> Path:
    source.offer()
    for name in NAMES:
        source.file(name, name.encode())
    source.list_resources(dated=True)
    source.list_changes()
    await run_right(source, folder)
    return folder


def copy_of(copied: Path) -> Path:
    """Copy a copy with its state, as `cp -r` does."""
    there = copied.with_name("there")
    shutil.copytree(copied, there)
    shutil.copytree(default_state(copied), default_state(there))
    return there


async def test_a_folder_that_was_removed_is_missed(source: Source, copied: Path):
    shutil.rmtree(copied)
    outcome = await command_honest(source, copied)
    assert outcome.code == 2
    assert "lacks all 3 files" in outcome.reasons[0]
    assert "copy.rsnotify" in outcome.reasons[0]
    assert not copied.exists()
    assert f"the folder and {default_state(copied)}" in outcome.reasons[0]
    shutil.rmtree(default_state(copied))
    outcome = await command_honest(source, copied)
    assert outcome.claims, outcome


async def test_a_folder_that_was_emptied_or_is_another_is_missed(source: Source, copied: Path):
    for name in NAMES:
        (copied / name).unlink()
    outcome = await run_honest(source, copied)
    assert not outcome.claims
    copied.rename(copied.with_name("old"))
    copied.mkdir()
    outcome = await run_honest(source, copied)
    assert not outcome.claims


async def test_a_copy_of_the_copy_is_followed_if_all_is_there(source: Source, copied: Path):
    there = copy_of(copied)
    source.forget()
    await run_right(source, there)
    assert source.requests("a") == []
    (there / "b").rename(copied.with_name("b"))
    shutil.move(there, copied.with_name("elsewhere"))
    shutil.copytree(copied.with_name("elsewhere"), there)
    await run_right(source, there)
    assert len(source.requests("b")) == 1
    assert source.requests("a") == []


async def test_a_folder_with_other_files_is_not_taken_for_a_copy(source: Source, copied: Path):
    before = {path.name: path.read_bytes() for path in copied.iterdir()}
    shutil.rmtree(default_state(copied))
    outcome = await command_honest(source, copied)
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
    source: Source, copied: Path
):
    there = copy_of(copied)
    (there / "stray").touch()
    outcome = await command_honest(source, there)
    assert outcome.code == 1
    assert str(there / "stray") in outcome.reasons[0]
    (there / "stray").unlink()
    assert (await command_follow_once(source, there)).claims


async def test_a_copy_that_was_moved_after_a_crash_may_have_a_file_of_the_last_change(
    source: Source, copied: Path
):
    there = copy_of(copied)
    (there / "d").write_bytes(b"visible, and not committed")
    state = DestinationState(default_state(there))
    state.store_intent([source.uri("d")], ())
    state.close()
    await run_right(source, there)


async def test_a_file_that_is_missed_and_is_in_no_list_is_fetched_from_its_uri(
    source: Source, copied: Path
):
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
    busy: bool, source: Source, copied: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(copy_check, "_PLACE_CHECK_INTERVAL", 0.1)
    one = subscriber(source, copied)
    run = asyncio.create_task(one.run())
    await until(one, lambda status: status.level)
    shutil.move(copied, copied.with_name("old"))
    copied.mkdir()
    if busy:
        source.list_changes(source.create("d", 60, b"new"))
    with pytest.raises(RsnotifyError, match="was removed, unmounted or replaced"):
        async with asyncio.timeout(PATIENCE):
            await run
    assert not one.status.level
    assert one.status.error
    assert list(copied.iterdir()) == []


# A Destination that is killed, and a Source that deletes resources while it is down.
#
# What was applied and is not in the state must not stay: neither the Resource List nor the Change
# List of the next start may name it.


#: Some of them are in the way of others, as files and as folders.
ALL_NAMES = [f"{number}{below}" for number in range(40) for below in ("", "/b", "/b/c")]


class Story:
    """A Source that changes between the runs."""

    def __init__(self, source: Source, random: Random) -> None:
        self.source = source
        self.random = random
        self.now = 0.0
        self.changes: list[str] = []
        self.begins = 0.0
        source.offer()

    def write(self, name: str) -> None:
        self.now += 1
        kind = "updated" if name in self.source.resources else "created"
        self.source.file(name, b"%d" % self.now, self.now)
        self.changes.append(self.source.changed(name, kind, self.now))

    def remove(self, name: str) -> None:
        self.now += 1
        self.changes.append(self.source.delete(name, self.now))

    def tell(self) -> None:
        self.source.list_changes(*self.changes, from_=self.begins)
        self.source.list_resources(self.now)

    def forget(self) -> None:
        """Begin a new Change List, so that there is a gap."""
        self.now += 1
        self.changes = []
        self.begins = self.now


def unknown_to_the_state(story: Story, folder: Path) -> set[str]:
    """Return what the copy has and its state does not."""
    path = default_state(folder) / "state.sqlite"
    tree = MirrorTree(folder, story.source.base)
    with closing(sqlite3.connect(f"{path.absolute().as_uri()}?mode=ro", uri=True)) as database:
        known = {uri for (uri,) in database.execute("SELECT uri FROM resources")}
    return {
        name
        for name in story.source.resources
        if story.source.uri(name) not in known and Path(tree.find(story.source.uri(name))).is_file()
    }


async def kill_at_the_next_file(source: Source, folder: Path, enough: int) -> None:
    """Follow until there are some files, and kill it the moment that there is one more."""
    async with running("follow", source.url, folder, "--once") as process:
        async with asyncio.timeout(PATIENCE):
            while process.returncode is None and len(files_of(folder)) <= enough:  # noqa: ASYNC110
                await asyncio.sleep(0)
        if process.returncode is None:
            process.kill()


@pytest.mark.parametrize("gap", [False, True])
async def test_what_a_killed_process_left_goes_with_the_source(
    source: Source, folder: Path, gap: bool
):
    random = Random(gap)
    story = Story(source, random)
    if gap:
        story.write("first")
        story.tell()
        assert (await command_follow_once(source, folder)).claims
    for _ in range(3):
        for name in random.sample(ALL_NAMES, 60):
            story.write(name)
        story.tell()
        await kill_at_the_next_file(source, folder, random.randrange(1, 50))
        left = unknown_to_the_state(story, folder)
        for name in left | set(random.sample(sorted(source.resources), 10)):
            story.remove(name)
        if gap:
            story.forget()
        story.tell()
        outcome = await command_follow_once(source, folder)
        assert outcome.claims
        tree = MirrorTree(folder, source.base)
        places = {str(tree.find(source.uri(name))): name for name in source.resources}
        found = {path: Path(path).read_bytes() for path in tree.paths()}
        assert found == {place: source.resources[name] for place, name in places.items()}


class Hanging(Recorder):
    """A handler that has its effect, and then never returns."""

    hangs = True

    def __init__(self, base: str, state: Path) -> None:
        super().__init__(base, state)
        self.called = asyncio.Event()

    async def apply(self, changes: list[Received]) -> None:
        await super().apply(changes)
        if self.hangs:
            self.called.set()
            await asyncio.Event().wait()


@pytest.mark.parametrize("place", ["a folder", "PostgreSQL"])
@pytest.mark.parametrize("what", ["created", "updated"])
async def test_a_handler_is_told_of_what_it_may_have_applied(
    source: Source, tmp_path: Path, request: Any, place: str, what: str
):
    state: Any = tmp_path / "state"
    if place == "PostgreSQL":
        state = PostgreSQLState(request.getfixturevalue("postgresql"))
    story = Story(source, Random(1))
    story.write("a")
    story.tell()
    copy = Hanging(source.base, tmp_path)
    copy.hangs = False
    await run_right(source, copy, state=state)
    copy.hangs = True
    changed = "b" if what == "created" else "a"
    story.write(changed)
    story.tell()
    dying = asyncio.create_task(subscriber(source, copy, state=state).catch_up())
    async with asyncio.timeout(PATIENCE):
        await copy.called.wait()
    dying.cancel()
    await asyncio.gather(dying, return_exceptions=True)
    copy.hangs = False
    if what == "created":
        story.remove("b")
    else:
        source.file("a", b"1")  # it is put back
    story.forget()
    story.tell()
    await run_right(source, copy, state=state)


@pytest.mark.parametrize("there", [True, False])
async def test_what_no_list_tells_of_what_was_applied_is_found_out(
    source: Source, tmp_path: Path, there: bool
):
    """A hub had invented the change, and the process died before it was committed."""
    story = Story(source, Random(1))
    story.write("a")
    story.write("b")
    story.tell()
    copy = Recorder(source.base, tmp_path)
    await run_right(source, copy)
    changed = "a" if there else "c"
    state = DestinationState(tmp_path)
    state.store_intent([source.uri(changed)], ())
    state.close()
    copy.held[changed] = b"invented"
    await run_right(source, copy)
