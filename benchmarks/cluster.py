"""What one, two and three nodes of a hub cost, on SQLite and on NATS JetStream.

The figures are the processor time of each part: the node at which a fragment is published, the
other nodes, and all NATS servers. What they take while nothing happens is subtracted, so the parts
can be added for other numbers of nodes, fragments and deliveries: `capacity.py` does so. Clients,
callbacks and subscribers of the broker are processes of their own. Everything is on loopback,
without TLS.

SQLite flushes each fragment to the disk before it is acknowledged, and so does NATS, with
`sync_interval: always`.

`python benchmarks/cluster.py --record` also writes the figures to `cluster.json`.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import ExitStack
from functools import partial
from http.client import HTTPConnection
from pathlib import Path
from statistics import median
from urllib.parse import urlencode
from urllib.request import urlopen

import targets
from callback_server import callbacks, secret_of
from callbacks import CallbackServer
from capacity import RECORDED, Figures, compared, measured, tables
from fanout import (
    TOPIC,
    WebSocketClients,
    fragment,
    processor_seconds,
    resident_bytes,
    running,
)
from measured_cluster import MeasuredCluster, Parts, typical

from rsnotify.runtime.mqtt_broker import channel_topic
from tests.nats_servers import PATH
from tests.ports import free_port

RUNS = 3
SINGLE, BURSTS, BURST = 150, 20, 50
#: Topics that are published on at once, and the bursts of each.
MANY, BURSTS_OF_MANY = 10, 6
#: WebSockets of each node, callbacks, and subscribers of the broker.
WEBSOCKETS, CALLBACKS, SUBSCRIBERS = 400, 200, 500
TOPICS, ENTRIES, CONNECTIONS = 1_000, 30_000, 1_000
SETUPS = {
    "SQLite": (0, 1),
    **{f"{copies} cop{'y' if copies == 1 else 'ies'}, {nodes} node{'s' if nodes > 1 else ''}":
       (copies, nodes) for copies in (1, 3) for nodes in (1, 2, 3)},
}  # fmt: skip
LARGEST = "3 copies, 3 nodes"


def measure_publishing(cluster: MeasuredCluster, column: dict[str, float]) -> dict[str, Parts]:
    """Measure fragments without subscribers; return the parts by the way of publishing."""

    def one_at_a_time() -> None:
        for _ in range(SINGLE):
            began = time.perf_counter()
            cluster.publish()
            took.append(time.perf_counter() - began)

    def in_bursts() -> None:
        began = time.perf_counter()
        for _ in range(BURSTS):
            cluster.publish(BURST)
        rates.append(BURSTS * BURST / (time.perf_counter() - began))

    def to_many_topics() -> None:
        began = time.perf_counter()
        for _ in range(BURSTS_OF_MANY):
            cluster.publish_to_all(BURST)
        many.append(BURSTS_OF_MANY * BURST * MANY / (time.perf_counter() - began))

    took: list[float] = []
    rates: list[float] = []
    many: list[float] = []
    one_at_a_time()  # to warm up
    took.clear()
    found = {
        "one at a time": typical([cluster.cost(one_at_a_time) for _ in range(RUNS)], SINGLE),
        "in bursts": typical([cluster.cost(in_bursts) for _ in range(RUNS)], BURSTS * BURST),
    }
    with ExitStack() as stack:
        cluster.connect(stack, MANY)
        found["on many topics"] = typical(
            [cluster.cost(to_many_topics) for _ in range(RUNS)], BURSTS_OF_MANY * BURST * MANY
        )
    others = len(cluster.nodes) - 1
    for how, parts in found.items():
        column[f"node that receives, {how}"] = parts["receiving"]
        column[f"each other node, {how}"] = parts["others"] / others if others else 0.0
        column[f"NATS, {how}"] = parts["nats"]
    column["until accepted, ms"] = median(took) * 1e3
    column["fragments a second, in bursts"] = median(rates)
    column["fragments a second, on many topics"] = median(many)
    column["idle node, each second"] = cluster.idle["receiving"] * 1e6
    column["idle NATS, each second"] = cluster.idle["nats"] * 1e6
    return found


def measure_deliveries(
    cluster: MeasuredCluster, each: Callable[[], None], fragments: int, count: int, alone: Parts
) -> tuple[float, float]:
    """Return the microseconds of a delivery for all nodes, and for NATS, without the fragments."""

    def work() -> None:
        for _ in range(fragments):
            each()

    work()  # to open connections
    parts = typical([cluster.cost(work) for _ in range(RUNS)], fragments)
    nodes = sum(parts[name] - alone[name] for name in ("receiving", "others"))
    return nodes / count, max(0.0, parts["nats"] - alone["nats"]) / count


def measure_websockets(
    cluster: MeasuredCluster, folder: Path, column: dict[str, float], alone: dict[str, Parts]
) -> None:
    """Measure deliveries to WebSockets at all nodes, of single fragments and of eight at once."""
    with ExitStack() as stack:
        clients = [WebSocketClients(node, WEBSOCKETS, folder, stack) for node in cluster.nodes]

        def each(count: int) -> None:
            for client in clients:
                client.expect(count)
            cluster.publish(count)
            for client in clients:
                client.wait()

        for row, how, count in (
            ("delivery over WebSocket", "one at a time", 1),
            ("delivery over WebSocket, in bursts", "in bursts", 8),
        ):
            published = {name: spent * count for name, spent in alone[how].items()}
            deliveries = count * WEBSOCKETS * len(cluster.nodes)
            work = partial(each, count)
            column[row], _ = measure_deliveries(cluster, work, 40 // count, deliveries, published)


def subscribe(cluster: MeasuredCluster, server: CallbackServer, topic: str) -> None:
    """Subscribe the working callbacks, and wait until all are stored."""
    before = _subscriptions(cluster)
    working = [one for one in callbacks(server.port) if one.endswith("/sound")][:CALLBACKS]
    for callback in working:
        form = {"hub.mode": "subscribe", "hub.topic": topic, "hub.callback": callback}
        form["hub.secret"] = secret_of(callback)
        with urlopen(f"http://127.0.0.1:{cluster.nodes[0].port}/websub", urlencode(form).encode()):
            pass
    server.wait(CALLBACKS)
    while _subscriptions(cluster) < before + CALLBACKS:
        time.sleep(0.1)


def measure_callbacks(
    cluster: MeasuredCluster, server: CallbackServer, column: dict[str, float], alone: Parts
) -> None:
    """Measure deliveries to callbacks, whose shards all nodes share."""
    subscribe(cluster, server, TOPIC)

    def each() -> None:
        cluster.publish()
        server.wait(CALLBACKS)

    nodes, nats = measure_deliveries(cluster, each, 20, CALLBACKS, alone)
    column["delivery over WebSub"], column["delivery over WebSub: NATS"] = nodes, nats


def _subscriptions(cluster: MeasuredCluster) -> int:
    """Return the subscriptions that all nodes own."""
    found = 0
    for node in cluster.nodes:
        with urlopen(f"http://127.0.0.1:{node.port}/admin/status") as answer:
            found += json.load(answer)["subscriptions"]
    return found


def measure_memory(cluster: MeasuredCluster, server: CallbackServer, folder: Path) -> Parts:
    """Return how much memory each thing takes."""
    found: Parts = {}

    def grown(name: str, unit: float, count: int, work: Callable[[], object]) -> None:
        before = cluster.memory()[0]
        work()
        found[name] = max(0.0, cluster.memory()[0] - before) / count / unit

    def entries() -> None:
        for _ in range(ENTRIES // 200):
            cluster.publish(200)

    def topics() -> None:
        connection = HTTPConnection("127.0.0.1", cluster.nodes[0].port)
        for number in range(TOPICS):
            link = f'<{TOPIC}/{number}>; rel="self"'
            headers = {"Link": link, "Content-Type": "application/xml"}
            connection.request("POST", "/websub", fragment(0), headers)
            connection.getresponse().read()
        connection.close()

    def subscriptions() -> None:
        for number in range(5):
            subscribe(cluster, server, f"{TOPIC}/{number}")

    node, _ = cluster.memory()
    found["node, MB"] = node / 1e6
    grown("topic, kB", 1e3, TOPICS, topics)
    # Another node may own the shards: each has its part of them.
    grown("subscription, kB", 1e3, 5 * CALLBACKS // len(cluster.nodes), subscriptions)
    with ExitStack() as stack:
        last = cluster.nodes[-1]
        grown("WebSocket, kB", 1e3, CONNECTIONS,
              lambda: WebSocketClients(last, CONNECTIONS, folder, stack))  # fmt: skip
    grown("entry, bytes", 1, ENTRIES, entries)
    found["NATS server, MB"] = cluster.memory()[1] / 1e6
    return found


def measure_broker(folder: Path, servers: int, nodes: int, column: dict[str, float]) -> Parts:
    """Measure the bridge, and the broker; return the memory of a connection to it."""
    port = free_port()
    user = "user root" if os.getuid() == 0 else ""
    (folder / "mosquitto.conf").write_text(
        f"listener {port} 127.0.0.1\nallow_anonymous true\n{user}\n"
    )
    script = str(Path(__file__).with_name("mqtt_clients.py"))
    with ExitStack() as stack:
        command = ["mosquitto", "-c", str(folder / "mosquitto.conf")]
        environment = os.environ | {"PATH": PATH}
        broker = stack.enter_context(running(command, folder, env=environment)).pid
        os.environ["RSNOTIFY_HUB_MQTT_URL"] = f"mqtt://127.0.0.1:{port}"
        try:
            cluster = MeasuredCluster(folder, stack, servers, nodes)
        finally:
            del os.environ["RSNOTIFY_HUB_MQTT_URL"]
        took: list[float] = []
        before = 0
        for count in (1, SUBSCRIBERS):
            clients = stack.enter_context(
                running(
                    [sys.executable, script, str(port), channel_topic(TOPIC), str(count)], folder
                )
            )
            assert clients.stdin is not None
            assert clients.stdout is not None
            assert clients.stdout.readline() == "ready\n"
            before, memory = resident_bytes(broker), before

            def each(clients: subprocess.Popen[str] = clients, count: int = count) -> None:
                assert clients.stdin is not None
                assert clients.stdout is not None
                clients.stdin.write(f"{count}\n")
                clients.stdin.flush()
                cluster.publish()
                assert clients.stdout.readline() == "done\n"

            each()
            began = processor_seconds(broker)
            alone = {
                "receiving": column["node that receives, one at a time"],
                "others": column["each other node, one at a time"] * (nodes - 1),
                "nats": 0.0,
            }
            bridge, _ = measure_deliveries(cluster, each, 40, 1, alone)
            took.append((processor_seconds(broker) - began) / (RUNS + 1) / 40 * 1e6)
            if count == 1:
                column["MQTT bridge, each fragment"] = bridge
    column["MQTT broker, each delivery"] = (took[1] - took[0]) / SUBSCRIBERS
    return {"broker's connection, kB": (before - memory) / SUBSCRIBERS / 1e3}


def measure(folder: Path) -> Figures:
    """Return all figures, by row and column."""
    columns: dict[str, dict[str, float]] = {}
    memory: Figures = {}
    for name, (servers, nodes) in SETUPS.items():
        print(f"# {name}", file=sys.stderr, flush=True)
        column = columns[name] = {}
        (own := folder / name).mkdir()
        with ExitStack() as stack:
            cluster = MeasuredCluster(own, stack, servers, nodes)
            alone = measure_publishing(cluster, column)
            measure_websockets(cluster, own, column, alone)
            server = CallbackServer(own, stack)
            if name in ("SQLite", LARGEST):
                memory[name] = measure_memory(cluster, server, own)
            measure_callbacks(cluster, server, column, alone["one at a time"])
        if name in ("SQLite", LARGEST):
            (own := folder / f"{name} and a broker").mkdir()
            memory[name] |= measure_broker(own, servers, nodes, column)
    figures: Figures = {row: {} for row in columns[LARGEST]}
    for name, column in columns.items():
        for row, value in column.items():
            figures[row][name] = float(f"{value:.3g}")
    for name, each in memory.items():
        figures[f"memory, {name}"] = {row: float(f"{value:.3g}") for row, value in each.items()}
    return figures


def compare(figures: Figures) -> None:
    """Compare with the targets of the design."""
    rates = figures["fragments a second, in bursts"]
    targets.compare("append to a topic, three copies", rates["3 copies, 1 node"], 2_000, "/s",
                    at_least=True)  # fmt: skip
    rates = figures["fragments a second, on many topics"]
    targets.compare(f"append to {MANY} topics, three copies", rates["3 copies, 1 node"], 5_000,
                    "/s", at_least=True)  # fmt: skip
    for how in ("one at a time", "in bursts"):
        spent = figures[f"node that receives, {how}"]
        for name in ("3 copies, 1 node", LARGEST):
            ratio = spent[name] / spent["SQLite"]
            targets.compare(f"CPU of the receiving node, {how}, {name}, of SQLite", ratio, 2)
    for row in ("delivery over WebSocket", "delivery over WebSocket, in bursts"):
        ratio = figures[row][LARGEST] / figures[row]["3 copies, 1 node"]
        targets.compare(f"{row}, with three nodes, of one node", ratio, 1.1)


def main(*, record: bool = False) -> None:
    """Measure and print."""
    with tempfile.TemporaryDirectory(prefix="rsnotify-bench-") as name:
        figures = measure(Path(name))
    compare(figures)
    print(measured(figures), compared(figures), tables(figures), sep="\n")
    if record:
        RECORDED.write_text(json.dumps(figures, indent=1) + "\n")


if __name__ == "__main__":
    main(record="--record" in sys.argv)
