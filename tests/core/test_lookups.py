"""Names are looked up in threads of their own, also in a process that was forked."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

#: Seconds; only what hangs takes them.
PATIENCE = 60

FORKING = f"""
import asyncio, os, time
from rsnotify.runtime import dialing
from rsnotify.runtime.dialing import look_up

async def main():
    async with asyncio.timeout({PATIENCE}):
        return await look_up("127.0.0.1", 80)

asyncio.run(main())
while not dialing._threads._idle._value:
    time.sleep(0.01)  # until the thread waits for the next name
child = os.fork()
if child == 0:
    os._exit(0 if asyncio.run(main()) else 1)
assert asyncio.run(main())
print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="processes are not forked here")
def test_a_process_that_was_forked_after_a_lookup_looks_up_names():
    ended = subprocess.run(
        [sys.executable, "-W", "ignore::DeprecationWarning", "-c", FORKING],
        capture_output=True,
        text=True,
        timeout=3 * PATIENCE,
        check=False,
    )
    assert (ended.stdout, ended.stderr) == ("0\n", "")
