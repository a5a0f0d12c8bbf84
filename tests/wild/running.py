"""A Destination at a wild Source: in this process or as commands, and whether it is honest."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

import msgspec

from rsnotify.errors import RsnotifyError
from rsnotify.format.model import ChangeType
from rsnotify.sync.pace import Pace
from rsnotify_subscriber import FolderMirror, Received, Status, Subscriber, audit, default_state
from tests.subscriber import destination
from tests.subscriber.destination import PATIENCE, files_of
from tests.subscriber.hub import SmallHub
from tests.subscriber.options import gathered
from tests.subscriber.processes import outcome as process_outcome
from tests.subscriber.processes import rsnotify
from tests.wild.source import Source


@dataclass(frozen=True)
class Outcome:
    """How a run ended, and what it says of the copy.

    Args:
        claims: Whether it says that the copy is right: `level`, "in step", exit 0.
        reasons: Why the copy may not be right, as far as it says so.
        status: The status at the end; None where a command does not report one.
        code: The exit code of a command.
        output: What a command wrote.
    """

    claims: bool
    reasons: tuple[str, ...]
    status: Status | None = None
    code: int | None = None
    output: str = ""


class Folder:
    """A copy in a folder, as `rsnotify follow` keeps it."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.state = default_state(path)

    @property
    def handler(self) -> FolderMirror:
        return FolderMirror(self.path)

    def files(self) -> dict[str, bytes]:
        """Return contents by name below the base of the Source."""
        return files_of(self.path)


class Recorder:
    """A copy in memory, made by a handler, as a Subscriber within another program does."""

    def __init__(self, base: str, state: Path | None = None) -> None:
        self.base = base
        self.state = state
        self.held: dict[str, bytes] = {}
        self.calls: list[tuple[str, str]] = []

    @property
    def handler(self) -> Recorder:
        return self

    async def apply(self, changes: Sequence[Received]) -> None:
        for one in changes:
            name = one.uri.removeprefix(self.base)
            self.calls.append((one.change.value, name))
            if one.change is ChangeType.DELETED:
                self.held.pop(name, None)
            else:
                assert one.content is not None
                self.held[name] = one.content.read_bytes()

    def files(self) -> dict[str, bytes]:
        """Return contents by name below the base of the Source."""
        return dict(self.held)


Copy = Folder | Recorder
#: The lists are polled as often with push as without.
PACE = msgspec.structs.replace(destination.PACE, poll_with_push=0.1)


def subscriber(source: Source | str, copy: Copy | Path, **options: Any) -> Subscriber:
    url = source if isinstance(source, str) else source.url
    copy = Folder(copy) if isinstance(copy, Path) else copy
    options = {"pace": PACE, "state": copy.state, **options}
    return Subscriber(url, copy.handler, **gathered(options))


#: A list that lags behind what was pushed or said before counts as an old copy for a moment only.
HURRIED = msgspec.structs.replace(PACE, stale=0.2, repair=0.05)


def pace(**fields: float) -> Pace:
    return msgspec.structs.replace(PACE, **fields)


async def follow_once(source: Source | str, copy: Copy | Path, **options: Any) -> Outcome:
    """Catch up within this process, and return what the subscriber says of the copy."""
    one = subscriber(source, copy, **options)
    error = ""
    try:
        async with asyncio.timeout(PATIENCE):
            await one.catch_up()
    except RsnotifyError as failure:
        error = str(failure)
    return outcome_of(one.status, error)


Truth = Source | dict[str, bytes]


async def run_honest(
    source: Source | str, copy: Copy | Path, truth: Truth | None = None, **options: Any
) -> Outcome:
    """Catch up, and hold what the subscriber says to the promise."""
    outcome = await follow_once(source, copy, **options)
    if truth is None:
        assert isinstance(source, Source), "what is right has to be given"
        truth = source
    assert_honest(copy, truth, outcome)
    return outcome


async def run_right(
    source: Source | str, copy: Copy | Path, truth: Truth | None = None, **options: Any
) -> Outcome:
    """Catch up, and assert that the copy is right and the subscriber says so."""
    outcome = await run_honest(source, copy, truth, **options)
    assert outcome.claims, outcome
    return outcome


async def run_until_right(source: Source, copy: Copy | Path, **options: Any) -> None:
    """Catch up until a run says that the copy is right.

    A run doubts a resource that it was requesting at the very moment when a comparison ended.
    """
    async with asyncio.timeout(PATIENCE):
        while not (await run_honest(source, copy, **options)).claims:
            pass


def outcome_of(status: Status, error: str = "") -> Outcome:
    """Return what a status says of the copy."""
    reasons = [error, status.error, status.difference, *getattr(status, "doubts", ())]
    if status.foreign:
        reasons.append(f"not part of the copy: {status.foreign_files}")
    claims = status.level and not error and status.in_step is not False and not status.foreign
    return Outcome(claims, tuple(filter(None, reasons)), status)


@asynccontextmanager
async def following(
    source: Source | str, copy: Copy | Path, **options: Any
) -> AsyncIterator[Subscriber]:
    async with subscriber(source, copy, **options) as one:
        yield one


@asynccontextmanager
async def pushed(
    hub: SmallHub, source: Source, copy: Copy | Path, **options: Any
) -> AsyncIterator[Subscriber]:
    """Follow with a hub until the block ends, which begins with a right copy."""
    async with following(source, copy, **options) as one:
        await hub.subscribed()
        await until_right(one, copy, source)
        yield one


async def until_right(one: Subscriber, copy: Copy | Path, source: Source) -> None:
    """Wait until a subscriber that runs says that the copy is right, and hold it to that."""
    copy = Folder(copy) if isinstance(copy, Path) else copy
    await until(one, lambda status: status.level and copy.files() == source.resources)


class Synchronize:
    """Makes a copy right whenever it is called; see the fixture of this name."""

    def __init__(self, source: Source, copy: Copy, *, goes_on: bool) -> None:
        self._source, self._copy = source, copy
        self._goes_on = goes_on
        self._subscriber: Subscriber | None = None
        self._life = AsyncExitStack()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._life.aclose()

    async def __call__(self) -> None:
        if not self._goes_on:
            await run_right(self._source, self._copy)
            return
        if self._subscriber is None:
            new = following(self._source, self._copy)
            self._subscriber = await self._life.enter_async_context(new)
        await until_right(self._subscriber, self._copy, self._source)


async def polled(one: Subscriber, source: Source, times: int = 2) -> None:
    """Wait until the Change List was read so many times more."""
    before = len(source.requests("changelist.xml"))
    await until(one, lambda _: len(source.requests("changelist.xml")) >= before + times)


async def until(one: Subscriber, condition: Callable[[Status], bool]) -> None:
    """Wait until the status of a subscriber that runs is such."""
    async with asyncio.timeout(PATIENCE):
        assert await one.until(condition)


async def command_follow_once(source: Source | str, folder: Path, *options: str) -> Outcome:
    url = source if isinstance(source, str) else source.url
    arguments = ("follow", url, folder, "--once", "--json", *options)
    code, output, errors = await process_outcome(await rsnotify(*arguments))
    lines = output.splitlines()
    said = json.loads(lines[-1]) if lines else {}
    reasons = [errors.strip(), said.get("error"), said.get("difference"), *said.get("doubts", ())]
    return Outcome(code == 0, tuple(filter(None, reasons)), code=code, output=output + errors)


async def command_honest(source: Source, folder: Path, *options: str) -> Outcome:
    """Run `rsnotify follow --once`, and hold what it says to the promise."""
    outcome = await command_follow_once(source, folder, *options)
    assert_honest(folder, source, outcome)
    return outcome


async def audited(source: Source, folder: Path) -> Outcome:
    """Audit in this process, without a pause before differences are compared again."""
    found = await audit(source.url, folder, pause=0)
    kinds = ("created", "updated", "deleted", "gone", "absent", "unknown")
    named = tuple(f"{kind} {name}" for kind in kinds for name in getattr(found, kind))
    code = {True: 0, False: 1, None: 2}[found.in_step]
    reasons = (*named, *found.reasons.values(), *found.doubts)
    return Outcome(found.in_step is True, reasons, code=code)


async def command_audit(source: Source | str, folder: Path, *options: str) -> Outcome:
    url = source if isinstance(source, str) else source.url
    arguments = ("audit", url, folder, "--json", *options)
    code, output, errors = await process_outcome(await rsnotify(*arguments))
    said = json.loads(output) if output else {}
    found = (
        f"{kind} {name}"
        for kind in ("created", "updated", "deleted", "gone", "absent", "unknown", "doubts")
        for name in said.get(kind, ())
    )
    reasons = (errors.strip(), *found)
    return Outcome(code == 0, tuple(filter(None, reasons)), code=code, output=output + errors)


def assert_honest(copy: Copy | Path, truth: Truth, outcome: Outcome) -> None:
    """Assert the one promise: the copy is right, or the outcome says that it may not be."""
    held = (Folder(copy) if isinstance(copy, Path) else copy).files()
    right = truth if isinstance(truth, dict) else truth.resources
    if outcome.claims:
        assert held == right, f"it says that the copy is right, and it is not: {outcome}"
    else:
        assert outcome.reasons, f"it does not say why the copy may not be right: {outcome}"
