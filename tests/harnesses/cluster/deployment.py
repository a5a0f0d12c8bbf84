"""The processes: NATS servers, nodes of a hub, a broker, a Source and a Destination."""

from __future__ import annotations

import asyncio
import shutil
import subprocess
import time
from collections.abc import AsyncIterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from pathlib import Path
from signal import SIGKILL, SIGTERM, Signals
from typing import Any

import aiohttp

from rsnotify.runtime.processes import Process
from rsnotify.runtime.tasks import running
from tests.end_to_end.counting import counting, doubles
from tests.harnesses.torture.parts import Disk, Part, false_clocks
from tests.harnesses.torture.services import installed
from tests.hub.helpers import Client
from tests.mosquitto import Mosquitto
from tests.nats_servers import NatsCluster, NatsServer
from tests.ports import free_port
from tests.waiting import PATIENCE, until

NODES = ("hub1", "hub2", "hub3")
SERVERS = ("nats1", "nats2", "nats3")
#: Seconds between two requests of what may not serve yet.
_PAUSE = 0.1
#: In nanoseconds.
_SECOND = 1_000_000_000
_LOST = (aiohttp.ClientError, OSError, TimeoutError)
_HUB = "retry_seconds = 0.5\nmax_retry_seconds = 2.0\n"


class Monitored(NatsServer):
    """A server of a cluster, with its monitoring port."""

    def __init__(self, folder: Path, name: str, routes: list[int], settings: str = "") -> None:
        self.monitoring = free_port()
        self.folder = folder
        super().__init__(
            folder, name, routes, f"http: 127.0.0.1:{self.monitoring}\nmax_payload: 8MB\n{settings}"
        )


def nats_servers(root: Path, names: tuple[str, ...] = SERVERS) -> dict[str, Monitored]:
    """Return the servers of a cluster, which have not been started."""
    ports = [free_port() for _ in names]
    return {
        name: Monitored(root / name, name, [ports[n], *ports[:n], *ports[n + 1 :]])
        for n, name in enumerate(names)
    }


def _leader(group: dict[str, Any]) -> str | None:
    """Return the leader of a stream, unless it has lost the others and does not know it yet."""
    replicas = group.get("replicas", ())
    is_led = any(each["current"] and each["active"] < _SECOND for each in replicas)
    leader = group.get("leader")
    return leader if leader in SERVERS and is_led else None


class Deployment:
    """Everything that takes part.

    Attributes:
        down: When each hub could not answer, because of a fault of its own.
    """

    def __init__(self, root: Path, servers: dict[str, Monitored], prefix: str = "rsnotify") -> None:
        self.root = root
        self.servers = servers
        self.nats = NatsCluster(list(servers.values()))
        self.broker = Mosquitto(root / "mosquitto") if "mosquitto" in installed() else None
        self.hubs = {name: f"http://127.0.0.1:{free_port()}/" for name in NODES}
        self.store = f"{self.nats.url}?prefix={prefix}"
        self.parts: dict[str, Part] = {}
        self.down: dict[str, list[tuple[float, float]]] = {name: [] for name in NODES}
        self.source_folder = root / "source"
        self.destination = root / "destination"
        self.url = f"http://127.0.0.1:{free_port()}/"
        self._session: aiohttp.ClientSession | None = None

    @property
    def session(self) -> aiohttp.ClientSession:
        assert self._session is not None
        return self._session

    # Its beginning and its end

    @asynccontextmanager
    async def running(self, environment: Mapping[str, str]) -> AsyncIterator[None]:
        """Run all, the hubs with these variables, within the context."""
        async with AsyncExitStack() as stack:
            self._session = await stack.enter_async_context(aiohttp.ClientSession())
            if self.broker is not None:
                await stack.enter_async_context(self.broker)
            stack.callback(self.nats.stop)
            await asyncio.to_thread(self.nats.start)
            for name in NODES:
                self._hub(name)
                self.set_environment(name, environment)
                await self._begin(stack, name)
            await asyncio.gather(*(self.until_ready(name) for name in NODES))
            await self.until_shared()
            self.source_folder.mkdir()
            (self.source_folder / "first").write_text("first")
            self._part(
                "source",
                *("rsnotify", "source", str(self.source_folder), "--base-url", self.url),
                *("--port", self.url.split(":")[2].strip("/"), "--allow-private-addresses"),
                *("--hub", ",".join(self.hubs.values())),
            )
            await self._begin(stack, "source")
            await self._until_200(self.url + "capabilitylist.xml")
            follow = counting("--via", "websocket")(self.url, self.destination)
            self._part("destination", "tests.end_to_end.counting", *follow[2:])
            await self._begin(stack, "destination")
            yield

    async def _begin(self, stack: AsyncExitStack, name: str) -> None:
        await stack.enter_async_context(running(self.parts[name].run()))

    def _part(self, name: str, *command: str) -> None:
        disk = Disk(self.root / name)
        self.parts[name] = Part(name, list(command), self.root, disk, lambda line: None)

    def _hub(self, name: str) -> None:
        settings = self.root / f"{name}.toml"
        lines = _HUB + (f'mqtt_url = "{self.broker.url}"\n' if self.broker is not None else "")
        settings.write_text(lines)
        self._part(
            name,
            *("rsnotify", "hub", "--port", self.hubs[name].split(":")[2].strip("/")),
            *("--store", self.store, "--config", str(settings), "--allow-private-addresses"),
        )

    def set_environment(self, name: str, environment: Mapping[str, str]) -> None:
        """Give a hub other variables from its next start on."""
        self.parts[name].environment = {**false_clocks(), **environment}

    # What is waited for

    async def _until_200(self, url: str) -> None:
        async def is_200() -> bool:
            if await self._status(url) == 200:
                return True
            await asyncio.sleep(_PAUSE)
            return False

        await until(is_200)

    async def _status(self, url: str) -> int | None:
        with suppress(*_LOST):
            async with asyncio.timeout(5), self.session.get(url) as response:
                return response.status
        return None

    async def until_ready(self, name: str) -> None:
        await self._until_200(self.hubs[name] + "readyz")

    async def until_shared(self) -> None:
        """Wait until all shards have owners, and each node has some."""
        await until(self._is_shared)

    async def _is_shared(self) -> bool:
        with suppress(*_LOST, AssertionError):
            async with asyncio.timeout(5):
                found = await Client(self.hubs["hub1"], self.session).admin("GET", "nodes")
                counts = [row["shards"] for row in found["rows"] if row["alive"]]
                return found["free"] == 0 and len(counts) == len(NODES) and all(counts)
        return False

    async def until_healthy(self, name: str) -> None:
        """Wait until a NATS server has all that the others have."""
        await self._until_200(f"http://127.0.0.1:{self.servers[name].monitoring}/healthz")

    async def until_led(self) -> str:
        """Wait until the stream of the log has a leader, and return that NATS server."""
        while (leader := await self.leader()) is None:
            await until(self.leader)
        return leader

    async def leader(self) -> str | None:
        """Return the NATS server that leads the stream of the log; None while there is none."""
        for server in self.servers.values():
            if server.runs and (found := await self._leader_by(server)) is not None:
                return found
        return None

    async def _leader_by(self, server: Monitored) -> str | None:
        query = "accounts=true&streams=true"
        with suppress(*_LOST):
            async with (
                asyncio.timeout(0.5),
                self.session.get(f"http://127.0.0.1:{server.monitoring}/jsz?{query}") as response,
            ):
                found = await response.json()
                for account in found.get("account_details", ()):
                    for stream in account.get("stream_detail", ()):
                        if stream["name"].endswith("-log"):
                            return _leader(stream.get("cluster", {}))
        return None

    # What is done to it

    async def end_hub(self, name: str, seconds: float, how: Signals) -> None:
        """End a hub, start it again after some seconds, and wait until it serves."""
        began = time.monotonic()
        await self.parts[name].end_for(seconds, how)
        await self.until_ready(name)
        self.down[name].append((began, time.monotonic()))

    async def kill_meanwhile(self, name: str) -> None:
        """Kill a hub that cannot start for a while, and ends each time that it is started."""
        self.parts[name].excused = True
        await self.end_hub(name, 0.5, SIGKILL)
        self.parts[name].excused = False

    async def suspend_hub(self, name: str, seconds: float) -> None:
        began = time.monotonic()
        await self.parts[name].stop_for(seconds)
        await self.until_ready(name)
        self.down[name].append((began, time.monotonic()))

    async def stop_server(self, name: str, how: Signals = SIGKILL) -> None:
        await asyncio.to_thread(self.servers[name].stop, how)

    async def restart_server(self, name: str) -> None:
        """Restart a NATS server in order, and wait until it has what the others have."""
        await self.stop_server(name, SIGTERM)
        self.servers[name].start()
        await self.until_healthy(name)

    def save_store(self, name: str) -> None:
        """Keep a copy of what a NATS server that does not run has stored."""
        folder = self.servers[name].folder
        shutil.copytree(folder / "jetstream", folder / "old")

    def restore_store(self, name: str) -> None:
        folder = self.servers[name].folder
        shutil.rmtree(folder / "jetstream")
        shutil.copytree(folder / "old", folder / "jetstream")

    # How it ends

    async def subscriptions(self) -> list[dict[str, Any]]:
        client = Client(self.hubs["hub1"], self.session)
        return await client.subscriptions(
            lambda rows: all(row["behind"] == 0 for row in rows), limit="1000"
        )

    async def in_step(self) -> str:
        """Wait until the Destination equals the Source; return what differs at the end."""
        end = time.monotonic() + PATIENCE
        while True:
            command = ["diff", "-r", str(self.source_folder), str(self.destination)]
            found = await asyncio.to_thread(
                subprocess.run, command, capture_output=True, text=True, check=False
            )
            if not found.stdout + found.stderr:
                break
            if time.monotonic() > end:
                return (found.stdout + found.stderr)[:2_000]
            await asyncio.sleep(1)
        process = await Process.start(
            *("audit", self.url, str(self.destination), "--allow-private-addresses"),
            log=self.root / "audit.log",
        )
        said = [line async for line in process.lines()]
        if await process.wait() != 0:
            return f"the audit says: {' / '.join(said)}"
        twice = await asyncio.to_thread(doubles, self.destination)
        return f"changes had their effect twice: {twice[:5]}" if twice else ""
