"""`rsnotify backup` and `rsnotify restore`, of each role while it runs."""

from __future__ import annotations

import asyncio
import itertools
import shutil
import sqlite3
import threading
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, closing, suppress
from pathlib import Path

import pytest
from typer.testing import CliRunner

from rsnotify.errors import ConfigurationError, StorageError
from rsnotify.runtime import backup as state_copies
from rsnotify.runtime.backup import CopiedBytes, copy_state
from rsnotify.runtime.command_line import application
from rsnotify_publisher import Publisher
from rsnotify_subscriber import FolderMirror, FollowOptions, Subscriber, default_state
from tests.interop.clients import contents
from tests.operations.site import Site
from tests.subscriber.processes import until_reported
from tests.wild.running import HURRIED

HURRIED_OPTIONS = FollowOptions(pace=HURRIED, allow_private_addresses=True)
BASE = "http://source.example/data/"


def test_a_journal_that_is_written_meanwhile_is_copied_as_of_one_instant(tmp_path: Path) -> None:
    stop = threading.Event()
    with Publisher(tmp_path / "state", BASE) as source:

        def record() -> None:
            while not stop.is_set():
                source.updated(BASE + "first")
                source.updated(BASE + "second")

        recording = threading.Thread(target=record)
        recording.start()
        try:
            for number in range(5):
                copy_state(tmp_path / "state", tmp_path / f"backup{number}")
        finally:
            stop.set()
            recording.join()
    for number in range(5):
        with closing(sqlite3.connect(tmp_path / f"backup{number}/journal.sqlite3")) as journal:
            assert journal.execute("PRAGMA integrity_check").fetchall() == [("ok",)]
        with Publisher(tmp_path / f"backup{number}", BASE) as source:
            assert source.updated(BASE + "third").datetime is not None


def test_the_commands_refuse_what_would_lose_something(tmp_path: Path) -> None:
    with Publisher(tmp_path / "state", BASE):
        pass
    (tmp_path / "data").mkdir()
    (tmp_path / "used").mkdir()
    (tmp_path / "used/file").touch()
    for arguments, reason in (
        (("backup", "data", "backup"), "data contains no state of rsnotify"),
        (("backup", "missing", "backup"), "missing contains no state of rsnotify"),
        (("backup", "state", "used"), "used is not empty"),
        (
            ("restore", "state", "used"),
            "used is not empty; choose a new folder. To replace",
        ),
        (("backup", "state", "state/backup"), "is inside"),
    ):
        command, *paths = arguments
        words = [command, *(str(tmp_path / path) for path in paths)]
        ended = CliRunner().invoke(application(), words)
        assert isinstance(ended.exception, ConfigurationError)
        assert reason in str(ended.exception)
    assert not (tmp_path / "backup").exists()
    assert [path.name for path in (tmp_path / "used").iterdir()] == ["file"]


def test_an_incomplete_copy_is_no_state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with Publisher(tmp_path / "state", BASE) as source:
        source.wait_published()

    def fail(path: Path, copy: Path) -> None:
        raise InterruptedError

    monkeypatch.setattr(state_copies, "_copy_file", fail)
    with pytest.raises(StorageError, match="cannot be copied"):
        copy_state(tmp_path / "state", tmp_path / "backup")
    with pytest.raises(ConfigurationError, match="contains no state"):
        copy_state(tmp_path / "backup", tmp_path / "restored")


def test_the_bytes_of_a_backup_are_counted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with Publisher(tmp_path / "state", BASE) as source:
        source.wait_published()
    amount, done = CopiedBytes(), list[int]()
    monkeypatch.setattr(state_copies, "flush", lambda _: done.append(amount.done))
    size = copy_state(tmp_path / "state", tmp_path / "backup", amount)
    copied = done[: len(amount.copies)]
    assert copied == sorted(copied)
    assert 0 < copied[0] < copied[-1] == size
    assert amount.total


@pytest.fixture
def site(tmp_path: Path) -> Site:
    return Site(tmp_path)


async def test_a_copy_that_is_later_than_its_restored_state_is_made_right(site: Site) -> None:
    for name in ("back", "gone", "kept"):
        site.write(name, "first")
    async with site.source():
        await site.caught_up(site.url, "copy")
        await site.back_up("copy.rsnotify")
        site.write("back", "second")
        site.write("new", "soon deleted")
        (site.data / "gone").unlink()
        async with site.following("copy") as following:
            await until_reported(
                following, lambda _: contents(site.root / "copy") == contents(site.data)
            )
        # Nothing that the restored state or the Source has tells these from what was copied.
        site.write("back", "first")
        (site.data / "new").unlink()
        shutil.rmtree(site.root / "copy.rsnotify")
        await site.back_up("copy.rsnotify", "restore")
        (site.root / "copy/stray").write_text("of nothing that the state or a list names")
        assert await site.follow(site.url, "copy") == 1
        assert contents(site.root / "copy").keys() - contents(site.data).keys() == {"stray"}
        (site.root / "copy/stray").unlink()
        await site.caught_up(site.url, "copy")


def applied(number: int) -> Callable[[dict[str, object]], bool]:
    """Return whether a status reports so many changes."""
    return lambda status: isinstance(done := status["applied"], int) and done > number


def copy_files(folder: Path, copy: Path) -> None:
    """Copy files as they are, one after another, and leave out what is removed meanwhile."""
    copy.mkdir()
    for path in folder.iterdir():
        with suppress(FileNotFoundError):
            shutil.copy(path, copy / path.name)


async def load(site: Site) -> None:
    """Change the data of a Source, one file after another, until cancelled."""
    for number in itertools.count():
        site.write(f"file-{number % 40}", number)
        (site.data / f"file-{(number + 20) % 40}").unlink(missing_ok=True)
        await asyncio.sleep(0.005)  # between two changes


@asynccontextmanager
async def under_load(site: Site) -> AsyncIterator[None]:
    loading = asyncio.create_task(load(site))
    try:
        yield
    finally:
        loading.cancel()


@pytest.mark.slow
async def test_all_roles_are_restored_after_everything_was_lost(site: Site) -> None:
    states = ("hub", "data.rsnotify", "copy.rsnotify", "relayed.rsnotify")
    site.write("kept", "unchanged")
    async with site.running_all(), under_load(site), site.following("copy") as copy:
        await until_reported(copy, applied(100))
        for state in states:
            await site.back_up(state)
        copy_files(site.root / "copy", site.root / "copied")
        await until_reported(copy, applied(200))
    for state in (*states, "copy", "relayed"):
        shutil.rmtree(site.root / state)
    for state in states:
        await site.back_up(state, "restore")
    (site.root / "copied").rename(site.root / "copy")
    (site.root / "relayed").mkdir()
    (site.root / "relayed/kept").write_text("unchanged")
    async with site.running_all():
        assert await site.follow(site.url, "copy") in (0, 1)
        # Of files that the restored journal and state do not know, nobody knows whose they are.
        await site.repair(site.url, "copy", "--remove-foreign")
        await site.caught_up(site.url, "copy")
        await site.caught_up(site.relay_url, "copy of the relay")


@pytest.mark.slow
async def test_destinations_that_are_later_than_a_restored_source_go_back(site: Site) -> None:
    site.write("kept", "unchanged")
    async with site.hub(), site.source():
        async with under_load(site), site.following("copy") as copy:
            await until_reported(copy, applied(50))
            await site.back_up("data.rsnotify")
            copy_files(site.data, site.root / "data.copied")
            await until_reported(copy, applied(150))
        await site.caught_up(site.url, "polled")
    for lost in ("data", "data.rsnotify"):
        shutil.rmtree(site.root / lost)
    (site.root / "data.copied").rename(site.data)
    await site.back_up("data.rsnotify", "restore")
    async with site.hub(), site.source():
        for copy in (site.root / "copy", site.root / "polled"):
            async with Subscriber(
                site.url, FolderMirror(copy), state=default_state(copy), options=HURRIED_OPTIONS
            ) as subscriber:
                assert await subscriber.until(lambda status: status.level)
                assert contents(copy) == contents(site.data)
            await site.caught_up(site.url, copy.name)
