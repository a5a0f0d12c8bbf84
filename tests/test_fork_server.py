"""A process that the fork server starts is like one that has an interpreter of its own."""

from __future__ import annotations

import asyncio
import gc
import json
import os
import pty
import resource
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any

import pytest

from tests import fork_server
from tests.running import PATIENCE, wait_for_end

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="only Linux has a fork server")
STARTED = [sys.executable, "-m", "tests.started"]


def is_forked(pid: int) -> bool:
    return b"tests.fork_server" in Path(f"/proc/{pid}/cmdline").read_bytes()


@contextmanager
def at_most_files(number: int) -> Iterator[None]:
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (number, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, before)


def outcome(process: subprocess.Popen[str]) -> tuple[Any, Any, int | None, str]:
    """Return what a process prints of itself and of its number, and how it ends."""
    with process:
        output, errors = process.communicate(timeout=PATIENCE)
    facts, own = map(json.loads, output.splitlines())
    assert own[0] == process.pid
    return facts, own, process.returncode, errors.rpartition("\n  File")[2].partition("\n")[2]


@pytest.mark.parametrize("words", [[], ["fail"], ["text"], ["late"]], ids=" ".join)
@pytest.mark.parametrize(
    "asked",
    [
        {},
        {"start_new_session": True},
        {"env": {**os.environ, "RSNOTIFY_PORT": "1", "PYTHONUNBUFFERED": ""}},
        {"env": {**os.environ, "PYTHONUNBUFFERED": "1"}},
        {"stdin": subprocess.DEVNULL},
    ],
    ids=["as it is", "session", "variable", "unbuffered", "no input"],
)
def test_it_sees_the_same(asked: dict[str, Any], words: list[str]):
    seen = []
    gc.collect()  # sockets of the tests before, which stay open until then
    few = max(map(int, os.listdir("/proc/self/fd"))) + 100
    for how in (nullcontext(), fork_server.own_interpreter()):
        with how, at_most_files(few):
            pipe = subprocess.PIPE
            command = [*STARTED, *words]
            seen.append(
                outcome(subprocess.Popen(command, stdout=pipe, stderr=pipe, text=True, **asked))
            )
    forked, own = seen
    assert {
        fact: (forked[0][fact], own[0][fact]) for fact in own[0] if forked[0][fact] != own[0][fact]
    } == {}
    assert forked[2:] == own[2:]
    assert forked[1][1] != own[1][1], "both have the same random numbers"


def test_it_has_the_folder_and_the_standard_files_of_its_starter(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
):
    (tmp_path / "tests").mkdir()
    (tmp_path / "tests" / "started.py").write_text("import os\nprint(os.getcwd(), __file__)\n")
    subprocess.run(STARTED, cwd=tmp_path, check=True, timeout=PATIENCE)
    assert capfd.readouterr() == (f"{tmp_path} {tmp_path}/tests/started.py\n", "")


def test_a_terminal_is_one():
    main, other = pty.openpty()
    lines = []
    for how in (nullcontext(), fork_server.own_interpreter()):
        with how:
            subprocess.run(STARTED, stdin=other, stdout=other, stderr=other, timeout=PATIENCE)
        lines.append("")
        while lines[-1].count("\n") < 2:  # both lines: the system may hand on one after the other
            lines[-1] += os.read(main, 100_000).decode()
    os.close(main)
    os.close(other)
    streams = [json.loads(line.splitlines()[0])["streams"] for line in lines]
    assert streams[0] == streams[1]
    assert all(stream["tty"] for stream in streams[0])


@pytest.mark.parametrize("how", [signal.SIGTERM, signal.SIGINT, signal.SIGKILL])
async def test_it_is_ended_by_a_signal(how: signal.Signals):
    process = await asyncio.create_subprocess_exec(
        *STARTED, "wait", stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.DEVNULL
    )
    await process.stdout.readline()
    assert is_forked(process.pid)
    process.send_signal(how)
    assert await process.wait() == -how


def test_it_is_a_process_of_its_own_if_a_variable_differs_that_an_import_may_read():
    for asked, forked in (({}, True), ({"TERM": "other"}, False), ({"RSNOTIFY_PORT": "1"}, True)):
        with subprocess.Popen(
            [*STARTED, "wait"], stdout=subprocess.PIPE, env={**os.environ, **asked}
        ) as process:
            process.stdout.readline()
            assert is_forked(process.pid) == forked
            process.kill()


PARENT = """
import os, subprocess, sys
from rsnotify.runtime import processes
from tests import fork_server

fork_server.start()
command = [sys.executable, "-m", "tests.started", "wait"]
prepared = processes._end_with_parent
with subprocess.Popen(command, stdout=subprocess.PIPE, preexec_fn=prepared) as process:
    process.stdout.readline()
    print(process.pid, flush=True)
    process.wait()
"""


def test_it_ends_with_its_parent_if_that_was_asked_for():
    command = [sys.executable, "-c", PARENT]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, cwd=fork_server.ROOT, start_new_session=True
    ) as parent:
        pid = int(parent.stdout.readline())
        assert is_forked(pid)
        child = os.pidfd_open(pid)
        parent.kill()
        wait_for_end(child)
