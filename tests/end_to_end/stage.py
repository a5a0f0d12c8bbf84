"""What a replay is played on: Source, hubs, broker and Destination, processes in one folder."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path

from rsnotify.runtime.processes import Process
from tests.mosquitto import Mosquitto
from tests.ports import free_port
from tests.prosody import Prosody

#: Seconds in which the Destination has to be in step after the last change.
PATIENCE = 180.0


class Stage:
    """A Source, the ways to hear of its changes, and a Destination that counts.

    Args:
        root: The folder.
        ways: What there is to hear by: "hub", which speaks WebSocket and WebSub; a hub each for
            "websocket" and "websub" alone; "mqtt", a broker, and "xmpp", a PubSub service,
            behind the hub if there is "hub".
        follow: Returns how to run the Destination, told the URL of the Source and the folder.
        nats: The URL of NATS, if all hubs are nodes that share it.
    """

    def __init__(
        self,
        root: Path,
        ways: Sequence[str],
        follow: Callable[[str, Path], list[str]],
        nats: str | None = None,
    ) -> None:
        self.root = root
        self._nats = nats
        self.source_folder = root / "source"
        self.destination = root / "destination"
        self.source_folder.mkdir()
        self.url = f"http://127.0.0.1:{free_port()}/"
        self.ways = tuple(ways)
        self.broker = Mosquitto(root / "mosquitto") if "mqtt" in ways else None
        self.service = Prosody(root / "prosody") if "xmpp" in ways else None
        self._brokers = {"mqtt": self.broker, "xmpp": self.service}
        self._hubs = {way: f"127.0.0.1:{free_port()}" for way in ways if way not in self._brokers}
        self._follow = follow(self.url, self.destination)
        self._processes: dict[str, Process] = {}
        self._follower: asyncio.subprocess.Process | None = None
        self._reading: asyncio.Task[None] | None = None
        self._news = asyncio.Condition()
        #: By which ways the Destination says it hears, the best first; none before it says so.
        self.heard_by: list[str] = []

    async def start(self) -> None:
        for way in self.ways:
            await self.revive(way)
        await self._start("source", str(self.source_folder), *self._at(self.url), *self._pushed())
        await self._processes["source"].url()
        await self.start_follow()

    def _pushed(self) -> list[str]:
        if self._nats is not None:
            return ["--hub", ",".join(f"http://{at}/" for at in self._hubs.values())]
        places = {"hub": "http://{}/", "websocket": "ws://{}/ws", "websub": "http://{}/websub"}
        hubs = [places[way].format(at) for way, at in self._hubs.items()]
        options = [word for hub in hubs for word in ("--hub", hub)]
        brokers = [broker.url for broker in self._brokers.values() if broker is not None]
        if not brokers:
            return options
        if self.service is not None:  # which has no node before the first fragment
            options += ["--heartbeat", "0.5"]
        if "hub" not in self.ways:
            return [*options, "--hub", *brokers]
        return [*options, *(word for url in (*hubs, *brokers) for word in ("--advertise", url))]

    def _at(self, url: str) -> list[str]:
        port = url.rstrip("/").rpartition(":")[2]
        return ["--base-url", url, "--port", port, "--allow-private-addresses"]

    async def _start(self, *arguments: str, name: str | None = None) -> Process:
        name = name or arguments[0]
        log = self.root / f"{name}.log"
        self._processes[name] = process = await Process.start(*arguments, log=log)
        return process

    # The ways

    async def revive(self, name: str) -> None:
        """Start a hub or the broker, and wait until it serves, or the Destination."""
        if name == "follow":
            await self.start_follow()
        elif name in self._brokers:
            broker = self._brokers[name]
            assert broker is not None
            await broker.start()
        else:
            await self._start_hub(name)

    async def _start_hub(self, name: str) -> None:
        bridges = (name == "hub" or self._nats is not None) and self.broker is not None
        settings = self.root / f"{name}.toml"
        lines = [f'mqtt_url = "{self.broker.url}"\n' if bridges else ""]
        if name == "hub" and self.service is not None:
            lines += self.service.hub_settings(self.root / "xmpp.password")
        settings.write_text("".join(lines))
        port = self._hubs[name].rpartition(":")[2]
        store = ("--store", self._nats) if self._nats else ("--data", str(self.root / name))
        where = (*store, "--config", str(settings))
        hub = ("hub", "--port", port, *where, "--allow-private-addresses")
        await (await self._start(*hub, name=name)).url()

    async def kill(self, name: str) -> None:
        if name == "follow":
            await self._end_follow(asyncio.subprocess.Process.kill)
        elif name in self._brokers:
            broker = self._brokers[name]
            assert broker is not None
            await broker.stop(signal.SIGKILL)
        else:
            await self._processes[name].kill()

    # The Destination

    async def start_follow(self) -> None:
        self.heard_by = []
        with (self.root / "follow.log").open("ab") as log:
            self._follower = await asyncio.create_subprocess_exec(
                *self._follow, stdout=asyncio.subprocess.PIPE, stderr=log, env=self._environ()
            )
        self._reading = asyncio.create_task(self._read(self._follower))

    def _environ(self) -> dict[str, str]:
        if self.service is None:
            return dict(os.environ)
        return os.environ | self.service.follower_environment()

    async def _read(self, process: asyncio.subprocess.Process) -> None:
        assert process.stdout is not None
        async for line in process.stdout:
            told = json.loads(line)
            async with self._news:
                self.heard_by = told.get("hears_by", [])
                self._news.notify_all()

    async def _end_follow(self, end: Callable[[asyncio.subprocess.Process], None]) -> None:
        if self._follower is not None and self._reading is not None:
            with suppress(ProcessLookupError):
                end(self._follower)
            await self._follower.wait()
            await self._reading

    async def hears_by(self, way: str) -> None:
        """Wait until the Destination hears of changes by a way first."""
        async with asyncio.timeout(PATIENCE), self._news:
            await self._news.wait_for(lambda: self.heard_by[:1] == [way])

    async def stop(self) -> None:
        """End all."""
        await self._end_follow(asyncio.subprocess.Process.terminate)
        for process in reversed(self._processes.values()):
            await process.stop()
        for broker in filter(None, self._brokers.values()):
            await broker.stop()

    # How it ends

    async def audit(self) -> int:
        process = await Process.start(
            *("audit", self.url, str(self.destination), "--allow-private-addresses"),
            log=self.root / "audit.log",
        )
        last = "it said nothing"  # there may be no copy yet
        async for line in process.lines():
            last = line
        print(f"audit: {last}", flush=True)
        return await process.wait()

    def difference(self) -> str:
        command = ["diff", "-r", str(self.source_folder), str(self.destination)]
        return subprocess.run(command, capture_output=True, text=True, check=False).stdout

    async def in_step(self) -> bool:
        deadline = time.monotonic() + PATIENCE
        while await self.audit() != 0 or self.difference():
            if time.monotonic() > deadline:
                return False
            await asyncio.sleep(1)
        return True
