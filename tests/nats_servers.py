"""Real nats-servers on loopback, one or a cluster, which can crash, stop and come back."""

from __future__ import annotations

import asyncio
import os
import re
import shutil
import signal
import subprocess
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from functools import cache
from pathlib import Path

import nats
import pytest
from nats.errors import Error as NatsError

from rsnotify.runtime.processes import free_port

PATIENCE = 60
#: Where Debian keeps servers, too.
PATH = f"{os.environ['PATH']}:/usr/sbin"


class NatsServer:
    """A server with JetStream.

    Args:
        folder: Where it keeps everything.
        name: Its name in the cluster.
        routes: The routes of the cluster, its own first; none for a server alone.
        settings: More lines for its configuration.
    """

    def __init__(
        self, folder: Path, name: str = "one", routes: Sequence[int] = (), settings: str = ""
    ) -> None:
        if shutil.which("nats-server", path=PATH) is None:
            pytest.skip("nats-server is not installed")
        self.port = free_port()
        self.name = name
        self._folder = folder
        self._process: asyncio.subprocess.Process | None = None
        folder.mkdir(parents=True, exist_ok=True)
        # Before 2.10 it cannot be configured how often the server flushes.
        flush = "sync_interval: always" if _version() >= (2, 10) else ""
        lines = [
            f"server_name: {name}",
            f"listen: 127.0.0.1:{self.port}",
            f"jetstream {{ store_dir: '{folder}', {flush} }}",
            settings,
        ]
        if routes:
            others = ", ".join(f"nats://127.0.0.1:{port}" for port in routes[1:])
            lines.append(
                f"cluster {{ name: test, listen: 127.0.0.1:{routes[0]}, routes: [{others}] }}"
            )
        (folder / "server.conf").write_text("\n".join(lines) + "\n")

    @property
    def url(self) -> str:
        return f"nats://127.0.0.1:{self.port}"

    @property
    def log(self) -> str:
        path = self._folder / "log"
        return path.read_text(errors="replace") if path.exists() else ""

    async def start(self) -> None:
        """Start it; it may not be ready yet."""
        with (self._folder / "log").open("ab") as log:
            self._process = await asyncio.create_subprocess_exec(
                *("nats-server", "-c", self._folder / "server.conf"),
                stdout=log,
                stderr=log,
                env={"PATH": PATH},
            )

    async def stop(self, how: signal.Signals = signal.SIGKILL) -> None:
        """End it: as a crash does, or in order."""
        if self._process is not None and self._process.returncode is None:
            self._process.send_signal(how)
            self._process.send_signal(signal.SIGCONT)
            async with asyncio.timeout(PATIENCE):
                await self._process.wait()

    def pause(self) -> None:
        """Make it unresponsive from now on."""
        assert self._process is not None
        self._process.send_signal(signal.SIGSTOP)
        os.waitid(os.P_PID, self._process.pid, os.WSTOPPED | os.WNOWAIT)

    def resume(self) -> None:
        """Let it go on."""
        assert self._process is not None
        self._process.send_signal(signal.SIGCONT)


class NatsCluster:
    """Some servers, by their names.

    Args:
        servers: The servers.
    """

    def __init__(self, servers: Sequence[NatsServer]) -> None:
        self.servers = {server.name: server for server in servers}

    @property
    def url(self) -> str:
        return "nats://" + ",".join(f"127.0.0.1:{one.port}" for one in self.servers.values())

    async def start(self) -> None:
        """Start all servers, and wait until JetStream answers."""
        for server in self.servers.values():
            await server.start()
        await self.ready()

    async def ready(self) -> None:
        """Wait until JetStream answers, as soon as its servers have elected a leader."""
        async with asyncio.timeout(PATIENCE):
            while True:
                if await self._answers():
                    return
                await asyncio.sleep(0.05)

    async def _answers(self) -> bool:
        try:
            client = await nats.connect(
                [server.url for server in self.servers.values()],
                allow_reconnect=False,
                connect_timeout=1,
                error_cb=_ignore,
            )
        except (OSError, NatsError, TimeoutError):
            return False
        try:
            await client.jetstream(timeout=1).account_info()
        except (NatsError, TimeoutError):
            return False
        finally:
            await client.close()
        return True

    async def stop(self) -> None:
        for server in self.servers.values():
            await server.stop()


async def _ignore(error: Exception) -> None:
    pass


@asynccontextmanager
async def running_nats(
    folder: Path, *, servers: int = 1, settings: str = ""
) -> AsyncIterator[NatsCluster]:
    """Run one server, or a cluster; skip the test where nats-server is not installed."""
    ports = [free_port() for _ in range(servers)] if servers > 1 else []
    cluster = NatsCluster(
        [
            NatsServer(
                folder / f"n{number}",
                f"n{number}",
                [ports[number], *ports[:number], *ports[number + 1 :]] if ports else (),
                settings,
            )
            for number in range(servers)
        ]
    )
    try:
        await cluster.start()
        yield cluster
    finally:
        await cluster.stop()


@cache
def _version() -> tuple[int, ...]:
    printed = subprocess.run(
        ["nats-server", "--version"], env={"PATH": PATH}, capture_output=True, text=True, check=True
    ).stdout
    found = re.search(r"(\d+)\.(\d+)", printed)
    assert found is not None, printed
    return tuple(map(int, found.groups()))
