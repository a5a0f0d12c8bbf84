"""Following one Source or many from the command line, until stopped or until level."""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Sequence
from typing import TYPE_CHECKING, Protocol, TypeVar

from rsnotify.runtime.cli.forced_shutdown import ForcedShutdown
from rsnotify.runtime.cli.running import printable, run

if TYPE_CHECKING:
    import asyncio

    from rsnotify_subscriber.commands.callback_server import CallbackServer
    from rsnotify_subscriber.commands.report import FollowReport

_REPORT_EVERY = 1.0
#: How many Sources one sentence names.
_NAMED = 10

S = TypeVar("S", covariant=True)
T = TypeVar("T")


class StatusRunner(Protocol[S]):
    """Follows: a `Subscriber` or a `Fleet`."""

    @property
    def status(self) -> S:
        """The present status."""

    @property
    def in_handler(self) -> list[str]:
        """Sources whose handler has been called and has not returned."""

    async def run(self) -> None:
        """Follow until stopped."""

    async def catch_up(self) -> None:
        """Follow until level."""

    def stop(self) -> None:
        """End `run` or `catch_up` in order."""


def follow_and_show(
    follower: StatusRunner[T],
    server: CallbackServer,
    report: FollowReport[T],
    *,
    once: bool,
    beside: Callable[[], Coroutine[None, None, None]] | None = None,
) -> None:
    """Follow, and show the status.

    Args:
        follower: Follows.
        server: Answers hubs meanwhile.
        report: Shows the status.
        once: Whether to end when level.
        beside: Makes a coroutine that runs meanwhile, if there is one.

    Raises:
        RsnotifyError: Following failed.
    """
    shutdown = ForcedShutdown(lambda: unfinished_work(follower.in_handler))
    with report:
        run(lambda stop: _follow(follower, server, report, stop, beside, once=once), shutdown)


def unfinished_work(sources: Sequence[str]) -> str:
    """Return in a sentence what keeps a process from ending in order.

    Args:
        sources: The Sources whose handlers have not returned.
    """
    what = "what was being done has not ended"
    if sources:
        of = ", ".join(sources[:_NAMED]) + (", …" if len(sources) > _NAMED else "")
        what = f"the handler of {of} has not returned"
    return printable(f"{what}, so it is left behind; the next start does that again")


async def _follow(
    follower: StatusRunner[T],
    server: CallbackServer,
    report: FollowReport[T],
    stop: asyncio.Event,
    beside: Callable[[], Coroutine[None, None, None]] | None,
    *,
    once: bool,
) -> None:
    import asyncio

    from rsnotify.runtime.tasks import running

    async def stop_on_signal() -> None:
        await stop.wait()
        follower.stop()

    async def show() -> None:
        while True:
            await asyncio.sleep(_REPORT_EVERY)
            report.show(follower.status)

    coroutines = [stop_on_signal(), show()] + ([] if beside is None else [beside()])
    async with running(*coroutines), server.serving():
        await (follower.catch_up() if once else follower.run())
