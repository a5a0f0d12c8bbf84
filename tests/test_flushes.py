"""What a part of rsnotify reports as durable was flushed before, as the system calls show.

That nothing more than this is needed after a power failure, only a disk that loses the rest can
show; this only sees that each flush is there.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.flushing import __file__ as program

ROOT = Path(__file__).parents[1]
_CALLS = "fsync,fdatasync,readlink,readlinkat,?rename,?renameat,?renameat2"
_BEGUN = re.compile(r"(\d+) +(.*) <unfinished \.\.\.>")
_RESUMED = re.compile(r"(\d+) +<\.\.\. \w+ resumed>(.*)")
_FLUSH = re.compile(r"f(?:data)?sync\(\d+<(.*)>\) += 0")
_RENAME = re.compile(r'rename\w*\(.*"(.*)"(?:, \w+)?\) += 0')
_MARK = re.compile(r'readlink.*"(begin|end) (.*)", ')

Work = dict[str, list[str]]


@pytest.fixture(scope="module")
def work(tmp_path_factory: pytest.TempPathFactory) -> Work:
    """What was flushed, and renamed, during each piece of work of `tests/flushing.py`."""
    folder = tmp_path_factory.mktemp("flushes")
    trace = folder / "trace"
    # SQLite flushes by fdatasync, and everything else by fsync: who does not wait for that is late.
    slow = "inject=fsync:delay_exit=20000"
    options = ["-f", "-y", "-qq", "-s", "4096", "-e", f"trace={_CALLS}", "-e", slow]
    command = ["strace", *options, "-o", str(trace)]
    if shutil.which("strace") is None:
        pytest.skip("strace is missing")
    if subprocess.run([*command, "true"], capture_output=True, check=False).returncode:
        pytest.skip("strace may not trace here")
    subprocess.run([*command, sys.executable, program, str(folder)], cwd=ROOT, check=True)
    return _read(trace.read_text(), f"{os.path.realpath(folder)}/")


def _read(trace: str, folder: str) -> Work:
    found: Work = {}
    current: list[str] = []
    begun: dict[str, str] = {}
    for line in trace.splitlines():
        if (match := _BEGUN.fullmatch(line)) is not None:
            begun[match[1]] = match[2]
            continue
        if (match := _RESUMED.fullmatch(line)) is not None:
            line = begun.pop(match[1]) + match[2]
        if (match := _MARK.search(line)) is not None:
            current = found.setdefault(match[2], []) if match[1] == "begin" else []
        elif (match := _FLUSH.search(line)) is not None:
            current.append("flush " + match[1].removeprefix(folder))
        elif (match := _RENAME.search(line)) is not None:
            current.append("rename to " + match[1].removeprefix(folder))
    return found


@pytest.mark.parametrize("name", ["record 0", "record 1", "record after that"])
def test_a_change_is_flushed_before_recording_it_returns(work: Work, name: str):
    assert "flush source/journal.sqlite3-wal" in work[name]


def test_a_document_is_flushed_before_its_rename_and_its_folder_after_it(work: Work):
    content, *rest = work["write a document"]
    assert content.startswith("flush documents/.document.xml.")
    assert rest == ["rename to documents/document.xml", "flush documents"]


@pytest.mark.parametrize("name", ["publish 0", "publish 1"])
def test_a_fragment_is_flushed_before_a_hub_acknowledges_it(work: Work, name: str):
    assert "flush hub/hub.sqlite-wal" in work[name]


def test_an_export_is_flushed_before_it_counts_as_written(work: Work):
    assert "flush hub/export.jsonl" in work["export"]


def test_a_backup_is_flushed_before_it_counts_as_made(work: Work):
    steps = work["back up"]
    assert steps[-3:] == [
        "flush backup/state.sqlite.partial",
        "rename to backup/state.sqlite",
        "flush backup",
    ]


def test_t_is_flushed_after_the_record_of_what_is_about_to_be_applied(work: Work):
    flushed = {"flush state", "flush state/applying", "flush state/state.sqlite-wal"}
    assert set(work["commit 0"]) == flushed
    assert work["commit 1"] == ["flush state/also-applying", "flush state/state.sqlite-wal"]
