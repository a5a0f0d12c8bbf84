"""Functions that all commands share: running a coroutine, and reporting errors."""

from __future__ import annotations

import signal
from collections.abc import Callable, Coroutine
from contextlib import ExitStack, suppress
from typing import TYPE_CHECKING, TypeVar

import typer

from rsnotify.runtime.cli.forced_shutdown import ForcedShutdown

if TYPE_CHECKING:
    import asyncio

T = TypeVar("T")


_SIGNALS = (signal.SIGINT, signal.SIGTERM)


def run(
    main: Callable[[asyncio.Event], Coroutine[None, None, T]], leaving: ForcedShutdown | None = None
) -> T:
    """Run a coroutine until it returns, on uvloop where that is installed.

    Args:
        main: Gets an event that is set once when the user (SIGINT) or the system (SIGTERM)
            asks to stop; it then ends in its own order.
        leaving: Ends the process where that does not come about.
    """
    import asyncio  # takes an eighth of the time of `rsnotify --help`, which does not need it

    async def supervised() -> T:
        stop = asyncio.Event()
        loop = asyncio.get_running_loop()
        for number in _SIGNALS:
            loop.add_signal_handler(number, stop.set)
        if leaving is not None:
            beside.enter_context(leaving.after(_SIGNALS))
        return await main(stop)

    # Closing the loop waits for threads as well, so that comes before `leaving` ends.
    with ExitStack() as beside, asyncio.Runner(loop_factory=_loop_factory()) as runner:
        return runner.run(supervised())


def run_until_stopped(work: Callable[[], Coroutine[None, None, T]]) -> T | None:
    """Run a coroutine as `run` does, and cancel it when asked to stop.

    Returns:
        What it returned; None if it was stopped before.
    """
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
    """Leave no control character to the terminal, where the text is a stranger's."""
    return "".join(one if one.isprintable() else "\ufffd" for one in text)


def complain(what: Exception | str, code: int) -> typer.Exit:
    """Tell the user what went wrong: in one sentence, though it may name several things below.

    Args:
        what: The error, or the sentence.
        code: The exit code.

    Returns:
        What is to be raised then.
    """
    lines = map(printable, str(what).split("\n"))
    typer.echo("rsnotify: " + "\n".join(lines), err=True)
    return typer.Exit(code)


def _loop_factory() -> Callable[[], asyncio.AbstractEventLoop] | None:
    try:
        import uvloop
    except ImportError:
        return None
    return uvloop.new_event_loop
