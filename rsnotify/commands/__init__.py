"""What commands share: the one room of this package that may touch the event loop.

The format and the rules never import it.
"""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Callable, Coroutine
from typing import TypeVar

T = TypeVar("T")


def run(main: Callable[[asyncio.Event], Coroutine[None, None, T]]) -> T:
    """Run a coroutine until it returns, on uvloop where that is installed.

    Args:
        main: Gets an event that is set once when the user (SIGINT) or the system (SIGTERM)
            asks to stop; it then ends in its own order.
    """

    async def supervised() -> T:
        stop = asyncio.Event()
        loop = asyncio.get_running_loop()
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.add_signal_handler(number, stop.set)
        return await main(stop)

    with asyncio.Runner(loop_factory=_loop_factory()) as runner:
        return runner.run(supervised())


def _loop_factory() -> Callable[[], asyncio.AbstractEventLoop] | None:
    try:
        import uvloop
    except ImportError:
        return None
    return uvloop.new_event_loop
