"""What commands share: the one room of this package that may touch the event loop.

The format and the rules never import it.
"""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Callable, Coroutine
from contextlib import suppress
from typing import TypeVar

import typer

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


def run_until_stopped(work: Callable[[], Coroutine[None, None, T]]) -> T | None:
    """Run a coroutine as `run` does, and cancel it when asked to stop.

    Returns:
        What it returned; None if it was stopped before.
    """

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
