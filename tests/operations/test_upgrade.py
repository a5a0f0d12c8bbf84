"""States that an older version has left are used by this one; see `upgrades/make.sh`."""

from __future__ import annotations

import json
import sqlite3
import tarfile
from contextlib import closing
from pathlib import Path

import pytest

from tests.archives import extract
from tests.operations.site import Site
from tests.subscriber.processes import outcome, rsnotify

STATES = Path(__file__).parent / "upgrades/9299f855.tar.xz"
FILES = {"hub": "hub.sqlite", "source": "journal.sqlite3"}


@pytest.fixture
def old(tmp_path: Path) -> Site:
    """The states of version 0.1.0, where the Destination lacks the last change."""
    with tarfile.open(STATES) as archive:
        extract(archive, tmp_path)
    site = Site(tmp_path)
    ports = {b":28000": site.url, b":28080": site.hub_url}
    for path in tmp_path.rglob("*"):
        if path.is_file():
            content = path.read_bytes()
            for port, url in ports.items():
                content = content.replace(port, b":" + url.rstrip("/").rpartition(":")[2].encode())
            path.write_bytes(content)
    return site


async def test_a_source_a_hub_and_a_destination_continue_from_the_states_of_an_older_version(
    old: Site,
) -> None:
    assert (old.root / "copy/d.txt").read_text() == "d, first\n"
    # The lease would have ended.
    with closing(sqlite3.connect(old.root / "hub/hub.sqlite")) as database, database:
        ((topic,),) = database.execute("SELECT topic FROM subscription").fetchall()
        database.execute("UPDATE subscription SET expires = expires * 2")
    async with old.hub(), old.source():
        old.write("e.txt", "changed since")
        await old.caught_up(old.url, "copy")
        code, output, errors = await outcome(
            await rsnotify("hub", "subscriptions", "--url", old.hub_url, "--json")
        )
        assert code == 0, errors
        (after,) = json.loads(output)["subscriptions"]
        assert after["topic"] == topic


@pytest.mark.parametrize("role", ["hub", "source"])
async def test_the_state_of_a_later_version_is_refused(tmp_path: Path, role: str) -> None:
    with closing(sqlite3.connect(tmp_path / FILES[role])) as database:
        database.execute("PRAGMA user_version = 99")
    (tmp_path / "data").mkdir()
    arguments = {"hub": (), "source": (tmp_path / "data", "--base-url", "http://127.0.0.1:8000/")}
    process = await rsnotify(role, *arguments[role], "--port", "0", "--data", tmp_path)
    code, _, errors = await outcome(process)
    assert code == 2
    assert str(tmp_path / FILES[role]) in errors
    assert "later version of rsnotify" in errors
    assert "restore a backup" in errors
