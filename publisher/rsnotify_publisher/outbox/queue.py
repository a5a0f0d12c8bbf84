"""The interface between a forwarder and the database of an outbox."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Protocol

from msgspec import Struct


class OutboxLine(Struct, frozen=True):
    """A line of the outbox: its key in the table, and the change as JSON."""

    number: int
    entry: str


#: Records the changes in some lines durably; returns the reasons for those refused, by number.
RecordLines = Callable[[Sequence[OutboxLine]], Mapping[int, str]]


class OutboxQueue(Protocol):
    """Reads an outbox; used by one thread, except for `interrupt`."""

    def forward(self, limit: int, record: RecordLines) -> int:
        """Record what was committed, then delete it, in one transaction.

        Only one process at a time may do so, or changes of one resource could change places. If
        `record` raises, or the process dies, nothing is deleted.

        Args:
            limit: Largest number of lines.
            record: Records the lines, of which there may be none. Refused lines are kept, with
                the reason, and are not passed to it again.

        Returns:
            The number of lines; 0 if another process is forwarding.

        Raises:
            StorageError: The database cannot be read or written.
        """

    def wait(self, seconds: float) -> None:
        """Wait until there may be new lines, until interrupted, or until the time is over.

        Raises:
            StorageError: The database is not available.
        """

    def interrupt(self) -> None:
        """Make `wait` return immediately until `close`; may be called in any thread."""

    def close(self) -> None:
        """Disconnect; the next call connects again."""
