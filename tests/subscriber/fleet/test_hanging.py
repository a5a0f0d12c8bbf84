"""A handler that never returns does not keep the process: it ends, and nothing is half-applied."""

from __future__ import annotations

import asyncio
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.subscriber.fleet.conftest import Many
from tests.subscriber.fleet.test_command import HANDLER, NOTING, Told, said, source, write
from tests.subscriber.processes import outcome, run, running

HANGING = """
import sys, threading, time


class InThread:
    def apply(self, changes):
        print("called", file=sys.stderr, flush=True)
        threading.Event().wait()


class InLoop:
    async def apply(self, changes):
        print("called", file=sys.stderr, flush=True)
        while True:
            time.sleep(1)
"""
LEFT = "rsnotify: the handler of s1 has not returned, and is abandoned; the next start repeats it"


def hanging(many: Many, handler: str) -> str:
    (many.folder / "hanging.py").write_text(HANGING)
    return source(many, "s1", f'handler = "hanging:{handler}"\nstate = "state"')


@pytest.mark.parametrize("handler", ["InThread", "InLoop"])
async def test_the_second_signal_ends_a_handler_that_hangs_in_a_thread_or_in_the_event_loop(
    many: Many, handler: str
) -> None:
    await many.start(2)
    first = source(many, "s0", 'dest = "s0"')
    file = write(many, *[first] * (handler == "InThread"), hanging(many, handler))
    async with running("follow", "--config", file, "--json") as process:
        await said(process, "called")
        if handler == "InThread":
            await Told(process).until(lambda told: told.in_step() == {"s0"})
        process.terminate()
        process.send_signal(signal.SIGINT)  # two of one kind may arrive as one
        code, _, errors = await outcome(process)
    assert (code, errors.splitlines()[-1]) == (1, LEFT)
    (many.folder / "noting.py").write_text(HANDLER)
    file = write(many, first, source(many, "s1", f'{NOTING}state = "state"'))
    assert (await run("follow", "--config", file, "--once"))[0] == 0
    noted = sorted((many.folder / "noted").read_text().splitlines())
    assert noted == ["updated r0", "updated r1", "updated r2"]
    assert many.equal("s0")


PROGRAM = """
import asyncio, os, signal, threading
from rsnotify.runtime.command_line import forced_shutdown, run

async def main(stop):
    os.kill(os.getpid(), signal.SIGTERM)
    await stop.wait()
    threading.Event().wait()

run(main, forced_shutdown(lambda: "left behind", 0.01))
"""


async def test_a_process_that_hangs_ends_after_a_while_without_a_second_signal(
    tmp_path: Path,
) -> None:
    command = [sys.executable, "-c", PROGRAM]
    done = await asyncio.to_thread(
        subprocess.run, command, capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stderr) == (1, "rsnotify: left behind\n")
