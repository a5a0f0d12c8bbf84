"""Following from the command line until stopped or level, and showing the status meanwhile.

A status is shown live in a terminal, else as lines or as JSON.
"""

from __future__ import annotations

import sys
from abc import ABC, abstractmethod
from collections.abc import Callable, Coroutine, Iterable, Sequence
from typing import TYPE_CHECKING, Any, Generic, Protocol, TypeVar

import msgspec
import typer

from rsnotify.errors import counted
from rsnotify.format.datetimes import format_datetime
from rsnotify.runtime.command_line import ForcedShutdown, printable, run
from rsnotify_subscriber.events import Status, foreign_files

if TYPE_CHECKING:
    from rich.console import RenderableType

    from rsnotify.runtime.display import ProgressBar
    from rsnotify_subscriber.commands.follow_options import CallbackServer

#: The seconds (calls of `show`) between two lines while only counts change.
_LINE_EVERY = 10
#: The description of a copy without doubts, by the result of the last audit (docs/audit.md).
_LEVEL = {None: "level", True: "in step", False: "other than the Source says"}

S = TypeVar("S")
T = TypeVar("T", contravariant=True)


class StatusView(Protocol[T]):
    """What reports show of one kind of status, that of a `Subscriber` or of a `Fleet`."""

    def sentence(self, status: T) -> str:
        """Return the status as one line."""

    def state(self, status: T) -> object:
        """Return the part of the status whose changes are shown at once."""

    def counts(self, status: T) -> object:
        """Return the part whose changes are shown now and then."""

    def news(self, status: T) -> Iterable[str]:
        """Yield lines about what has changed since the last call."""

    def facts(self, status: T) -> dict[str, Any]:
        """Return the status for JSON."""

    def display(self, status: T) -> RenderableType:
        """Return what a terminal shows."""


class FollowReport(ABC, Generic[S]):
    """Shows a status about once a second; a context manager."""

    def __init__(self, view: StatusView[S]) -> None:
        self._view = view

    def __enter__(self) -> None: ...

    def __exit__(self, *_: object) -> None: ...

    @abstractmethod
    def show(self, status: S) -> None: ...


class JsonFollowReport(FollowReport[S]):
    """One JSON object for each status."""

    def show(self, status: S) -> None:
        typer.echo(msgspec.json.encode(self._view.facts(status)).decode())


class LineFollowReport(FollowReport[S]):
    """A line when the state changes, and now and then while only counts change.

    A service manager stores all lines, so a copy that does not change writes none.
    """

    def __init__(self, view: StatusView[S]) -> None:
        super().__init__(view)
        self._state: object = ()
        self._counts: object = ()
        self._calls = 0

    def show(self, status: S) -> None:
        for line in self._view.news(status):
            typer.echo(printable(line))
        state, counts = self._view.state(status), self._view.counts(status)
        self._calls += 1
        if state != self._state or (counts != self._counts and self._calls >= _LINE_EVERY):
            typer.echo(self._view.sentence(status))
            self._state, self._counts, self._calls = state, counts, 0


class TerminalFollowReport(FollowReport[S]):
    """A display that is refreshed in place."""

    def __init__(self, view: StatusView[S]) -> None:
        from rsnotify.runtime.display import live

        super().__init__(view)
        self._live = live("looking for the Source")

    def __enter__(self) -> None:
        self._live.start()

    def __exit__(self, *_: object) -> None:
        self._live.stop()

    def show(self, status: S) -> None:
        self._live.update(self._view.display(status))


def report_for(view: StatusView[S], *, json: bool) -> FollowReport[S]:
    """Return the report for a program, a terminal or a log."""
    if json:
        return JsonFollowReport(view)
    return TerminalFollowReport(view) if sys.stdout.isatty() else LineFollowReport(view)


class SubscriberView:
    """The status of one subscriber.

    A terminal shows a progress bar during a baseline, and while all files are read.
    """

    def __init__(self) -> None:
        self._bar: ProgressBar | None = None

    def sentence(self, status: Status) -> str:
        return sentence(status)

    def state(self, status: Status) -> object:
        doubts = len(status.doubts)
        standing = status.level, doubts, status.in_step, status.foreign
        return status.push, status.way, status.baseline, *standing

    def counts(self, status: Status) -> object:
        return status.resources, status.applied, status.pending

    def news(self, status: Status) -> Iterable[str]:
        return ()

    def facts(self, status: Status) -> dict[str, Any]:
        return status_facts(status)

    def display(self, status: Status) -> RenderableType:
        from rich.text import Text

        from rsnotify.runtime.display import ProgressBar

        if status.baseline:
            text, done, total = "baseline", status.applied, status.applied + status.pending
        elif status.verified is not None:
            text, done, total = "files verified", status.verified, status.resources
        else:
            return Text(sentence(status))
        if self._bar is None or self._bar.text != text:
            self._bar = ProgressBar(text)
        self._bar.show(done, total)
        return self._bar.rendered


def status_facts(status: Status) -> dict[str, Any]:
    facts = msgspec.structs.asdict(status)
    del facts["baseline"], facts["verified"]
    return facts


def sentence(status: Status) -> str:
    lag = "" if status.lag_ms is None else f", lag {status.lag_ms:.1f} ms"
    by = f" by {', '.join(status.way)}" if status.way else ""
    reservations = _doubts(status) if status.doubts else status.limits
    doubts = f": {'; '.join(reservations)}" if reservations else ""
    return (
        f"{counted(status.resources, 'resource')}, {counted(status.applied, 'change')} "
        f"applied{lag}, "
        f"{_standing(status)}, {_through(status)}, {_compared(status)}, "
        f"push {status.push}{by}{printable(doubts)}"
    )


def outcome(status: Status) -> str:
    """Return the last line of a run that catches up and exits."""
    if not status.level:
        return sentence(status)
    differs = f"; {printable(status.difference)}" if status.difference else ""
    damaged = f"; {_damaged(status)}" if status.damaged else ""
    limits = "".join(f"; {printable(limit)}" for limit in status.limits)
    return (
        f"{_standing(status)}: {counted(status.resources, 'resource')}, "
        f"{_through(status)}, {_compared(status)}{differs}{damaged}{limits}"
    )


def _damaged(status: Status) -> str:
    were = counted(status.damaged, "file was", "files were")
    return f"{were} changed or removed here since they were written: fetched again"


def not_level(status: Status) -> str:
    """Return why a copy is not equal to the Source when a run that catches up has ended."""
    if status.level:
        found = foreign_files(status.foreign, status.foreign_files)
        them = "it" if status.foreign == 1 else "them"
        return printable(f"{found}; remove {them}, or move {them} away")
    stopped = "it was stopped before the copy was level"
    return f"{stopped}: {'; '.join(_doubts(status))}" if status.doubts else stopped


def _doubts(status: Status) -> list[str]:
    """Return why a copy may be wrong, and which files in its folder are not part of it."""
    foreign = foreign_files(status.foreign, status.foreign_files)
    return [*status.doubts, *([foreign] if status.foreign else [])]


def _standing(status: Status) -> str:
    if status.level:
        foreign = counted(status.foreign, "file here is", "files here are")
        beside = f", but {foreign} not part of the copy" if status.foreign else ""
        return f"{_LEVEL[status.in_step]}{beside}"
    return f"{status.pending} pending" if status.pending else "not level"


def _through(status: Status) -> str:
    if status.through is None:
        return "not synced yet"
    return f"synced through {format_datetime(status.through)}"


def _compared(status: Status) -> str:
    if status.compared is None:
        return "never compared with the whole set"
    return f"compared with the whole set at {status.compared:%Y-%m-%dT%H:%M:%SZ}"


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
