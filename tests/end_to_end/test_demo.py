"""`rsnotify demo` is the first thing a new user sees."""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys

import pytest

from tests.running import Running, children_of, wait_for_end

COMMAND = [sys.executable, "-m", "rsnotify", "demo"]
#: A line after a few seconds: what changed is applied, and how late that is.
GOES_ON = re.compile(
    r"changes ([6-9]\d|[\d,]{3,}) +copy ([1-9][\d,]*) +.*flush [\d.]+ ms +"
    r"lag half within [\d.,]+ ms, 99 % within [\d.,]+ ms"
)


def test_the_demo_tells_how_it_goes_and_audits_when_it_is_interrupted():
    demo = Running(COMMAND, {**os.environ, "PYTHONUNBUFFERED": "1"})
    try:
        demo.says(GOES_ON)
        demo.ask(signal.SIGINT)
        code = demo.ends()
    finally:
        demo.stop()
        demo.show()
    assert code == 0
    told = [
        tuple(int(number.replace(",", "")) for number in match.groups())
        for match in GOES_ON.finditer(demo.output())
    ]
    assert all(applied <= changes for changes, applied in told)
    assert re.search("^in step", demo.output(), re.MULTILINE)


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux signals the death of a parent")
def test_a_demo_that_is_killed_leaves_no_process_behind():
    demo = Running(COMMAND, {**os.environ, "PYTHONUNBUFFERED": "1"})
    try:
        demo.says(GOES_ON)
        children = [os.pidfd_open(pid) for pid in children_of(demo.pid)]
        assert len(children) == 3
        demo.ask(signal.SIGKILL)
        for child in children:
            wait_for_end(child)
    finally:
        demo.stop()
        demo.show()


def test_the_demo_ends_by_itself_and_its_audit_says_in_step():
    run = subprocess.run(
        [*COMMAND, "--seconds", "1"], capture_output=True, text=True, timeout=240, check=False
    )
    assert run.returncode == 0, run.stdout + run.stderr
    assert re.search("^in step", run.stdout, re.MULTILINE)
    command = "rsnotify" if shutil.which("rsnotify") else f"{sys.executable} -m rsnotify"
    assert run.stdout.splitlines()[-1].strip().startswith(f"{command} follow")  # to try next
    assert run.stderr == ""
