"""How fast a cluster reacts."""

from __future__ import annotations

from msgspec import Struct


class ClusterPace(Struct, frozen=True):
    """How fast nodes and shards change, in seconds of the observer's clock.

    Args:
        renew_seconds: How often a node renews its record.
        fence_seconds: How long after its last renewal a node owns nothing.
        death_seconds: How long after the last renewal that it saw another node considers it dead.
        settle_seconds: How long a new node waits for its first shards; long enough for it to see a
            renewal of each living node.
        moves: How many shards one node takes, or releases, at the same time.
        part: One of how many of its shards a node takes, or releases while it drains, at the same
            time, if these are more than `moves`.
        forget_seconds: How long a dead node keeps its record.
    """

    renew_seconds: float = 2.0
    fence_seconds: float = 4.0
    death_seconds: float = 6.0
    settle_seconds: float = 3.0
    moves: int = 8
    part: int = 4
    forget_seconds: float = 60.0
