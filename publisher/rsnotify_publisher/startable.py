"""What can be started and closed, and so be entered and left, in threads and in asyncio."""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from typing import Self


class Startable(ABC):
    """Runs from `start` to `close`, or within `with` or `async with`."""

    @abstractmethod
    def start(self) -> None:
        """Begin; once is enough."""

    @abstractmethod
    def close(self) -> None:
        """End in order; nothing happens if it does not run."""

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    async def __aenter__(self) -> Self:
        await asyncio.to_thread(self.start)
        return self

    async def __aexit__(self, *_: object) -> None:
        await asyncio.to_thread(self.close)
