"""Two hubs, or two nodes of one, as real processes, one of which is killed."""

from __future__ import annotations

import asyncio
from asyncio.subprocess import Process
from contextlib import AsyncExitStack
from pathlib import Path

import pytest

from tests.ports import free_port
from tests.subscriber.processes import SECONDS, running, until_reported


@pytest.mark.parametrize("between", ["nodes", "hubs"])
async def test_a_killed_hub_is_followed_by_the_other_within_seconds(
    tmp_path: Path, between: str
) -> None:
    ports = [free_port(), free_port()]
    first, second = (f"ws://127.0.0.1:{port}/ws" for port in ports)
    hubs = [("hub", "--port", port, "--data", tmp_path / str(port)) for port in ports]
    data, base = tmp_path / "data", f"http://127.0.0.1:{free_port()}/"
    data.mkdir()
    (data / "one").write_text("1")
    source = ("source", data, "--base-url", base, "--port", base.split(":")[2][:-1])
    follow = ("follow", base, tmp_path / "mirror", "--json", "--poll", 600)
    async with AsyncExitStack() as stack:

        async def serves(*arguments: object) -> Process:
            process = await stack.enter_async_context(running(*arguments))
            assert process.stdout is not None
            async with asyncio.timeout(SECONDS):
                assert b"http://" in await process.stdout.readline()
            return process

        # Each serves before the next begins, or one would begin with the lesser way.
        better, _ = [await serves(*hub) for hub in hubs]
        named = [f"{first},{second}"] if between == "nodes" else [first, second]
        await serves(*source, *(part for each in named for part in ("--hub", each)))
        follower = await stack.enter_async_context(running(*follow, "--allow-private-addresses"))
        await until_reported(follower, way=[first], resources=1, level=True)
        better.kill()
        await until_reported(follower, way=[second], push="up")
        (data / "two").write_text("2")
        await until_reported(follower, resources=2, level=True)
    assert (tmp_path / "mirror/two").read_text() == "2"
