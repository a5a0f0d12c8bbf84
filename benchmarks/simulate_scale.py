"""How shards move in a large cluster, and how long deliveries pause: `make simulate-scale`.

The decisions are those of a hub; the clock, the store and the network are simulated (see
`simulated_cluster.py`). A smaller cluster: `make simulate-scale ARGS="--nodes 20 --shards 256"`.
"""

from __future__ import annotations

import argparse
from bisect import bisect_left
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import accumulate
from random import Random

from benchmarks.simulated_cluster import (
    LOAD_EACH,
    LOST,
    TICK,
    Journal,
    SimulatedCluster,
    SimulatedNode,
)
from rsnotify_jetstream.shard_ownership import ClusterPace, weight

COLUMNS = (
    ("scenario", -28),
    ("moved", 7),
    ("at least", 9),
    ("paused", 7),
    ("median", 7),
    ("p99", 6),
    ("max", 6),
    ("|  median", 10),
    ("p99", 6),
    ("max", 6),
    ("|  writes/s", 12),
    ("refused", 8),
    ("messages", 11),
    ("stable", 8),
)


def subscriptions(count: int, shards: int, random: Random) -> dict[str, float]:
    """Spread subscriptions over shards: ten per host on average, by Zipf's law."""
    hosts = count // 10
    total = sum(1 / rank for rank in range(1, hosts + 1))
    spread = dict.fromkeys(map(str, range(shards)), 0.0)
    for rank in range(1, hosts + 1):
        spread[str(random.randrange(shards))] += count / total / rank
    return spread


class Scenarios:
    """What happens to a cluster, one after the other.

    Each yields the least number of shards that can move, and happens after that.
    """

    def __init__(self, cluster: SimulatedCluster, nodes: int) -> None:
        self._cluster = cluster
        self._count = nodes
        self._started = 0

    def __iter__(self) -> Iterator[tuple[str, Callable[[], int]]]:
        yield f"{self._count} nodes start", self._start
        yield "a node joins", self._join
        yield "a node leaves", self._leave
        yield "a node is killed", self._kill
        yield "a node is frozen for 20 s", self._freeze
        yield "10 % are killed at once", self._kill_many
        yield "the store is away for 10 s", self._lose_store
        yield "all restart, 5 % at a time", self._restart

    def _new(self) -> SimulatedNode:
        self._started += 1
        return self._cluster.join(f"{self._started:08x}{self._cluster.random.getrandbits(96):024x}")

    def _some(self, count: int) -> list[SimulatedNode]:
        return self._cluster.random.sample(list(self._cluster.nodes.values()), count)

    def _start(self) -> int:
        for _ in range(self._count):
            self._cluster.after(self._cluster.random.uniform(0, 5), self._new)
        self._cluster.run(5)
        return len(self._cluster.shards)

    def _join(self) -> int:
        new = self._new().name
        return sum(
            weight(new, shard) > weight(self._cluster.deliverer(shard) or "", shard)
            for shard in self._cluster.shards
        )

    def _leave(self) -> int:
        (node,) = self._some(1)
        node.drain()
        return len(self._cluster.delivered_by(node))

    def _kill(self) -> int:
        return self._kill_some(1)

    def _kill_many(self) -> int:
        return self._kill_some(max(1, len(self._cluster.nodes) // 10))

    def _kill_some(self, count: int) -> int:
        nodes = self._some(count)
        shards = sum(len(self._cluster.delivered_by(node)) for node in nodes)
        for node in nodes:
            self._cluster.kill(node)
        return shards

    def _freeze(self) -> int:
        (node,) = self._some(1)
        shards = len(self._cluster.delivered_by(node))
        self._cluster.freeze(node, 20)
        self._cluster.run(20)
        return 2 * shards

    def _lose_store(self) -> int:
        self._cluster.away_until = self._cluster.now + 10
        self._cluster.run(10)
        return 0

    def _restart(self) -> int:
        former = list(self._cluster.nodes.values())
        part = max(1, len(former) // 20)
        for first in range(0, len(former), part):
            batch = former[first : first + part]
            for node in batch:
                node.drain()
            while any(node.is_running for node in batch):
                self._cluster.run(0.5)
            for _ in batch:
                self._new()
            self._cluster.run(5)
        return len(self._cluster.shards)


def weighted(values: list[tuple[float, float]]) -> tuple[float, float, float]:
    """Return the median, 99th percentile and greatest of values with weights."""
    if not values:
        return 0.0, 0.0, 0.0
    values = sorted(values)
    sums = list(accumulate(each for _, each in values))

    def at(part: float) -> float:
        return values[min(bisect_left(sums, part * sums[-1]), len(values) - 1)][0]

    return at(0.5), at(0.99), values[-1][0]


@dataclass
class Result:
    """What happened in a scenario.

    Args:
        name: Its name.
        least: The least number of shards that can move.
        journal: What happened.
        is_stable: Whether all shards were delivered at its end, and nothing moved any more.
    """

    name: str
    least: int
    journal: Journal
    is_stable: bool


def results(cluster: SimulatedCluster, nodes: int) -> Iterator[Result]:
    """Run every scenario on a cluster that has no nodes yet."""
    for name, happen in Scenarios(cluster, nodes):
        journal = cluster.begin()
        least = happen()
        yield Result(name, least, journal, cluster.run_until_stable())


def row(cluster: SimulatedCluster, result: Result) -> list[str]:
    """Return the figures of a scenario."""
    journal = result.journal
    unowned = [(pause.unowned, 1.0) for pause in journal.pauses]
    paused = [(pause.undelivered, cluster.subscriptions[pause.shard]) for pause in journal.pauses]
    return [
        result.name,
        f"{journal.moved:,}",
        f"{result.least:,}",
        f"{len({pause.shard for pause in journal.pauses}):,}",
        *(f"{seconds:.1f}" for seconds in (*weighted(unowned), *weighted(paused))),
        f"{max(journal.writes.values(), default=0):,}",
        f"{journal.refused:,}",
        f"{journal.messages:,}",
        f"{journal.last_change - journal.began:.1f} s" if result.is_stable else "never",
    ]


def line(cells: list[str]) -> str:
    """Return a line of the table."""
    return "".join(
        f"{cell:<{-width}}" if width < 0 else f"{cell:>{width}}"
        for cell, (_, width) in zip(cells, COLUMNS, strict=True)
    )


def simulate(nodes: int, shards: int, count: int, seed: int) -> Iterator[str]:
    """Run the scenarios and yield the lines of a table."""
    pace = ClusterPace()
    spread = subscriptions(count, shards, Random(seed))
    cluster = SimulatedCluster(spread, pace, seed)
    yield f"# {nodes:,} nodes, {shards:,} shards, {count:,} subscriptions"
    yield (
        f"a shard has {count / shards:,.0f} subscriptions on average, the largest"
        f" {max(spread.values()):,.0f}; one is loaded in {LOAD_EACH * 1e6:.0f} µs"
    )
    yield (
        f"nodes decide every {TICK} s and renew their records every {pace.renew_seconds} s:"
        f" {nodes / pace.renew_seconds:,.0f} writes/s, {nodes**2 / pace.renew_seconds:,.0f}"
        f" messages/s; one answer of {LOST} is lost"
    )
    yield ""
    yield f"{'':51}{'seconds without an owner,':>25}{'|  seconds without deliveries,':>32}"
    yield line([name for name, _ in COLUMNS])
    yield from (line(row(cluster, result)) for result in results(cluster, nodes))


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--nodes", type=int, default=1_000)
    parser.add_argument("--shards", type=int, default=8_192)
    parser.add_argument("--subscriptions", type=int, default=10_000_000)
    parser.add_argument("--seed", type=int, default=1)
    chosen = parser.parse_args()
    for text in simulate(chosen.nodes, chosen.shards, chosen.subscriptions, chosen.seed):
        print(text, flush=True)


if __name__ == "__main__":
    main()
