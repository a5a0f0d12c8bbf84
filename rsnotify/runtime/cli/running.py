"""Functions that all commands share: running a coroutine, and reporting errors."""

from __future__ import annotations

import gc
import signal
from collections.abc import Callable, Coroutine
from contextlib import ExitStack, suppress
from typing import TYPE_CHECKING, TypeVar

import typer

from rsnotify.runtime.cli.forced_shutdown import ForcedShutdown

if TYPE_CHECKING:
    import asyncio

T = TypeVar("T")


#: The number of new objects after which Python collects garbage.
_GC_THRESHOLD = 50_000
_SIGNALS = (signal.SIGINT, signal.SIGTERM)


def run(
    main: Callable[[asyncio.Event], Coroutine[None, None, T]], forced: ForcedShutdown | None = None
) -> T:
    """Run a coroutine until it returns, on uvloop if that is installed.

    Args:
        main: Called with an event that is set at SIGINT or SIGTERM; it then shuts down gracefully.
        forced: Ends the process if the graceful shutdown takes too long.
    """
    import asyncio  # takes an eighth of the time of `rsnotify --help`, which does not need it

    async def supervised() -> T:
        stop = asyncio.Event()
        loop = asyncio.get_running_loop()
        for number in _SIGNALS:
            loop.add_signal_handler(number, stop.set)
        if forced is not None:
            contexts.enter_context(forced.after(_SIGNALS))
        return await main(stop)

    _reduce_garbage_collection()
    # Closing the loop waits for threads as well, so it comes before the end of `forced`.
    with ExitStack() as contexts, asyncio.Runner(loop_factory=_loop_factory()) as runner:
        return runner.run(supervised())


def _reduce_garbage_collection() -> None:
    """Make Python's cycle collector run rarely, and ignore all present objects.

    A message to many subscribers creates thousands of objects at once, and so does a list with many
    resources; none of them is in a cycle. With the default threshold the collector took a quarter
    of the CPU time of a hub, and an eighth of that of a Destination.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(_GC_THRESHOLD, 20, 20)


def run_until_stopped(work: Callable[[], Coroutine[None, None, T]]) -> T | None:
    """Run a coroutine as `run` does; return None if SIGINT or SIGTERM cancelled it."""
    import asyncio

    async def main(stop: asyncio.Event) -> T | None:
        working = asyncio.create_task(work())
        stopper = asyncio.create_task(stop.wait())
        await asyncio.wait([working, stopper], return_when=asyncio.FIRST_COMPLETED)
        stopper.cancel()
        if working.done():
            return working.result()
        working.cancel()
        with suppress(asyncio.CancelledError):
            await working
        return None

    return run(main)


def printable(text: str) -> str:
    """Replace control characters, which untrusted text could send to the terminal."""
    return "".join(character if character.isprintable() else "\ufffd" for character in text)


def complain(what: Exception | str, code: int) -> typer.Exit:
    """Print an error as one sentence, maybe with lines of details; return the exit to raise."""
    lines = map(printable, str(what).split("\n"))
    typer.echo("rsnotify: " + "\n".join(lines), err=True)
    return typer.Exit(code)


def _loop_factory() -> Callable[[], asyncio.AbstractEventLoop] | None:
    try:
        import uvloop
    except ImportError:
        return None
    return uvloop.new_event_loop
