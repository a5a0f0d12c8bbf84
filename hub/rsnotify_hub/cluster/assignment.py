"""Assigns shards to nodes by rendezvous hashing.

Each node has a pseudo-random weight for each shard, and the shard belongs to the node with the
highest. So nodes that see the same members agree without talking to each other, and only the shards
of a node that joins or leaves change their node.
"""

from __future__ import annotations

from collections.abc import Iterable
from hashlib import blake2b


def weight(node: str, shard: str) -> int:
    return int.from_bytes(blake2b(f"{node} {shard}".encode(), digest_size=8).digest())


class Assignment:
    """The node that each shard belongs to."""

    def __init__(self, shards: Iterable[str]) -> None:
        self._nodes: set[str] = set()
        self._best: dict[str, tuple[int, str] | None] = dict.fromkeys(shards)

    def set_nodes(self, nodes: set[str]) -> None:
        """Replace the nodes; only the shards that this affects are computed again."""
        joined, left = nodes - self._nodes, self._nodes - nodes
        if not joined and not left:
            return
        self._nodes = set(nodes)
        for shard, best in self._best.items():
            if best is None or best[1] in left:
                candidates, best = nodes, None
            else:
                candidates = joined
            weights = [(weight(node, shard), node) for node in candidates]
            self._best[shard] = max(weights if best is None else [best, *weights], default=None)

    def node_of(self, shard: str) -> str | None:
        """Return the node that a shard belongs to; None if there are no nodes."""
        best = self._best[shard]
        return best[1] if best else None
