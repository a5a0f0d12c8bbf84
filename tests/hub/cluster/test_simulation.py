"""The simulation of a large cluster (`make simulate-scale`), with a small one."""

from __future__ import annotations

from random import Random

from benchmarks.simulate_scale import Result, results, simulate, subscriptions
from benchmarks.simulated_cluster import SimulatedCluster
from rsnotify_jetstream.shard_ownership import ClusterPace
from tests.hub.jetstream.hubs import node_of


def slowest(result: Result) -> float:
    return max(pause.unowned for pause in result.journal.pauses)


def test_whatever_happens_to_twenty_nodes_few_shards_move_and_none_is_without_owner() -> None:
    cluster = SimulatedCluster(subscriptions(10_000, 256, Random(1)), ClusterPace(), 1)
    found = {}
    for result in results(cluster, 20):
        found[result.name] = result
        assert result.is_stable, result.name
        for shard in cluster.shards:
            assert cluster.deliverer(shard) == node_of(shard, cluster.nodes), result.name
    for name in ("a node joins", "a node leaves", "a node is killed", "10 % are killed at once"):
        assert 0 < found[name].journal.moved == found[name].least
        assert slowest(found[name]) < 10
    assert found["a node is frozen for 20 s"].journal.moved > 0
    assert found["the store is away for 10 s"].journal.moved == 0
    assert all(result.journal.refused == 0 for result in found.values())


def test_a_simulation_prints_a_line_for_each_scenario() -> None:
    *_, line = simulate(nodes=3, shards=16, count=1000, seed=2)
    assert line.startswith("all restart, 5 % at a time")


def test_a_simulation_with_the_same_seed_has_the_same_result() -> None:
    first, second = (list(simulate(nodes=5, shards=64, count=1000, seed=3)) for _ in range(2))
    assert first == second
