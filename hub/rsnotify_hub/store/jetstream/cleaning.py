"""Deletes from the stream what no index has any more, in the background.

It may fail, or be done twice: what is left in the stream is deleted later, and no index has it.
The last entry of a topic always stays: it tells the state of the log. Single records are deleted in
order: a record that came too late shows that only while the stream has the one that came before it,
which a later record may replace.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque

from rsnotify.errors import StorageError
from rsnotify.runtime.tasks import cancel
from rsnotify_hub.store.jetstream.stream import LogStream

log = logging.getLogger("rsnotify.hub.store")

#: How many entries of a log are trimmed before they are deleted together.
TRIMMED_TOGETHER = 32
#: Seconds that deletions wait for others.
_DELAY = 0.5


class Cleaner:
    """Deletes records.

    Args:
        stream: The stream.
    """

    def __init__(self, stream: LogStream) -> None:
        self._stream = stream
        self._trimmed: dict[str, int] = {}
        self._purges: dict[str, int] = {}
        self._deletions: deque[int] = deque()
        self._wanted = asyncio.Event()
        self._cleaning = asyncio.create_task(self._clean())

    def delete(self, position: int) -> None:
        """Delete a record that another one replaces, or that came too late."""
        self._deletions.append(position)
        self._wanted.set()

    def trimmed(self, topic: str, entries: int, first: int, *, now: bool = False) -> None:
        """Delete the records before `first`, as soon as there are enough of them, or now."""
        count = self._trimmed.pop(topic, 0) + entries
        if count >= TRIMMED_TOGETHER or (now and count):
            self._purges[topic] = first
            self._wanted.set()
        elif count:
            self._trimmed[topic] = count

    async def _clean(self) -> None:
        while True:
            await self._wanted.wait()
            await asyncio.sleep(_DELAY)
            self._wanted.clear()
            purges, self._purges = self._purges, {}
            try:
                for topic, first in purges.items():
                    await self._stream.purge(topic, first)
                while self._deletions:
                    await self._stream.delete(self._deletions[0])
                    self._deletions.popleft()
            except StorageError as error:
                log.info("old records of the log stay in NATS for now: %s", error)

    async def close(self) -> None:
        await cancel([self._cleaning])
