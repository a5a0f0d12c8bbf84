"""One environment may hold settings of several commands, and one folder the state of one role."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from rsnotify.errors import ConfigurationError
from rsnotify.runtime.state_folders import check_role
from rsnotify_hub.store.sqlite_store import SqliteStore
from rsnotify_publisher import Publisher
from rsnotify_subscriber.storage.state_database import open_folder
from tests.hub.helpers import Clock
from tests.hub.storing import FOREVER

#: Seconds; only what hangs takes them.
PATIENCE = 120
#: No command gets as far as to listen: the port is none.
NO_PORT = "70000"


def said(*arguments: str, **environ: str) -> str:
    clean = {name: value for name, value in os.environ.items() if "RSNOTIFY" not in name}
    done = subprocess.run(
        [sys.executable, "-m", "rsnotify", *arguments],
        env=clean | environ,
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        check=False,
    )
    assert done.returncode == 2, done.stderr
    return done.stderr


def test_a_variable_belongs_to_the_command_in_its_name(tmp_path: Path):
    environ = {"RSNOTIFY_SOURCE_PORT": NO_PORT, "RSNOTIFY_HUB_PORT": "1"}
    errors = said("source", str(tmp_path), **environ)
    assert "it has to be a whole number from 0 to 65,535" in errors
    assert "WARNING" not in errors
    errors = said("hub", RSNOTIFY_HUB_PORT=NO_PORT, RSNOTIFY_SOURCE_PORT="1")
    assert "it has to be a whole number from 0 to 65,535" in errors


def test_a_variable_without_the_name_of_a_command_is_ignored_with_a_warning(tmp_path: Path):
    environ = {"RSNOTIFY_PORT": "1", "RSNOTIFY_SOURCE_PORT": NO_PORT}
    errors = said("source", str(tmp_path), **environ)
    assert "RSNOTIFY_PORT is unknown, and ignored; did you mean RSNOTIFY_SOURCE_PORT?" in errors
    assert "it has to be a whole number from 0 to 65,535" in errors


def hub(folder: Path) -> None:
    async def open_and_close() -> None:
        await SqliteStore(folder, FOREVER, Clock()).close()

    asyncio.run(open_and_close())


def source(folder: Path) -> None:
    with Publisher(folder, "https://source.example/"):
        pass


def destination(folder: Path) -> None:
    open_folder(folder).close()


ROLES = {"a hub": hub, "a Source": source, "a Destination": destination}


@pytest.mark.parametrize("second", ROLES)
@pytest.mark.parametrize("first", ROLES)
def test_a_folder_with_the_state_of_another_role_is_refused(
    tmp_path: Path, first: str, second: str
):
    ROLES[first](tmp_path)
    begin: Callable[[Path], None] = ROLES[second]
    if first == second:
        begin(tmp_path)
        return
    with pytest.raises(ConfigurationError) as raised:
        begin(tmp_path)
    assert str(raised.value).startswith(f"{tmp_path} contains the state of {first} (")
    assert str(raised.value).endswith(f"choose another folder for {second}")


def test_a_role_keeps_a_folder_that_two_had_before(tmp_path: Path):
    files = [tmp_path / name for name in ("hub.sqlite", "journal.sqlite3")]
    for file in files:
        file.touch()
    for file in files:
        check_role(file)
