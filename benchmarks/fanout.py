"""Fan-out over WebSocket and as event streams: the cost of a delivery for the hub, and for nchan.

The figure is the processor time of the server's process (all its threads), divided by the number
of deliveries, so that other work of the machine does not distort it. Clients are in separate
processes (`websocket_clients.py`). Both servers use TCP_NODELAY: nchan does not set it, so it gets
a listening socket whose connections inherit it. The hub makes every fragment durable; nchan keeps
its messages in memory. Event streams are measured with XML and with JSON, each at a hub of its own.

- One in flight: each fragment is published once all have the one before.
- Bursts of eight: eight are published in one write, once all have the eight before.
- A hundred a second: published at that rate, whatever the clients do.
- Idle: how much the process grows by each connection that listens, in resident memory.
"""

from __future__ import annotations

import json
import os
import resource
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from statistics import median
from typing import Protocol

import targets
from websocket_clients import connect, frame, frame_size, receive_frame

from rsnotify.format.model import Capability, ChangeType, Document, Link, Resource
from rsnotify.format.writer import write_document
from rsnotify_hub.event_streams import JsonEvents, XmlEvents
from rsnotify_hub.fragments import read_fragment
from rsnotify_hub.statistics import DeliveryTransport

SUBSCRIBERS = 1_000
IDLE = 10_000
RUNS = 9
SECONDS = 0.6
SIZE = 700
TOPIC = "https://source.example/data/channel.xml"

_HOST = "127.0.0.1"
_BEGIN = datetime(2026, 1, 1, tzinfo=UTC)
_NCHAN = Path("/usr/lib/nginx/modules/ngx_nchan_module.so")


def fragment(number: int) -> bytes:
    """Make the fragment of the change after `number` others; all are of one size."""
    from_, until = (_BEGIN + timedelta(milliseconds=at) for at in (number, number + 1))
    document = Document(
        capability=Capability.CHANGE_NOTIFICATION,
        from_=from_,
        until=until,
        links=(Link(rel="up", href="https://source.example/data/capabilitylist.xml"),),
        resources=(
            Resource("https://source.example/1", change=ChangeType.UPDATED, datetime=until),
        ),
    )
    return write_document(document).rstrip().ljust(SIZE)


class MeasuredServer(Protocol):
    """One of the measured servers."""

    name: str
    port: int
    pid: int
    path: str
    first: str

    def size(self, body: bytes) -> int:
        """Return the bytes that a subscriber receives of a message."""
        ...

    def publish(self, bodies: list[bytes]) -> None:
        """Publish some messages in one write, and wait until they are accepted."""


class MeasuredHub:
    """`rsnotify hub`."""

    name = "rsnotify hub"
    path = "/ws"
    first = json.dumps({"type": "subscribe", "topic": TOPIC, "since": None})

    def size(self, body: bytes) -> int:
        return frame_size(len(body))

    def __init__(self, folder: Path, stack: ExitStack, *options: str) -> None:
        command = ["-m", "rsnotify", "hub", "--port", "0", "--data", str(folder / "hub"), *options]
        process = stack.enter_context(running([sys.executable, *command], folder))
        assert process.stdout is not None
        self.port = int(process.stdout.readline().rsplit(":", 1)[1].strip("/\n"))
        self.pid = process.pid
        self._source = stack.enter_context(connect(_HOST, self.port, "/ws"))
        self._source.sendall(frame(json.dumps({"type": "publish", "topic": TOPIC}).encode()))
        receive_frame(self._source)
        self._accepted = ""

    def publish(self, bodies: list[bytes]) -> None:
        self._source.sendall(b"".join(map(frame, bodies)))
        last = json.dumps(bodies[-1].decode().partition('until="')[2].partition('"')[0]).encode()
        while last not in (answer := receive_frame(self._source)):
            if b'"error"' in answer:
                raise ConnectionError(answer.decode())


class MeasuredXmlEvents(MeasuredHub):
    """The same hub, with event streams."""

    name = "SSE, XML"
    path = f"/events?topic={TOPIC}"
    first = ""

    def size(self, body: bytes) -> int:
        return len(XmlEvents(DeliveryTransport.SSE).encode([read_fragment(body)]))


class MeasuredJsonEvents(MeasuredHub):
    """The same hub, with event streams in JSON."""

    name = "SSE, JSON"
    path = f"/events?format=json&topic={TOPIC}"
    first = ""

    def size(self, body: bytes) -> int:
        return len(JsonEvents(DeliveryTransport.SSE).encode([read_fragment(body)]))


class Nchan:
    """nginx with nchan."""

    name = "nginx + nchan"
    path = "/sub"
    first = ""

    def size(self, body: bytes) -> int:
        return frame_size(len(body))

    def __init__(self, folder: Path, stack: ExitStack) -> None:
        listener = stack.enter_context(socket.create_server((_HOST, 0), backlog=1024))
        listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        listener.setblocking(False)
        self.port = listener.getsockname()[1]
        configuration = folder / "nginx.conf"
        configuration.write_text(
            f"""load_module {_NCHAN}; daemon off; worker_processes 1; user root;
            pid {folder}/nginx.pid;
            error_log stderr error; worker_rlimit_nofile 20000;
            events {{ worker_connections 15000; }}
            http {{ access_log off; client_body_in_single_buffer on; keepalive_requests 1000000;
              nchan_max_reserved_memory 256M;
              server {{ listen {_HOST}:{self.port};
                location /sub {{ nchan_subscriber websocket; nchan_channel_id bench;
                  nchan_subscriber_first_message newest; }}
                location /pub {{ nchan_publisher; nchan_channel_id bench;
                  nchan_message_buffer_length 100; }} }} }}"""
        )
        # As in an upgrade of nginx itself: it takes over the sockets that NGINX names.
        master = stack.enter_context(
            running(
                ["nginx", "-p", str(folder), "-c", str(configuration)],
                folder,
                env={**os.environ, "NGINX": f"{listener.fileno()};"},
                pass_fds=(listener.fileno(),),
            )
        ).pid
        self.pid = _child(master)
        self._source = stack.enter_context(socket.create_connection((_HOST, self.port)))
        self._answers = self._source.makefile("rb")

    def publish(self, bodies: list[bytes]) -> None:
        self._source.sendall(b"".join(map(self._request, bodies)))
        for _ in bodies:
            self._answer()

    def _request(self, body: bytes) -> bytes:
        return (
            f"POST /pub HTTP/1.1\r\nHost: {_HOST}:{self.port}\r\n"
            f"Content-Type: application/xml\r\nContent-Length: {len(body)}\r\n\r\n".encode()
            + body
        )

    def _answer(self) -> None:
        if self._answers.readline().split()[1] not in (b"201", b"202"):
            raise ConnectionError("nchan refuses")
        size = 0
        while (line := self._answers.readline().strip()) != b"":
            name, _, value = line.partition(b":")
            if name.lower() == b"content-length":
                size = int(value)
        self._answers.read(size)


def _child(pid: int) -> int:
    """Wait for the one child of a process."""
    while not (children := Path(f"/proc/{pid}/task/{pid}/children").read_text().split()):
        time.sleep(0.01)
    return int(children[0])


@contextmanager
def running(
    command: list[str],
    folder: Path,
    *,
    env: dict[str, str] | None = None,
    pass_fds: tuple[int, ...] = (),
) -> Iterator[subprocess.Popen[str]]:
    """Run a process within the context."""
    with (
        (folder / "log").open("ab") as log,
        subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=log,
            text=True,
            env=env,
            pass_fds=pass_fds,
        ) as process,
    ):
        try:
            yield process
        finally:
            process.terminate()


class WebSocketClients:
    """A process of clients."""

    def __init__(self, server: MeasuredServer, count: int, folder: Path, stack: ExitStack) -> None:
        script = str(Path(__file__).with_name("websocket_clients.py"))
        arguments = [_HOST, str(server.port), server.path, str(count)]
        first = [server.first] if server.first else []
        self._process = stack.enter_context(
            running([sys.executable, script, *arguments, *first], folder)
        )
        self._count = count
        self._size = server.size(fragment(0))
        self._read_line("ready")

    def expect(self, messages: int) -> None:
        """Announce how many messages each client will receive."""
        assert self._process.stdin is not None
        self._process.stdin.write(f"{messages * self._size * self._count}\n")
        self._process.stdin.flush()

    def wait(self) -> None:
        """Wait until all clients have received them."""
        self._read_line("done")

    def _read_line(self, word: str) -> None:
        assert self._process.stdout is not None
        if self._process.stdout.readline().strip() != word:
            raise ConnectionError("the clients have failed; see their messages in the log")


def processor_seconds(pid: int) -> float:
    """Return the time of a processor that all threads of a process have taken."""
    tasks = Path(f"/proc/{pid}/task").iterdir()
    return sum(int((task / "schedstat").read_text().split()[0]) for task in tasks) / 1e9


def resident_bytes(pid: int) -> int:
    """Return the resident memory of a process."""
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * resource.getpagesize()


class FanOut:
    """Publishes on one server, and measures the cost of the deliveries to its clients."""

    def __init__(self, server: MeasuredServer, clients: WebSocketClients) -> None:
        self._server = server
        self._clients = clients
        self._number = 0

    def _next(self, count: int) -> list[bytes]:
        bodies = [fragment(self._number + n) for n in range(count)]
        self._number += count
        return bodies

    def bursts(self, size: int) -> float:
        """Publish bursts for some seconds; return the microseconds of a delivery."""
        began, number, end = self._time(), self._number, time.monotonic() + SECONDS
        while time.monotonic() < end:
            self._clients.expect(size)
            self._server.publish(self._next(size))
            self._clients.wait()
        return self._each(began, self._number - number)

    def steady(self, rate: int = 100) -> float:
        """Publish at a rate for some seconds; return the microseconds of a delivery."""
        count = round(rate * SECONDS)
        self._clients.expect(count)
        began, due = self._time(), time.monotonic()
        for body in self._next(count):
            self._server.publish([body])
            due += 1 / rate
            time.sleep(max(0.0, due - time.monotonic()))
        self._clients.wait()
        return self._each(began, count)

    def _time(self) -> float:
        return processor_seconds(self._server.pid)

    def _each(self, began: float, messages: int) -> float:
        return (self._time() - began) / (messages * SUBSCRIBERS) * 1e6


def measure_fan_out(servers: list[MeasuredServer], folder: Path) -> dict[str, dict[str, float]]:
    """Return the microseconds of a delivery, the median of some runs, by kind and server."""
    kinds: dict[str, Callable[[FanOut], float]] = {
        "one in flight": lambda feed: feed.bursts(1),
        "bursts of eight": lambda feed: feed.bursts(8),
        "a hundred a second": lambda feed: feed.steady(),
    }
    took: dict[str, dict[str, list[float]]] = {
        kind: {server.name: [] for server in servers} for kind in kinds
    }
    with ExitStack() as stack:
        feeds = {
            server.name: FanOut(server, WebSocketClients(server, SUBSCRIBERS, folder, stack))
            for server in servers
        }
        for _ in range(RUNS):
            for kind, run in kinds.items():
                for name, feed in feeds.items():
                    took[kind][name].append(run(feed))
    return {
        kind: {name: median(times) for name, times in each.items()} for kind, each in took.items()
    }


def measure_idle(server: MeasuredServer, folder: Path) -> float:
    """Return the kilobytes of one idle connection."""
    with ExitStack() as stack:
        before = resident_bytes(server.pid)
        for _ in range(4):
            WebSocketClients(server, IDLE // 4, folder, stack)
        return (resident_bytes(server.pid) - before) / IDLE / 1000


def show(title: str, unit: str, figures: dict[str, float]) -> None:
    """Print a row, with each figure as a part of the first."""
    first = next(iter(figures.values()))
    cells = "".join(f"{value:10.2f} {value / first:5.2f}" for value in figures.values())
    print(f"{title + ', ' + unit:26}{cells}")


def main() -> None:
    """Measure and print."""
    with tempfile.TemporaryDirectory(prefix="rsnotify-bench-") as name, ExitStack() as stack:
        folder = Path(name)
        kinds: list[Callable[[Path, ExitStack], MeasuredServer]] = [
            MeasuredHub,
            MeasuredXmlEvents,
            MeasuredJsonEvents,
        ]
        if _NCHAN.exists() and shutil.which("nginx"):
            kinds.append(Nchan)
        idle = {}
        for number, kind in enumerate(kinds):
            (folder / str(number)).mkdir()
            with ExitStack() as fresh:
                server = kind(folder / str(number), fresh)
                idle[server.name] = measure_idle(server, folder)
        servers = [kind(folder / str(number), stack) for number, kind in enumerate(kinds)]
        results = measure_fan_out(servers, folder)
    names = "".join(f"{server.name:>16}" for server in servers)
    print(f"{SUBSCRIBERS} subscribers, {SIZE} bytes: the server's processor time, and to the first")
    print(f"{'':26}{names}")
    for kind_of_run, figures in results.items():
        show(kind_of_run, "us", figures)
    show(f"{IDLE} idle, each", "kB", idle)
    targets.compare(f"{IDLE:,} idle WebSockets, each", idle[MeasuredHub.name], 5, "kB")
    for kind_of_run, limit in (("one in flight", 0.9), ("bursts of eight", 0.15)):
        figures = results[kind_of_run]
        ours = figures[MeasuredHub.name]
        if Nchan.name in figures:
            ratio = ours / figures[Nchan.name]
            targets.compare(f"WebSocket, {kind_of_run}, ratio to nchan", ratio, limit)
        for events in (MeasuredXmlEvents.name, MeasuredJsonEvents.name):
            ratio = figures[events] / ours
            targets.compare(f"{events}, {kind_of_run}, ratio to WebSocket", ratio, 1)


if __name__ == "__main__":
    main()
