"""What a node of the cluster uses: the records that all nodes share, and the work on its shards."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol


class ClusterRecords(Protocol):
    """The records that all nodes share, by their keys. Methods raise `StorageError`."""

    async def prepare(self) -> None:
        """Create the place for them, if absent."""

    async def follow(self, receive: Callable[[str, bytes | None, int], None]) -> None:
        """Pass on each record with its revision, and from now on each change, in order."""

    async def latest(self, key: str) -> tuple[bytes | None, int]:
        """Return a record and its revision as they are stored now; None and 0 if there is none."""

    async def put(self, key: str, value: bytes) -> int:
        """Store a record, and return its revision."""

    async def replace(self, key: str, value: bytes, revision: int) -> int | None:
        """Store a record in place of a revision; return the new one, None if it has another."""

    async def delete(self, key: str, revision: int) -> bool:
        """Delete a record that has a revision."""

    async def close(self) -> None:
        """Stop passing on changes."""


class ShardWork(Protocol):
    """What a node does for the shards that it owns."""

    async def load(self, shard: str, epoch: int) -> None:
        """Prepare the work on a shard, without beginning it. Raises `StorageError`."""

    def begin(self, shard: str) -> None:
        """Begin the work on a shard that was loaded."""

    async def finish(self, shard: str) -> None:
        """End the work on a shard within bounds, and write its state."""

    def abandon(self, shard: str) -> None:
        """End the work on a shard, or its loading, at once; write nothing."""
