"""The shard of each callback, by its host and port.

So what the hub limits per host, and the connections that it keeps, are in one place.
"""

from __future__ import annotations

from functools import lru_cache
from hashlib import blake2b

#: The shard of the bridge to the MQTT broker.
BRIDGE = "mqtt"
DEFAULT_SHARDS = 64


class Sharding:
    """The shards of a cluster, whose number never changes.

    Args:
        count: The number of shards of subscriptions.
    """

    def __init__(self, count: int) -> None:
        self.count = count
        self.shard_of = lru_cache(maxsize=65_536)(self._shard_of)

    def names(self) -> tuple[str, ...]:
        return (*map(str, range(self.count)), BRIDGE)

    def _shard_of(self, authority: str) -> str:
        digest = blake2b(authority.encode(), digest_size=8).digest()
        return str(int.from_bytes(digest) % self.count)
