"""What a forwarder asks of the database in which an outbox stands."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Protocol

from msgspec import Struct


class OutboxLine(Struct, frozen=True):
    """A line of the outbox.

    Args:
        number: Its key in the table.
        entry: The change, as JSON.
    """

    number: int
    entry: str


#: Is given lines, makes the changes in them durable, and returns why some cannot be, by number.
RecordLines = Callable[[Sequence[OutboxLine]], Mapping[int, str]]


class OutboxQueue(Protocol):
    """Gives what waits in an outbox; used by one thread, but for `interrupt`."""

    def forward(self, limit: int, take: RecordLines) -> int:
        """Hand over what was committed, then delete it, as one transaction.

        Only one at a time does so, or changes of one resource could change places. If `take`
        raises, or the process dies, everything stays where it is.

        Args:
            limit: How many lines at most.
            take: What they are handed to. What it cannot use is kept, with the reason, and
                is not handed over again.

        Returns:
            How many there were; 0 if another process is at it.

        Raises:
            StorageError: The database cannot be read or written.
        """

    def wait(self, seconds: float) -> None:
        """Wait until there may be something new, or until interrupted, but not longer.

        Raises:
            StorageError: The database is away.
        """

    def interrupt(self) -> None:
        """Let `wait` return from now on, until `close`; called in any thread."""

    def close(self) -> None:
        """Disconnect; what is called next connects again."""
