"""An event loop whose clock advances at once when there is nothing to do."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any


class VirtualLoop(asyncio.SelectorEventLoop):
    """Time passes only while all tasks wait for it; none may wait for the network."""

    def __init__(self) -> None:
        super().__init__()
        self._passed = 0.0
        poll = self._selector.select  # type: ignore[attr-defined]

        def select(timeout: float | None) -> Any:
            assert timeout is not None, "nothing will ever happen any more"
            self._passed += max(0.0, timeout)
            return poll(0)

        self._selector.select = select  # type: ignore[attr-defined]

    def time(self) -> float:
        return self._passed


def run(work: Coroutine[Any, Any, None]) -> None:
    with asyncio.Runner(loop_factory=VirtualLoop) as runner:
        runner.run(work)
