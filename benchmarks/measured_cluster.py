"""The processes of a cluster, and what each part of it spends."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from statistics import median
from urllib.request import urlopen

from fanout import TOPIC, MeasuredHub, fragment, processor_seconds, resident_bytes
from websocket_clients import connect, frame, receive_frame

from tests.nats_servers import running_nats

#: Seconds without work, in which what an idle process takes is measured.
IDLE = 5

#: Seconds of the processor by part.
Parts = dict[str, float]


class MeasuredCluster:
    """Some nodes and the NATS servers of one hub; without servers, one hub on SQLite."""

    def __init__(self, folder: Path, stack: ExitStack, servers: int, nodes: int) -> None:
        self.number = 0
        options: tuple[str, ...] = ("--allow-private-addresses",)
        self._nats: list[int] = []
        if servers:
            nats = stack.enter_context(running_nats(folder / "nats", servers=servers))
            self._nats = [server.pid for server in nats.servers.values()]
            options = (*options, "--store", nats.url)
        self.nodes: list[MeasuredHub] = []
        for number in range(nodes):
            (folder / str(number)).mkdir()
            self.nodes.append(MeasuredHub(folder / str(number), stack, *options))
        while servers and (not all(owned := self._owned()) or len(owned) < nodes):
            time.sleep(0.2)
        self._publishers: list[TopicPublisher] = []
        self.idle: Parts = {}
        self.idle = {
            name: each / IDLE for name, each in self.cost(lambda: time.sleep(IDLE)).items()
        }

    def _owned(self) -> list[int]:
        with urlopen(f"http://127.0.0.1:{self.nodes[0].port}/admin/nodes") as answer:
            return [row["shards"] for row in json.load(answer)["rows"]]

    def _spent(self) -> Parts:
        first, *others = [processor_seconds(node.pid) for node in self.nodes]
        return {
            "receiving": first,
            "others": sum(others),
            "nats": sum(map(processor_seconds, self._nats)),
        }

    def cost(self, work: Callable[[], None]) -> Parts:
        """Return what each part spends on some work."""
        before, began = self._spent(), time.monotonic()
        work()
        after, took = self._spent(), time.monotonic() - began
        return {
            name: after[name] - before[name] - self.idle.get(name, 0.0) * took for name in after
        }

    def publish(self, count: int = 1) -> None:
        """Publish so many fragments in one write, and wait until they are accepted."""
        self.nodes[0].publish([fragment(self.number + n) for n in range(count)])
        self.number += count

    def connect(self, stack: ExitStack, topics: int) -> None:
        """Connect a publisher of each of some topics to the receiving node."""
        port = self.nodes[0].port
        self._publishers = [TopicPublisher(port, f"{TOPIC}/{n}", stack) for n in range(topics)]

    def publish_to_all(self, count: int) -> None:
        """Publish so many fragments of each connected topic, and wait until all are accepted."""
        bodies = [fragment(self.number + n) for n in range(count)]
        self.number += count
        for publisher in self._publishers:
            publisher.send(bodies)
        for publisher in self._publishers:
            publisher.wait(bodies[-1])

    def memory(self) -> tuple[float, float]:
        """Return the bytes of a node, which is not the receiving one if there are several, and of
        a NATS server.
        """
        nats = [resident_bytes(pid) for pid in self._nats] or [0]
        return resident_bytes(self.nodes[-1].pid), median(nats)


class TopicPublisher:
    """A WebSocket that publishes on one topic."""

    def __init__(self, port: int, topic: str, stack: ExitStack) -> None:
        self._socket = stack.enter_context(connect("127.0.0.1", port, "/ws"))
        self._socket.sendall(frame(json.dumps({"type": "publish", "topic": topic}).encode()))
        receive_frame(self._socket)

    def send(self, bodies: list[bytes]) -> None:
        self._socket.sendall(b"".join(map(frame, bodies)))

    def wait(self, body: bytes) -> None:
        """Wait until a fragment is accepted, and so all before it."""
        last = json.dumps(body.decode().partition('until="')[2].partition('"')[0]).encode()
        while last not in (answer := receive_frame(self._socket)):
            if b'"error"' in answer:
                raise ConnectionError(answer.decode())


def typical(runs: list[Parts], each: int) -> Parts:
    """Return the medians of some runs, in microseconds of each."""
    return {name: median(run[name] for run in runs) / each * 1e6 for name in runs[0]}
