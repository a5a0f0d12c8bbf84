"""What a cluster needs for an audience, computed from what `cluster.py` measured.

Every subscriber follows one topic that receives all changes, and each change is a fragment of its
own: the most expensive case. Nothing here measures; the figures come from `cluster.json`, which
`python benchmarks/cluster.py --record` writes. The sum is linear in what was measured. Limits that
were not reached in the measurement are constants below, each with its reason.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from math import ceil
from pathlib import Path

from msgspec import Struct

#: By row and column: microseconds of CPU unless the row's name has another unit.
Figures = dict[str, dict[str, float]]

RECORDED = Path(__file__).with_name("cluster.json")
SUBSCRIBERS = (10_000, 1_000_000, 100_000_000)
RATES = (10, 1_000)
TRANSPORTS = ("WebSub", "WebSocket", "MQTT")

#: A core is planned to be half busy: the rest is for peaks, and for the work of a node that failed.
BUSY = 0.5
#: Bytes on the network for each delivery of a 700-byte fragment, with the acknowledgements, over
#: TCP and TLS.
DELIVERY_BYTES = {"WebSub": 1_700, "WebSocket": 850, "MQTT": 950}
#: Bytes that each change adds to a merged fragment.
CHANGE_BYTES = 250
#: A callback receives one request at a time; one takes this many seconds on the internet. What is
#: published meanwhile is merged into the next.
ROUND_TRIP = 0.05
#: The settings `max_websockets` and `log_bytes`, of fragments of 700 bytes.
CONNECTIONS = 20_000
ENTRIES = 100_000_000 // 700
#: Shards are made once; NATS limits a message to 1 MB, and so the cursors of a shard.
SHARDS, SHARD_SUBSCRIPTIONS, CURSOR_BYTES = 64, 30_000, 33
#: Cursors are written so often per second, and each node renews its record so often.
CURSOR_WRITES, RENEWALS = 2, 0.5
#: Cores and bits per second of each of the three NATS servers.
NATS_CORES, NATS_BITS = 8, 10e9
#: 23 machines, as in the test of the largest cluster that EMQX has published, of 64 cores each.
BROKER_CORES = 23 * 64
#: Prices per month, in US dollars: one vCPU, one GB of memory; and one GB of traffic.
CPU_PRICE, MEMORY_PRICE, TRAFFIC_PRICE = 20.0, 3.0, 0.01
MONTH = 30 * 86_400

MEASURED = """\
`make bench ARGS=cluster` measures the processor time for each fragment of 700 bytes, and for
each delivery, without TLS. These figures are of two cores that other programs used too, and of
servers that do not flush each message. Fragments *one at a time* are sent when the one before
was accepted; *in bursts*, 50 at once, all of one topic. NATS is the sum of all servers. The use
of an idle node or server is subtracted from the other rows. A delivery is the sum of all nodes,
with 400 WebSockets at each node, or 200 callbacks in all; the broker is mosquitto with 500
subscribers and QoS 1. Memory is the growth of a process. The index takes 67 bytes for each
entry of a log; a node reads 100,000 entries in 7 s when it starts.
"""
ASSUMED = f"""\
Computed from these figures for one topic that everybody follows completely, each change as a
fragment of its own of 700 bytes, and three NATS servers in one place with the nodes. The last
column names the limit that is reached first. Where it is exceeded, in bold, such a cluster would
not work.

- A node has one core, half busy. NATS servers have up to {NATS_CORES} cores and 10 Gbit/s each,
  half of it used.
- A delivery has 850 bytes on the network over WebSocket, 950 over MQTT, and 1,700 over WebSub, with
  TLS, whose processor time is not included.
- WebSub: a callback receives one request of 50 ms at a time; fragments that are published meanwhile
  are merged into the next, {CHANGE_BYTES} bytes for each change. There are {SHARDS} shards.
- MQTT: the brokers cost what mosquitto costs for each delivery; traffic between them is not
  included. The largest cluster of EMQX of which a test is published had
  [23 machines](https://www.emqx.com/en/blog/reaching-100m-mqtt-connections-with-emqx-5-0).
- Prices per month: $20 for a vCPU, $3 for a GB of memory, $0.01 for a GB of traffic (large clouds
  charge five to nine times as much).
"""


class Costs(Struct, frozen=True):
    """Seconds of CPU for each fragment, or delivery, and bytes of memory.

    Args:
        receive: A fragment, for the node at which it is published.
        follow: A fragment, for each other node.
        append: A fragment, for all NATS servers, with one node.
        send: A fragment, for all NATS servers, for each further node.
        idle: A node with nothing to do, for each second.
        websub: A delivery to a callback.
        websocket: A delivery to a WebSocket.
        bridge: A fragment, for the node that passes it on to the broker.
        broker: A delivery, for the broker.
        appends: The fragments of one topic that are stored in a second, at most.
        node: The memory of a node.
        server: The memory of a NATS server.
        entry: The memory of an entry of a log, in each node.
        connection: The memory of a WebSocket.
        subscription: The memory of a subscription to WebSub.
        client: The memory of a connection to the broker.
    """

    receive: float
    follow: float
    append: float
    send: float
    idle: float
    websub: float
    websocket: float
    bridge: float
    broker: float
    appends: float
    node: float
    server: float
    entry: float
    connection: float
    subscription: float
    client: float


def costs_of(figures: Figures, rate: float) -> Costs:
    """Return the costs with three copies of the stream, at a rate of changes a second.

    Changes at a high rate arrive in bursts.
    """
    how = "in bursts" if rate >= 100 else "one at a time"
    one, three = "3 copies, 1 node", "3 copies, 3 nodes"
    micro, kilo = 1e-6, 1000
    nats = figures[f"NATS, {how}"]
    memory = figures[f"memory, {three}"]
    return Costs(
        receive=figures[f"node that receives, {how}"][three] * micro,
        follow=figures[f"each other node, {how}"][three] * micro,
        append=nats[one] * micro,
        send=max(0.0, nats[three] - nats[one]) / 2 * micro,
        idle=figures["idle node, each second"][three] * micro,
        websub=figures["delivery over WebSub"][three] * micro,
        websocket=figures["delivery over WebSocket"][three] * micro,
        bridge=figures["MQTT bridge, each fragment"][three] * micro,
        broker=figures["MQTT broker, each delivery"][three] * micro,
        appends=figures["fragments a second, in bursts"][three],
        node=memory["node, MB"] * 1e6,
        server=memory["NATS server, MB"] * 1e6,
        entry=memory["entry, bytes"],
        connection=memory["WebSocket, kB"] * kilo,
        subscription=memory["subscription, kB"] * kilo,
        client=memory["broker's connection, kB"] * kilo,
    )


class Plan(Struct, frozen=True):
    """What is needed, and how near it is to each limit.

    Args:
        deliveries: Deliveries a second.
        nodes: The hub's processes, each with a core.
        nats: The cores of all NATS servers.
        brokers: The cores of all MQTT brokers.
        memory: Bytes, of all machines.
        network: Bytes a second to subscribers.
        limits: How much of each limit is used; more than 1 cannot work.
    """

    deliveries: float
    nodes: int
    nats: int
    brokers: int
    memory: float
    network: float
    limits: dict[str, float]

    @property
    def machines_price(self) -> float:
        """Dollars a month for CPU and memory."""
        cores = self.nodes + self.nats + self.brokers
        return cores * CPU_PRICE + self.memory / 1e9 * MEMORY_PRICE

    @property
    def traffic_price(self) -> float:
        """Dollars a month for what is sent to subscribers."""
        return self.network * MONTH / 1e9 * TRAFFIC_PRICE

    @property
    def first(self) -> tuple[str, float]:
        """The limit that is reached first, and how much of it is used."""
        return max(self.limits.items(), key=lambda each: each[1])


def plan(costs: Costs, transport: str, subscribers: int, rate: float) -> Plan:
    """Return what one transport needs for some subscribers at a rate of changes a second."""
    each = min(rate, 1 / ROUND_TRIP) if transport == "WebSub" else rate
    deliveries = subscribers * each
    size = DELIVERY_BYTES[transport] + (rate / each - 1) * CHANGE_BYTES
    nodes = _nodes(costs, transport, subscribers, deliveries, rate)
    brokers = max(2, ceil(deliveries * costs.broker / BUSY)) if transport == "MQTT" else 0
    messages = rate * (nodes - 1) + nodes * nodes * RENEWALS
    nats = rate * costs.append + nodes * RENEWALS * costs.append + messages * costs.send
    per_client = {
        "WebSub": costs.subscription,
        "WebSocket": costs.connection,
        "MQTT": costs.client,
    }[transport]
    limits = {
        "one node receives all of a Source": (rate * costs.receive + costs.idle) / BUSY,
        "appends to one topic, one after the other": rate / costs.appends,
        "CPU of NATS, which sends everything to every node": nats / (3 * NATS_CORES * BUSY),
        "network of NATS": (rate * nodes * 1_000 + _cursors(transport, subscribers))
        * 8
        / (3 * NATS_BITS * BUSY),
    }
    if transport == "WebSub":
        limits["64 shards, one owner each"] = nodes / SHARDS
        limits["cursors of a shard in one message"] = subscribers / SHARDS / SHARD_SUBSCRIPTIONS
    if transport == "MQTT":
        limits["one node feeds the broker"] = rate * (costs.bridge + costs.follow) / BUSY
        limits["the largest cluster of brokers"] = brokers / BROKER_CORES
    return Plan(
        deliveries=deliveries,
        nodes=nodes,
        nats=max(3, ceil(nats / BUSY)),
        brokers=brokers,
        memory=nodes * (costs.node + ENTRIES * costs.entry)
        + 3 * costs.server
        + subscribers * per_client,
        network=deliveries * size,
        limits=limits,
    )


def _cursors(transport: str, subscribers: int) -> float:
    """Return the bytes of cursors that the leaders of NATS send in a second, to two copies."""
    return subscribers * CURSOR_BYTES * CURSOR_WRITES * 3 if transport == "WebSub" else 0.0


def _nodes(costs: Costs, transport: str, subscribers: int, deliveries: float, rate: float) -> int:
    """Return the number of nodes, at least two; as if a limit of one node did not exist."""
    free = max(BUSY / 10, BUSY - rate * costs.follow - costs.idle)
    shared = rate * max(0.0, costs.receive - costs.follow)
    if transport == "WebSub":
        shared += deliveries * costs.websub
    if transport == "WebSocket":
        shared += deliveries * costs.websocket
    connected = ceil(subscribers / CONNECTIONS) if transport == "WebSocket" else 0
    return max(2, ceil(shared / free), connected)


def rows(figures: Figures, transport: str) -> Iterator[list[str]]:
    """Yield the cells of each row of a transport's table."""
    for subscribers in SUBSCRIBERS:
        for rate in RATES:
            made = plan(costs_of(figures, rate), transport, subscribers, rate)
            name, used = made.first
            yield [
                f"{subscribers:,}",
                f"{rate:,}",
                _number(made.deliveries),
                f"{made.nodes:,}",
                f"{made.nats:,}",
                *([f"{made.brokers:,}"] if transport == "MQTT" else []),
                f"{_number(made.memory / 1e9)} GB",
                f"{_number(made.network * 8 / 1e9)} Gbit/s",
                f"${_number(made.machines_price)} + ${_number(made.traffic_price)}",
                f"**{name}: {_number(used)} times its limit**" if used > 1
                else f"{name}: {used:.0%} of its limit",
            ]  # fmt: skip


def tables(figures: Figures) -> str:
    """Return the tables of all transports, in Markdown."""
    parts = []
    for transport in TRANSPORTS:
        head = ["subscribers", "changes/s", "deliveries/s", "nodes", "NATS cores"]
        head += ["broker cores"] if transport == "MQTT" else []
        head += ["memory", "network", "per month: machines + traffic", "breaks first"]
        parts.append(f"{transport}:\n\n" + markdown([head, *rows(figures, transport)]))
    return "\n".join(parts)


def measured(figures: Figures) -> str:
    """Return tables of the figures, in Markdown."""
    rows = {name: row for name, row in figures.items() if not name.startswith("memory")}
    columns = list(next(iter(rows.values())))
    memory = {name: row for name, row in figures.items() if name.startswith("memory")}
    things = list(dict.fromkeys(thing for row in memory.values() for thing in row))
    return (
        markdown([["µs of CPU, unless stated", *columns], *_lines(rows, columns)])
        + "\n"
        + markdown([["", *things], *_lines(memory, things)])
    )


def compared(figures: Figures) -> str:
    """Return a table of sums of all parts, with their ratios to SQLite in the same run."""
    nodes = {"SQLite": 1, "1 copy, 1 node": 1, "3 copies, 1 node": 1, "3 copies, 3 nodes": 3}
    sums: Figures = {}
    for how in ("one at a time", "in bursts"):
        sums[f"CPU of a fragment, {how}, µs"] = {
            name: figures[f"node that receives, {how}"][name]
            + figures[f"each other node, {how}"][name] * (count - 1)
            + figures[f"NATS, {how}"][name]
            for name, count in nodes.items()
        }
    websub = "delivery over WebSub"
    sums["CPU of a delivery over WebSocket, µs"] = figures["delivery over WebSocket"]
    sums["CPU of a delivery over WebSub, µs"] = {
        name: figures[websub][name] + figures[f"{websub}: NATS"][name] for name in nodes
    }
    sums["time until a fragment is accepted, ms"] = figures["until accepted, ms"]
    lines = [["all parts together", *nodes]]
    for row, values in sums.items():
        ratios = [f" ({values[name] / values['SQLite']:.1f} times)" for name in nodes][1:]
        cells = zip(nodes, ["", *ratios], strict=True)
        lines.append([row, *(_number(values[name]) + ratio for name, ratio in cells)])
    return markdown(lines)


def _lines(rows: Figures, columns: list[str]) -> Iterator[list[str]]:
    for name, row in rows.items():
        yield [name, *(_number(row[column]) if column in row else "" for column in columns)]


def markdown(lines: list[list[str]]) -> str:
    """Return a table; its first line is the head."""
    head, *others = ["| " + " | ".join(line) + " |\n" for line in lines]
    return "".join([head, "|" + " --- |" * len(lines[0]) + "\n", *others])


def _number(value: float) -> str:
    """Return two digits that count, with a word for large numbers."""
    for size, word in ((1e9, " billion"), (1e6, " million")):
        if value >= size:
            return f"{float(f'{value / size:.2g}'):,.10g}{word}"
    return f"{float(f'{value:.2g}'):,.10g}"


def recorded() -> Figures:
    """Return the figures that were recorded last."""
    found: Figures = json.loads(RECORDED.read_text())
    return found


if __name__ == "__main__":
    print(MEASURED, measured(recorded()), compared(recorded()), sep="\n")
    print(ASSUMED, tables(recorded()), sep="\n")
