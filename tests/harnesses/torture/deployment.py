"""What takes part, by a seed: processes, services, and the faulty paths between them."""

from __future__ import annotations

from collections.abc import Callable, Set
from contextlib import ExitStack
from pathlib import Path
from random import Random
from typing import Protocol

from tests.harnesses.torture import services
from tests.harnesses.torture.faulty_path import FaultyPath
from tests.harnesses.torture.ledger import LedgerCopy
from tests.harnesses.torture.parts import Disk, Part
from tests.harnesses.torture.services import Blocking, Service
from tests.harnesses.torture.truth import Held, held_by
from tests.mosquitto import Mosquitto
from tests.nats_servers import NatsServer
from tests.ports import free_port
from tests.postgresql import running_postgresql
from tests.prosody import Prosody

#: How Destinations receive changes; the last one is a fleet whose state is in PostgreSQL.
WAYS = ("websocket", "websub", "mqtt", "xmpp", "poll", "database")
#: What else they need.
_NEEDS = {"mqtt": "mosquitto", "xmpp": "prosody", "database": "postgresql"}
#: How many of them take part in a deployment.
_SOME = 4
_HUB = """
retry_seconds = 0.1
max_retry_seconds = 1.0
callback_seconds = 2.0
min_lease_seconds = 1
websocket_ping_seconds = 0.7
log_bytes = {log_bytes}
"""
_FLEET = """
[[source]]
name = "all"
url = "{url}"
handler = "tests.harnesses.torture.ledger:Ledger"
postgresql = "{conninfo}"
via = "{via}"
poll = 0.5
allow_private_addresses = true
"""
#: Called with the name of a Destination and each line of its standard output.
OnStatus = Callable[[str, bytes], None]


class Copy(Protocol):
    async def held(self) -> Held | None:
        """Return what it holds; None if it cannot be read now."""

    async def doubles(self) -> list[str]:
        """Return in sentences which changes had their effect twice."""


class FolderCopy:
    """The copy of a mirror, of which each change may be applied twice."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    async def held(self) -> Held:
        return held_by(self.folder)

    async def doubles(self) -> list[str]:
        return []


class Deployment:
    """Everything that takes part."""

    def __init__(
        self,
        root: Path,
        random: Random,
        rate: float,
        on_source: Callable[[bytes], None],
        on_status: OnStatus,
        *,
        everything: bool,
    ) -> None:
        self._root = root
        self._random = random
        self.parts: dict[str, Part] = {}
        self.services: dict[str, Service] = {}
        self.paths: dict[str, FaultyPath] = {}
        self.copies: dict[str, Copy] = {}
        self.closing = ExitStack()
        self._on_status = on_status
        there = services.installed()
        ways = [way for way in WAYS if way not in _NEEDS or _NEEDS[way] in there]
        if not everything:
            ways = random.sample(ways, _SOME)
        source = free_port()
        self.url = f"http://127.0.0.1:{self._path('read', source)}/"
        self._add_hub(
            {_NEEDS[way] for way in ways if way in _NEEDS},
            nats="nats" in there and random.random() < 0.5,
        )
        self._add_source(source, rate, on_source)
        for way in sorted(ways):
            self._add_destination(way)

    def _path(self, name: str, target: int, *, aware: bool = True) -> int:
        path = FaultyPath(name, target, Random(self._random.random()), aware=aware)
        self.paths[name] = path
        return path.port

    def _part(self, name: str, *command: str, on_line: Callable[[bytes], None]) -> None:
        folder = self._root / name
        folder.mkdir()
        self.parts[name] = Part(name, list(command), self._root, Disk(folder), on_line)

    def _add_hub(self, needed: Set[str], *, nats: bool) -> None:
        port = free_port()
        self._publish = self._path("publish", port)
        self._advertised = f"http://127.0.0.1:{self._path('subscribe', port)}/"
        settings = self._root / "hub.toml"
        lines = _HUB.format(log_bytes=self._random.choice([200_000, 5_000_000]))
        if "mosquitto" in needed:
            broker = self.services["mosquitto"] = Mosquitto(self._root / "mosquitto")
            path = self._path("hub to mosquitto", broker.port, aware=False)
            lines += f'mqtt_url = "mqtt://127.0.0.1:{path}"\n'
        if "prosody" in needed:
            server = self.services["prosody"] = Prosody(self._root / "prosody")
            path = self._path("hub to prosody", server.port, aware=False)
            for line in server.hub_settings(self._root / "xmpp.password"):
                lines += line.replace(f":{server.port}", f":{path}")
        settings.write_text(lines)
        command, store = ["rsnotify"], ["--data", str(self._root / "hub")]
        if nats:
            store_server = NatsServer(self._root / "nats")
            self.services["nats"] = Blocking(store_server)
            path = self._path("hub to nats", store_server.port, aware=False)
            store = ["--store", f"nats://127.0.0.1:{path}"]
            # With short leases.
            command = ["tests.hub.jetstream.fast_node"]
        self._part(
            "hub",
            *(*command, "hub", "--port", str(port), "--public-url", self._advertised),
            *(*store, "--config", str(settings), "--allow-private-addresses"),
            on_line=lambda line: None,
        )

    def _add_source(self, port: int, rate: float, on_line: Callable[[bytes], None]) -> None:
        publish = self._random.choice(["http://{}/websub", "ws://{}/ws"])
        self._part(
            "source",
            *("tests.harnesses.torture.live_source", str(self._root / "source"), "--url", self.url),
            *("--port", str(port), "--hub", publish.format(f"127.0.0.1:{self._publish}")),
            *("--advertise", self._advertised, "--rate", str(rate)),
            *("--seed", str(self._random.randrange(10**6))),
            *("--rotate", self._random.choice(["60 changes", "500 changes"])),
            *("--keep", self._random.choice(["2 lists", "100 lists"])),
            on_line=on_line,
        )

    def _add_destination(self, way: str) -> None:
        if way == "database":
            command = self._add_database()
        else:
            folder = self._root / way / "copy"
            self.copies[way] = FolderCopy(folder)
            command = [self.url, str(folder), "--via", way, *self._options(way)]
            command += ["--allow-private-addresses", "--poll", "0.5"]
        self._part(
            way,
            *("rsnotify", "follow", "--json", *command),
            on_line=lambda line: self._on_status(way, line),
        )
        # Until the Source has read which service the hub has, it advertises none.
        self.parts[way].excused = way == "xmpp"

    def _options(self, way: str) -> list[str]:
        if way == "websub":
            port = free_port()
            url = f"http://127.0.0.1:{self._path('deliver', port)}/"
            options = ["--callback-url", url, "--callback-port", str(port)]
            options += ["--callback-lease", "3", "--callback-quiet", "2"]
            return [*options, "--callback-patience", "5"]
        if way == "mqtt":
            broker = self.services["mosquitto"]
            assert isinstance(broker, Mosquitto)
            path = self._path("mqtt to mosquitto", broker.port, aware=False)
            return ["--mqtt-url", f"mqtt://127.0.0.1:{path}"]
        if way == "xmpp":
            server = self.services["prosody"]
            assert isinstance(server, Prosody)
            path = self._path("xmpp to prosody", server.port, aware=False)
            login = server.login("reader")
            options = ["--xmpp-jid", str(login.jid), "--xmpp-password", str(login.password)]
            return [*options, "--xmpp-server", f"127.0.0.1:{path}", "--xmpp-ca", str(login.ca)]
        return []

    def _add_database(self) -> list[str]:
        server = self.closing.enter_context(running_postgresql())
        self.services["postgresql"] = Blocking(server)
        path = self._path("database to postgresql", server.port, aware=False)
        conninfo = server.database()
        copy = self.copies["database"] = LedgerCopy(conninfo, self.url)
        copy.prepare()
        settings = self._root / "fleet.toml"
        through = conninfo.replace(f":{server.port}", f":{path}")
        via = self._random.choice(["websocket", "poll"])
        settings.write_text(_FLEET.format(url=self.url, conninfo=through, via=via))
        return ["--config", str(settings)]

    async def start(self) -> None:
        for part in self.parts.values():
            part.disk.mount()
        for path in self.paths.values():
            await path.start()
        for name, service in self.services.items():
            if name != "postgresql":  # it runs since its tables were made
                await service.start()

    async def stop(self) -> None:
        for part in self.parts.values():
            part.kill()
            part.disk.unmount()
        for path in self.paths.values():
            await path.stop()
        for name, service in self.services.items():
            if name != "postgresql":
                await service.stop()
        self.closing.close()

    def __str__(self) -> str:
        disks = all(part.disk.mounted for part in self.parts.values())
        absent = "".join(f"; {name} is not installed" for name in services.missing())
        return (
            f"disks: {'tmpfs' if disks else 'limited by RLIMIT_FSIZE, since none can be mounted'}; "
            f"Destinations: {', '.join(self.copies)}; "
            f"services: {', '.join(self.services) or 'none'}{absent}"
        )
