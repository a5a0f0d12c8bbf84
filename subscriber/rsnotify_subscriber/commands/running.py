"""Following one Source or many from the command line, until stopped or until level."""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Sequence
from typing import TYPE_CHECKING, Protocol, TypeVar

from rsnotify.runtime.cli.forced_shutdown import ForcedShutdown
from rsnotify.runtime.cli.running import printable, run

if TYPE_CHECKING:
    from rsnotify_subscriber.commands.callback_server import CallbackServer
    from rsnotify_subscriber.commands.report import FollowReport

_REPORT_EVERY = 1.0
#: How many Sources one sentence names.
_NAMED = 10

RunningT = TypeVar("RunningT", covariant=True)
ResultT = TypeVar("ResultT")


class StatusRunner(Protocol[RunningT]):
    """Follows: a `Subscriber` or a `Fleet`."""

    @property
    def status(self) -> RunningT: ...

    @property
    def in_handler(self) -> list[str]:
        """Sources whose handler has been called and has not returned."""

    async def run(self) -> None: ...

    async def catch_up(self) -> None: ...

    def stop(self) -> None: ...


def follow_and_show(
    follower: StatusRunner[ResultT],
    server: CallbackServer,
    report: FollowReport[ResultT],
    *,
    once: bool,
    beside: Callable[[], Coroutine[None, None, None]] | None = None,
) -> None:
    """Follow, answer hubs and show the status until stopped; with `once`, until level.

    What `beside` makes runs meanwhile.
    """
    import asyncio

    from rsnotify.runtime.tasks import running

    async def follow(stop: asyncio.Event) -> None:
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

    shutdown = ForcedShutdown(lambda: unfinished_work(follower.in_handler))
    with report:
        run(follow, shutdown)


def unfinished_work(sources: Sequence[str]) -> str:
    """Return in a sentence what keeps a process from ending in order."""
    what = "what was being done has not ended"
    if sources:
        of = ", ".join(sources[:_NAMED]) + (", …" if len(sources) > _NAMED else "")
        what = f"the handler of {of} has not returned"
    return printable(f"{what}, so it is left behind; the next start does that again")
