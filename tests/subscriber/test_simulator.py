"""`rsnotify follow` of a running resync-simulator 1.1.0: a Source as sloppy as real ones.

Its Change List answers 500 until the first change, has `until` but no `from`, and keeps only
the last changes; its resources answer 405 to HEAD.
"""

from __future__ import annotations

import asyncio
import json
import sys
from asyncio.subprocess import DEVNULL, PIPE
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import aiohttp

from rsnotify.format.reader import read_document
from tests.subscriber.destination import files_of
from tests.subscriber.processes import SECONDS, outcome, run, running, until_reported

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


async def contents_of(base: str) -> dict[str, bytes]:
    """Read what the simulator holds now."""
    async with aiohttp.ClientSession() as session:
        async with session.get(f"{base}/resourcelist.xml") as response:
            listed = read_document(await response.read())
        found = {}
        for resource in listed.resources:
            async with session.get(resource.uri) as response:
                found[resource.uri.removeprefix(f"{base}/")] = await response.read()
        return found


async def is_inspected_and_judged(base: str, *, resources: int) -> None:
    """See what `inspect` counts, and that `validate` misses nothing but at times a `from`."""
    inspected = await run("inspect", base, "--json")
    (capability_list,) = json.loads(inspected[1])["parts"]
    counts = {part["capability"]: part["entries"] for part in capability_list["parts"]}
    assert counts == {"resourcelist": resources, "changelist": 100}
    arguments = ("validate", f"{base}/capabilitylist.xml", "--deep", "--json")
    code, validated, _ = await run(*arguments)
    documents = json.loads(validated)["documents"]
    errors = [found["rule"] for document in documents for found in document["findings"]]
    assert errors == ["changelist-from-missing"] * code


async def test_a_running_simulator_is_followed_to_an_equal_state(
    tmp_path: Path, unused_tcp_port: int
) -> None:
    port = unused_tcp_port  # the simulator cannot choose one itself
    base, folder = f"http://127.0.0.1:{port}", tmp_path / "mirror"
    arguments = ("follow", base, folder, "--json", "--poll", 0.5)
    async with simulator(tmp_path, port) as simulated, running(*arguments) as process:
        assert simulated.stdin is not None
        assert simulated.stdout is not None
        # There is no Change List yet, so it is not level; but the baseline is there.
        await until_reported(process, resources=60, pending=0)
        simulated.stdin.write(b"begin\n")
        async with asyncio.timeout(SECONDS):
            assert await simulated.stdout.readline() == b"done\n"
        contents = await contents_of(base)
        await until_reported(process, lambda _: files_of(folder) == contents)
        audited = await run("audit", base, folder)
        assert audited[0] == 0, audited
        assert files_of(folder) == await contents_of(base)
        await is_inspected_and_judged(base, resources=len(files_of(folder)))
        process.terminate()
        assert (await outcome(process))[0] == 0
        once = await run("follow", base, folder, "--once")
        assert once[0] == 0, once
        assert files_of(folder) == await contents_of(base)
