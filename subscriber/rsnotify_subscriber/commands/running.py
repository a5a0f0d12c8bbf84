"""Following from the command line, one Source or many: until one is asked to stop, or once."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable, Coroutine, Sequence
from typing import Protocol, TypeVar

from rsnotify.runtime.cli.forced_shutdown import ForcedShutdown
from rsnotify.runtime.cli.running import printable, run
from rsnotify_subscriber.commands.options import CallbackServer

_REPORT_EVERY = 1.0
#: How many Sources one sentence names.
_NAMED = 10

S = TypeVar("S", covariant=True)
R = TypeVar("R", contravariant=True)
T = TypeVar("T")


class Follows(Protocol[S]):
    """What follows: a `Subscriber` or a `Fleet`."""

    @property
    def status(self) -> S:
        """How it is going."""

    @property
    def in_handler(self) -> list[str]:
        """Sources whose handler has been called and has not returned."""

    async def run(self) -> None:
        """Follow until stopped."""

    async def catch_up(self) -> None:
        """Follow until level."""

    def stop(self) -> None:
        """Let `run` or `catch_up` end in order."""


class Report(Protocol[R]):
    """Shows a status about once a second; a context manager."""

    def __enter__(self) -> object:
        """Begin."""

    def __exit__(self, *exception: object) -> None:
        """End."""

    def show(self, status: R) -> None:
        """Show how it is going."""


def report_for(
    json: Callable[[], Report[T]],
    terminal: Callable[[], Report[T]],
    lines: Callable[[], Report[T]],
    *,
    wants_json: bool,
) -> Report[T]:
    """Make the report that suits whoever reads it."""
    if wants_json:
        return json()
    return terminal() if sys.stdout.isatty() else lines()


def follow_and_show(
    follower: Follows[T],
    hearing: CallbackServer,
    report: Report[T],
    *,
    once: bool,
    beside: Callable[[], Coroutine[None, None, None]] | None = None,
) -> None:
    """Follow, and show how it goes.

    Args:
        follower: Follows.
        hearing: How hubs reach this process.
        report: Shows.
        once: Whether to end when level.
        beside: Is run meanwhile, if there is something.

    Raises:
        RsnotifyError: Following failed.
    """
    leaving = ForcedShutdown(lambda: unfinished_work(follower.in_handler))
    with report:
        run(lambda stop: _follow(follower, hearing, report, stop, beside, once=once), leaving)


def unfinished_work(sources: Sequence[str]) -> str:
    """Say what keeps a process from ending, as it ends without that.

    Args:
        sources: Whose handlers have not returned.
    """
    what = "what was being done has not ended"
    if sources:
        of = ", ".join(sources[:_NAMED]) + (", …" if len(sources) > _NAMED else "")
        what = f"the handler of {of} has not returned"
    return printable(f"{what}, so it is left behind; the next start does that again")


async def _follow(
    follower: Follows[T],
    hearing: CallbackServer,
    report: Report[T],
    stop: asyncio.Event,
    beside: Callable[[], Coroutine[None, None, None]] | None,
    *,
    once: bool,
) -> None:
    tasks = [
        asyncio.create_task(_stop_when_asked(stop, follower)),
        asyncio.create_task(_show(follower, report)),
    ]
    if beside is not None:
        tasks.append(asyncio.create_task(beside()))
    try:
        async with hearing.answering():
            await (follower.catch_up() if once else follower.run())
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def _stop_when_asked(stop: asyncio.Event, follower: Follows[object]) -> None:
    await stop.wait()
    follower.stop()


async def _show(follower: Follows[T], report: Report[T]) -> None:
    while True:
        await asyncio.sleep(_REPORT_EVERY)
        report.show(follower.status)
