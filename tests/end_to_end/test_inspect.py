"""`rsnotify inspect` of a running `rsnotify source`, as a user sees it."""

from __future__ import annotations

import json
import os
import pty
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.ports import free_port
from tests.publisher.helpers import SourceProcess

INSPECT = [sys.executable, "-m", "rsnotify", "inspect"]


@pytest.fixture
def url(tmp_path: Path) -> Iterator[str]:
    folder = tmp_path / "data"
    folder.mkdir()
    for number in range(3):
        (folder / f"{number}.ttl").write_text("<a> <b> <c> .")
    process = SourceProcess(folder, "--port", "0", "--hub", f"ws://127.0.0.1:{free_port()}/")
    yield process.url
    process.end()


def test_a_source_is_shown_as_a_tree(url: str):
    done = subprocess.run([*INSPECT, url], capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stderr) == (0, "")
    lines = done.stdout.splitlines()
    assert lines[0] == f"Source Description  {url}.well-known/resourcesync"
    assert any(line.endswith(f"─ Resource List  {url}resourcelist.xml") for line in lines)
    assert any("    3 resources, 39 bytes in total" in line for line in lines)
    assert "! " not in done.stdout


def test_a_source_is_shown_as_json(url: str):
    done = subprocess.run([*INSPECT, url, "--json"], capture_output=True, timeout=60, check=True)
    description = json.loads(done.stdout)
    offered, told = description["parts"]
    assert told["capability"] == "framework-notification"
    assert told["links"]
    counts = {part["capability"]: part.get("entries") for part in offered["parts"]}
    assert counts["resourcelist"] == 3
    assert counts["changelist"] == 0


def test_the_tree_has_colors_in_a_terminal(url: str):
    outside, inside = pty.openpty()
    done = subprocess.run([*INSPECT, url], stdout=inside, timeout=60)
    os.close(inside)
    assert done.returncode == 0
    assert "└─ \x1b[1m" in os.read(outside, 65_536).decode()
    os.close(outside)


def test_where_there_is_no_source_inspect_says_so_and_exits_2():
    there = f"http://127.0.0.1:{free_port()}/"
    done = subprocess.run([*INSPECT, there], capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith(f"rsnotify: {there}: ")
    assert len(done.stderr.splitlines()) == 1
