"""A suspended hub process, and another hub that is started on its folder meanwhile."""

from __future__ import annotations

import asyncio
import signal
from pathlib import Path

from tests.hub.helpers import PATIENCE, fragment, heard
from tests.hub.processes import COMMAND, hub_process


async def test_a_suspended_hub_keeps_its_folder_and_continues(tmp_path: Path):
    async with hub_process(tmp_path) as (hub, process):
        await hub.accepted(fragment(0, 1))
        process.send_signal(signal.SIGSTOP)
        other = await asyncio.create_subprocess_exec(
            *(*COMMAND, "--port", "0", "--data", str(tmp_path)), stderr=asyncio.subprocess.PIPE
        )
        async with asyncio.timeout(PATIENCE):
            _, errors = await other.communicate()
        assert other.returncode == 2
        assert f"another hub is using the folder {tmp_path}" in " ".join(errors.decode().split())
        process.send_signal(signal.SIGCONT)
        await hub.accepted(fragment(1, 2))
        socket = await hub.listen(since=0)
        assert await heard(socket, 2) == [1, 2]
        await socket.close()
