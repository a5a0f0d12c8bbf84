"""`rsnotify follow` of a running resync-simulator 1.1.0: a Source as sloppy as real ones.

Its Change List answers 500 until the first change, has `until` but no `from`, and keeps only
the last changes; its resources answer 405 to HEAD.
"""

from __future__ import annotations

import asyncio
import socket
import sys
from asyncio.subprocess import DEVNULL, PIPE
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

CHANGES = 150

CONFIGURATION = f"""
source:
    name: a sloppy Source
    number_of_resources: 60
    change_delay: 0.02
    event_types: [create, update, delete]
    average_payload: 400
    max_events: {CHANGES}
    stats_interval: 1000
resource_list_builder:
    class: DynamicResourceListBuilder
    uri_path: resourcelist.xml
changememory:
    class: DynamicChangeList
    uri_path: changelist.xml
    max_changes: 100
"""

LOGGING = "version: 1\nroot: {level: ERROR}\n"

# Since Python 3.11 `random.sample` takes only a sequence. When its changes are done, the
# simulator would end; it has to stay until everything is read.
SHIM = """
import random, runpy, shutil, sys, time
from simulator.source import Source
sample, changes = random.sample, Source.simulate_changes
random.sample = lambda of, k: sample(of if hasattr(of, "__getitem__") else sorted(of), k)
def simulate_changes(self):
    input()
    changes(self)
    print("done", flush=True)
    input()
Source.simulate_changes = simulate_changes
sys.argv[0] = shutil.which("resync-simulator", path=sys.argv.pop(1))
runpy.run_path(sys.argv[0], run_name="__main__")
"""


@pytest.fixture
def port() -> Iterator[int]:
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        yield sock.getsockname()[1]


@asynccontextmanager
async def simulator(folder: Path, port: int) -> AsyncIterator[asyncio.subprocess.Process]:
    (folder / "configuration.yaml").write_text(CONFIGURATION)
    (folder / "logging.yaml").write_text(LOGGING)
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-c", SHIM, str(Path(sys.executable).parent)),
        *("-c", "configuration.yaml", "-l", "logging.yaml", "-p", str(port)),
        *("-b", f"http://127.0.0.1:{port}"),
        cwd=folder,
        stdin=PIPE,
        stdout=PIPE,
        stderr=DEVNULL,
    )
    try:
        yield process
    finally:
        process.kill()
        await process.communicate()
