"""Assigns shards to nodes by rendezvous hashing.

Each node has a pseudo-random weight for each shard, and the shard belongs to the node with the
highest. So nodes that see the same members agree without talking to each other, and only the shards
of a node that joins or leaves change their node.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from hashlib import blake2b


def weight(node: str, shard: str) -> bytes:
    """Return what to compare; it is so long that no two nodes have the same."""
    return blake2b(f"{node} {shard}".encode(), digest_size=16).digest()


def node_of(shard: str, nodes: Iterable[str]) -> str | None:
    """Return the node that a shard belongs to; None if there are no nodes."""
    return max(nodes, key=lambda node: weight(node, shard), default=None)


class Assignment:
    """The shards that belong to one node.

    For each shard that does not, a *rival* is known: any other node with a higher weight. So a node
    that joins is compared only for the shards that belong to this one, and a node that leaves costs
    a search for the shards whose rival it was. A search tries about log(nodes) nodes: one shard for
    all nodes, or all shards for one node, but never each for each.
    """

    def __init__(self, node: str, shards: Iterable[str]) -> None:
        self._node = node
        self._others: set[str] = set()
        self._is_candidate = False
        self._won = dict.fromkeys(shards)
        self._rivals: dict[str, str] = {}

    def set_nodes(self, nodes: set[str]) -> None:
        """Replace the nodes; shards belong to this node only if it is one of them."""
        self._is_candidate = self._node in nodes
        others = nodes - {self._node}
        joined, left = others - self._others, self._others - others
        self._others = others
        if left:
            self._find_rivals([s for s, rival in self._rivals.items() if rival in left], others)
        if joined:
            self._find_rivals(list(self._won), joined)

    def _find_rivals(self, shards: list[str], nodes: Collection[str]) -> None:
        for shard in shards:
            own = weight(self._node, shard)
            rival = next((node for node in nodes if weight(node, shard) > own), None)
            if rival is None:
                self._rivals.pop(shard, None)
                self._won[shard] = None
            else:
                self._won.pop(shard, None)
                self._rivals[shard] = rival

    @property
    def own(self) -> Collection[str]:
        """The shards that belong to this node, in a fixed order."""
        return self._won.keys() if self._is_candidate else ()
