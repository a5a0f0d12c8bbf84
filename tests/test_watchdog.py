"""A test run that ends in any way leaves no process behind."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys

import pytest

from tests import mosquitto, nats_servers, postgresql
from tests.reader import ROOT
from tests.running import children_of, wait_for_end

#: Seconds; only what hangs takes them.
PATIENCE = 60.0
#: What a run may start: processes of its own session, with children; a child that is orphaned; one
#: that is asyncio's; and one that the fork server forks. Each holds the write end of a pipe, so
#: the test sees when all have ended.
RUN = """
import asyncio, os, subprocess, sys
from tests import fork_server, watchdog

watchdog.start()
fork_server.start()
own = sys.stdout.fileno()
sleep = "import time; time.sleep(600)"
parent = f"import subprocess, sys; subprocess.run([sys.executable, '-c', {sleep!r}])"
orphan = f"import subprocess, sys; subprocess.Popen([sys.executable, '-c', {sleep!r}])"

async def main():
    subprocess.Popen([sys.executable, "-c", parent], start_new_session=True)
    subprocess.run([sys.executable, "-c", orphan], start_new_session=True)
    await asyncio.create_subprocess_exec(sys.executable, "-c", sleep)
    started = [sys.executable, "-m", "tests.started", "wait"]
    subprocess.Popen(started, stdin=own, stdout=subprocess.DEVNULL)
    print("started", flush=True)
    while True:  # a signal that arrives just before it would not end `select`
        await asyncio.sleep(0.05)

asyncio.run(main())
"""
#: A run with a worker, which has a watchdog of its own, and has started a daemon.
WORKER = """
import subprocess, sys, time
from tests import watchdog

watchdog.start()
sleep = [sys.executable, "-c", "import time; time.sleep(600)"]
daemon = f"import subprocess as s; print(s.Popen({sleep!r}, start_new_session=True, stdout=2).pid)"
command = [sys.executable, "-c", daemon]
watchdog.watch(int(subprocess.check_output(command, stderr=sys.stdout)))
print("started", flush=True)
time.sleep(600)
"""
WITH_WORKER = f"""
import subprocess, sys, time
from tests import watchdog

watchdog.start()
subprocess.Popen([sys.executable, "-c", {WORKER!r}])
time.sleep(600)
"""
CHROMIUM = """
import time
from tests import watchdog
from tests.chromium import running_chromium

watchdog.start()
with running_chromium():
    print("started", flush=True)
    time.sleep(600)
"""


def run(program: str) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        [sys.executable, "-c", program], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, cwd=ROOT
    )


@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
@pytest.mark.parametrize("program", [RUN, WITH_WORKER], ids=["alone", "with a worker"])
def test_all_that_it_started_ends_with_it(program: str, how: signal.Signals):
    with run(program) as process:
        assert process.stdout is not None
        try:
            assert process.stdout.readline() == b"started\n"
            process.send_signal(how)
            # The pipe ends when no process has it open any more.
            process.communicate(timeout=PATIENCE)
        finally:
            process.kill()


@pytest.mark.usefixtures("chromium")  # or it is skipped
def test_a_browser_ends_with_it():
    with run(CHROMIUM) as process:
        assert process.stdout is not None
        try:
            assert process.stdout.readline() == b"started\n"
            browsers = [os.pidfd_open(pid) for pid in children_of(process.pid)]
            assert len(browsers) == 2  # and the watchdog
            process.kill()
            for browser in browsers:
                wait_for_end(browser)
        finally:
            process.kill()


@pytest.mark.slow
@pytest.mark.parametrize("whom", ["group", "first"])
@pytest.mark.parametrize(
    ("program", "path", "tests"),
    [
        ("mosquitto", mosquitto.PATH, "tests/hub/mqtt"),
        ("nats-server", nats_servers.PATH, "tests/hub/jetstream/test_log.py"),
        ("prosody", None, "tests/hub/xmpp"),
        ("postgres", postgresql.PATH, "tests/gateway/test_postgresql.py"),
        ("chromium", None, "tests/hub/test_browser_page.py"),
    ],
)
def test_a_run_that_is_interrupted_leaves_no_server_and_no_browser(
    program: str, path: str | None, tests: str, whom: str
):
    if shutil.which(program, path=path) is None:
        pytest.skip(f"{program} is not installed")
    command = [sys.executable, "-m", "tests.interrupted", program, whom]
    done = subprocess.run(
        [*command, "-n", "2", "-p", "no:cacheprovider", tests],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert json.loads(done.stdout) == {"ran": True, "interrupted": True, "left": []}, done.stderr
