"""The output of `rsnotify follow`: the status of a copy, and the result of `--once`."""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Sequence
from contextlib import AbstractAsyncContextManager
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import msgspec
from msgspec.structs import replace

from rsnotify.errors import counted
from rsnotify.format.datetimes import format_datetime
from rsnotify.runtime.command_line import forced_shutdown, printable, run
from rsnotify.runtime.command_reports import (
    DisplayLine,
    ProgressMeter,
    StatusReport,
    Work,
    duration,
    print_result,
)
from rsnotify_subscriber.status import ActivityKind, PushState, Status, SyncActivity, foreign_files

if TYPE_CHECKING:
    from rich.console import RenderableType

    from rsnotify_subscriber.commands.follow_options import CallbackServer
    from rsnotify_subscriber.fleet.fleet import Fleet
    from rsnotify_subscriber.subscriber import Subscriber

#: The description of a copy without doubts, by the result of the last audit (docs/audit.md).
_LEVEL = {None: "level", True: "in step", False: "different from the Source"}
#: The first line in a terminal.
LOOKING = str(ActivityKind.FINDING)
#: Maximum number of doubts, limits and errors to show in a terminal.
_MAX_SENTENCES = 3
_PUSH = {PushState.UP: "push up", PushState.DOWN: "push down: polling", PushState.OFF: "polling"}


class SubscriberReport(StatusReport[Status]):
    """Shows the status of one subscriber, and the progress of long operations."""

    def __init__(
        self, url: str = "", *, json: bool = False, quiet: bool = False, transient: bool = False
    ) -> None:
        super().__init__(LOOKING, json=json, quiet=quiet, transient=transient)
        self._source = url
        self._meter = ProgressMeter()
        self._lag = ""

    def show(self, status: Status) -> None:
        if not self._quiet:
            self.name_source(status)
        if status.activity is not None:
            self._meter.update(work_of(status.activity))
        if status.lag_ms is not None:
            lag = status.lag_ms
            after = f"{lag:.0f} ms" if lag < 1_000 else duration(lag / 1_000)
            self._lag = f"lag {after}"
        super().show(status)

    def name_source(self, status: Status) -> None:
        """Print the followed URL, once, unless it is the one that the user gave."""
        if status.source is not None and status.source != self._source and not self._json:
            self._source = status.source
            print_result(None, [f"the Source was found at {self._source}"], json=False)

    def sentence(self, status: Status) -> str:
        activity = status.activity
        if activity is not None and activity.kind is ActivityKind.FINDING:
            return LOOKING + (f": {printable(status.error)}" if status.error else "")
        if activity is not None:
            return self._meter.sentence
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

    def outcome(self, status: Status) -> str:
        """Return the last line of `--once`."""
        if not status.level:
            return self.sentence(status)
        differs = f"; {printable(status.difference)}" if status.difference else ""
        damaged = f"; {_damaged(status)}" if status.damaged else ""
        limits = "".join(f"; {printable(limit)}" for limit in status.limits)
        return (
            f"{_standing(status)}: {counted(status.resources, 'resource')}, "
            f"{_through(status)}, {_compared(status)}{differs}{damaged}{limits}"
        )

    def state(self, status: Status) -> object:
        doubts = len(status.doubts)
        standing = status.level, doubts, status.in_step, status.foreign
        if status.activity is not None and status.activity.kind is ActivityKind.FINDING:
            return LOOKING, status.error
        if status.activity is not None:
            return self.last_state  # the activity may end soon; otherwise, `counts` changes
        return status.push, status.way, status.baseline, *standing

    def counts(self, status: Status) -> object:
        done = status.activity and (status.activity.done, status.activity.bytes)
        return status.resources, status.applied, status.pending, done

    def facts(self, status: Status) -> dict[str, Any]:
        return status_facts(status)

    def display(self, status: Status) -> RenderableType:
        errors = [f"error: {status.error}"] if status.error else []
        if status.activity is not None:
            return replace(self._meter.line, below=errors)
        doubts = [f"doubt: {doubt}" for doubt in _doubts(status)]
        if status.in_step is False and status.difference:
            doubts.append(f"doubt: {status.difference}")
        limits = [f"limit: {limit}" for limit in status.limits]
        if any(status.error and status.error in doubt for doubt in doubts):
            errors = []
        is_right = status.level and not doubts
        changes = status.applied - status.copied
        return DisplayLine(
            f"{counted(status.resources, 'resource')} copied",
            [
                _standing_in_words(status),
                _PUSH[status.push],
                counted(changes, "change"),
                *([self._lag] if self._lag else []),
            ],
            style="green" if is_right else "yellow",
            below=_first([*doubts, *errors, *limits]),
        )


def _first(sentences: list[str]) -> list[str]:
    if len(sentences) <= _MAX_SENTENCES:
        return sentences
    return [*sentences[: _MAX_SENTENCES - 1], f"and {len(sentences) - _MAX_SENTENCES + 1} more"]


def work_of(activity: SyncActivity, compared: str = "resources") -> Work:
    """Return the work to show. `compared` is the noun for what `COMPARING` compares."""
    kind = activity.kind
    things = {
        **dict.fromkeys((ActivityKind.FINDING, ActivityKind.READING, ActivityKind.DOWNLOADING), ""),
        ActivityKind.VERIFYING: "files",
        ActivityKind.COMPARING: compared,
    }.get(kind, "resources")
    is_reading = kind is ActivityKind.READING
    return Work(
        f"{kind} the {activity.document}" if is_reading and activity.document else str(kind),
        things,
        activity.bytes if is_reading else activity.done,
        activity.total,
        activity.is_estimate,
        activity.bytes,
    )


def _standing_in_words(status: Status) -> str:
    if status.level and status.in_step is False:
        return "differs from the Source"
    if status.level:
        return "up to date" if status.push is PushState.UP else "up to date at the last poll"
    if status.through is None:
        missing = f", {counted(status.pending, 'resource')} to copy" if status.pending else ""
        return f"not complete{missing}"
    lasting = duration(max(0.0, (datetime.now(UTC) - status.through).total_seconds()))
    if status.pending:
        return f"behind by {counted(status.pending, 'change')}, {lasting}"
    return f"may be behind by {lasting}"


def status_facts(status: Status) -> dict[str, Any]:
    facts = msgspec.structs.asdict(status)
    del facts["baseline"], facts["verified"]
    return facts


def _damaged(status: Status) -> str:
    were = counted(status.damaged, "file was", "files were")
    return f"{were} changed or removed here since they were written, and will be fetched again"


def not_level(status: Status) -> str:
    """Return why a copy differs from the Source at the end of `--once`."""
    if status.level:
        found = foreign_files(status.foreign, status.foreign_files)
        them = "it" if status.foreign == 1 else "them"
        return printable(f"{found}; remove {them}, or move {them} away")
    stopped = "stopped before the copy was level"
    return f"{stopped}: {'; '.join(_doubts(status))}" if status.doubts else stopped


def _doubts(status: Status) -> list[str]:
    """Return the doubts, and a sentence about files that are not part of the copy."""
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


#: Seconds between reports, and between updates of a terminal.
_REPORT_INTERVAL, _DRAW_INTERVAL = 1.0, 0.5
#: Maximum number of Sources to name in a message.
_MAX_NAMED_SOURCES = 10


def follow_and_show(
    follower: Subscriber | Fleet,
    server: CallbackServer,
    report: StatusReport[Any],
    *,
    once: bool,
    serving: AbstractAsyncContextManager[None],
    beside: Callable[[], Coroutine[None, None, None]] | None = None,
) -> None:
    """Follow and show the status until stopped or, with `once`, until level.

    Args:
        follower: The subscriber or fleet.
        server: Serves WebSub callbacks meanwhile.
        report: Shows the status.
        once: Whether to end when the copies are level.
        serving: A context that serves the status meanwhile.
        beside: A coroutine function to run meanwhile.
    """
    import asyncio

    from rsnotify.runtime.tasks import running

    async def follow(stop: asyncio.Event) -> None:
        async def stop_on_signal() -> None:
            await stop.wait()
            follower.stop()

        async def show() -> None:
            while True:
                await asyncio.sleep(every)
                report.show(follower.status)

        coroutines = [stop_on_signal(), show()] + ([] if beside is None else [beside()])
        async with running(*coroutines), server.serving(), serving:
            await (follower.catch_up() if once else follower.run())

    every = _DRAW_INTERVAL if report.is_live else _REPORT_INTERVAL
    shutdown = forced_shutdown(lambda: unfinished_work(follower.in_handler))
    with report:
        run(follow, shutdown)


def unfinished_work(sources: Sequence[str]) -> str:
    """Return a sentence saying what prevents a process from ending gracefully."""
    what = "work is still in progress"
    if sources:
        names = ", ".join(sources[:_MAX_NAMED_SOURCES])
        names += ", …" if len(sources) > _MAX_NAMED_SOURCES else ""
        what = f"the handler of {names} has not returned"
    return printable(f"{what}, and is abandoned; the next start repeats it")
