"""Power cuts of a Destination: its mirror, and its state."""

from __future__ import annotations

import asyncio
import os
import signal
import sqlite3
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, closing
from copy import copy
from pathlib import Path
from typing import Any

import msgspec

from rsnotify.format.datetimes import Instant, to_microseconds
from rsnotify.format.model import Resource
from rsnotify.sync.progress import Progress
from rsnotify_subscriber import FolderMirror, FollowOptions, Subscriber, Via
from rsnotify_subscriber.following.copy_check import apply_unfinished
from rsnotify_subscriber.mirror.paths import MirrorTree
from rsnotify_subscriber.storage.destination_state import DestinationState
from tests.harnesses.power_cuts.cuts import Experiment, Loss, PowerCut
from tests.harnesses.power_cuts.trace import Call, read_calls, traced
from tests.running import children_of
from tests.subscriber.destination import PACE, PATIENCE, files_of
from tests.subscriber.hub import SmallHub
from tests.subscriber.source import SmallSource

LARGE = 40_000
#: Where the copy and its state are, each in a folder that does not exist yet.
MIRROR, STATE = "copies/mirror", "states/state"
#: What of a Source changes with time.
_FIELDS = ("contents", "described", "changes", "closed", "begins", "last")


class RememberedSource:
    """A Source, with all that it was."""

    def __init__(self, source: SmallSource, hub: SmallHub) -> None:
        self.source = source
        self._hub = hub
        self._states: list[tuple[int, dict[str, Any]]] = []
        self.remember()

    def remember(self) -> None:
        now = {field: copy(getattr(self.source, field)) for field in _FIELDS}
        self._states.append((to_microseconds(self.source.last), now))

    def return_to(self, time: int | None = None) -> None:
        """Make the Source what it was at a time, or at last."""
        states = [state for at, state in self._states if time is None or at <= time]
        for field, value in (states or [self._states[0][1]])[-1].items():
            setattr(self.source, field, copy(value))

    def versions(self, name: str) -> list[tuple[int, bytes | None]]:
        """Return when a resource got which content, the oldest first."""
        versions: list[tuple[int, bytes | None]] = []
        for at, state in self._states:
            content = state["contents"].get(name)
            if not versions or versions[-1][1] != content:
                versions.append((at, content))
        return versions

    @property
    def names(self) -> set[str]:
        return {name for _, state in self._states for name in state["contents"]}

    def put(self, name: str, content: bytes) -> Resource:
        source = self.source
        small = len(content) < 1000
        change = source.put_inline(name, content) if small else source.put(name, content)
        self.remember()
        return change

    def delete(self, name: str) -> Resource:
        change = self.source.delete(name)
        self.remember()
        return change

    async def push(self, *make: Callable[[], Resource]) -> None:
        before = self.source.last
        changes = [each() for each in make]
        fragment = self.source.fragment(changes, before)
        await self._hub.publish(fragment, before, self.source.last)

    async def step(self, folder: Path, **changes: bytes | None) -> None:
        def change(path: str, content: bytes | None) -> Callable[[], Resource]:
            name = path.replace("_", "/")
            return lambda: self.delete(name) if content is None else self.put(name, content)

        await self.push(*(change(name, content) for name, content in changes.items()))
        await _equal(folder, self.source)


async def _equal(folder: Path, source: SmallSource) -> None:
    async with asyncio.timeout(PATIENCE):
        while copied(folder, source) != source.contents:  # noqa: ASYNC110 - of another process
            await asyncio.sleep(0.005)


async def _flushed(state: Path, source: SmallSource) -> None:
    """Wait until a state has the last change, and no content that is not flushed."""
    query = "SELECT value, (SELECT count(*) FROM contents) FROM facts WHERE name = 'progress'"
    with closing(sqlite3.connect(state / "state.sqlite")) as database:
        async with asyncio.timeout(PATIENCE):
            while True:
                ((progress, unflushed),) = database.execute(query)
                through = msgspec.json.decode(progress, type=Progress).through
                if through >= source.last and not unflushed:
                    return
                await asyncio.sleep(0.005)


def copied(folder: Path, source: SmallSource) -> dict[str, bytes]:
    """Return the contents in a mirror by the names of resources; files of none by their paths."""
    files = files_of(folder)
    tree = MirrorTree(folder, source.base)
    found = {}
    for name in source.contents:
        path = os.path.relpath(tree.find(source.base + name), folder)
        if path in files:
            found[name] = files.pop(path)
    return found | files


def _large(byte: int) -> bytes:
    return bytes([byte]) * LARGE


@asynccontextmanager
async def _remembered_source() -> AsyncIterator[RememberedSource]:
    source, hub = SmallSource(), SmallHub()
    await source.server.start()
    await hub.server.start()
    source.hubs = [hub.url]
    for name in ("r0", "r1", "r2", "x/r3", "x/y/r4", "a/b"):
        source.put(name, name.encode())
    source.put("large", _large(0))
    source.rotate()
    try:
        yield RememberedSource(source, hub)
    finally:
        await hub.stop()
        await source.server.stop()


@asynccontextmanager
async def traced_destination(folder: Path) -> AsyncIterator[Experiment]:
    """Run a Destination, kill it, and run it again.

    First it makes a copy, later it catches up; then it receives changes by push.
    """
    async with _remembered_source() as source:
        calls = await _trace(folder, source)

        async def check(cut: PowerCut) -> None:
            await _check_destination(cut, source)

        yield Experiment(folder, calls, _Nobody(), check)


class _Nobody:
    """Nobody relies on what a Destination sends: it is only requests."""

    def sent(self, stream: str, data: bytes) -> None: ...


async def _trace(folder: Path, source: RememberedSource) -> list[Call]:
    (folder / "disk").mkdir()
    mirror = folder / "disk" / MIRROR
    async with _following(folder, source, signal.SIGKILL):
        await _equal(mirror, source.source)
        await source._hub.subscribed()
        await source.step(mirror, r0=b"1")
        await source.step(mirror, r1=b"1", r2=b"1", z_new=b"1")
        await source.step(mirror, r0=b"2")
        await source.step(mirror, x_r3=None)
        await source.step(mirror, x_y_r4=None)
        await source.step(mirror, large=_large(1))
        await source.step(mirror, r0=b"3", u_v_large=_large(2), r1=None)
        await source.step(mirror, a=b"in the way")
        await source.step(mirror, a_b=None)
        await source.step(mirror, passing=b"created, then deleted")
        await source.step(mirror, r2=b"2")
        await source.step(mirror, passing=None)
        await source.step(mirror, large=None)
        for name in ("large1", "large2"):
            await source.step(mirror, **{name: _large(5)})
            await source.step(mirror, **{name: None})
        await source.step(mirror, u_v_large=_large(3))
        await source.step(mirror, k_l_m=b"in folders that are new", r0=b"5")
        await source.step(mirror, z_new=None)
    calls = read_calls(folder / "trace")
    source.source.rotate()
    source.remember()
    source.put("r0", b"4")
    source.put("away/large", _large(4))
    source.delete("r2")
    async with _following(folder, source, signal.SIGTERM):
        await _equal(mirror, source.source)
        await source._hub.subscribed(2)
        for number in range(6):
            name = f"last/{number % 3}"
            await source.step(mirror, **{name: b"%d" % number})
        # Each is alone in a flush.
        for name in ("last_1", "k_l_m"):
            await _flushed(folder / "disk" / STATE, source.source)
            await source.step(mirror, **{name: None})
        await _flushed(folder / "disk" / STATE, source.source)
    return read_calls(folder / "trace", after=calls)


@asynccontextmanager
async def _following(
    folder: Path, source: RememberedSource, end: signal.Signals
) -> AsyncIterator[None]:
    program = [sys.executable, "-m", "tests.harnesses.power_cuts.following_destination"]
    disk = folder / "disk"
    arguments = [source.source.url, str(disk / MIRROR), str(disk / STATE)]
    running = traced(folder / "trace", [*program, *arguments], os.environ)
    yield
    (child,) = children_of(running.pid)
    os.kill(child, end)
    code = await asyncio.to_thread(running.ends)
    assert code == (-end if end is signal.SIGKILL else 0), running.output()


class _MovedMirror(FolderMirror):
    """A mirror that is in the place where it was, though its folder was copied."""

    def __init__(self, folder: Path, place: str) -> None:
        super().__init__(folder)
        self._claimed = place if folder.exists() else ""

    @property
    def place(self) -> str:
        return self._claimed or super().place


async def _check_destination(cut: PowerCut, source: RememberedSource) -> None:
    """Check what is left of a Destination, and that it becomes equal to the Source."""
    mirror, state = cut.remains / MIRROR, cut.remains / STATE
    place = _check_opened(mirror, state, source, cut.time)
    # As the Source was at the power cut, or as it is much later.
    source.return_to(cut.time if cut.instant % 2 else None)
    subscriber = Subscriber(
        source.source.url,
        _MovedMirror(mirror, place),
        state=state,
        options=FollowOptions(pace=PACE, allow_private_addresses=True, via=Via.POLL),
    )
    await subscriber.catch_up()
    files = copied(mirror, source.source)
    if files != source.source.contents:
        wrong = {
            name
            for name in files.keys() | source.source.contents.keys()
            if files.get(name) != source.source.contents.get(name)
        }
        raise Loss(f"after catching up, the copy differs in {sorted(wrong)}")


def _check_opened(folder: Path, at: Path, source: RememberedSource, time: int) -> str:
    """Open what is left as a Destination does, check it; return the place of the mirror."""
    if not (at / "state.sqlite").exists():
        return ""
    with closing(DestinationState(at)) as state:
        identity, progress = state.identity(), state.progress()
        place = identity.place if identity is not None else ""
        mirror = _MovedMirror(folder, place)
        if identity is not None:
            incoming = state.make_incoming()
            mirror.prepare(identity.base, at)
            apply_unfinished(mirror, state, incoming)
        if progress is not None:
            _check_covered(mirror, source, progress.through, time)
    return place


def _check_covered(
    mirror: FolderMirror, source: RememberedSource, through: Instant, time: int
) -> None:
    """Check each resource that did not change between T and the power cut."""
    for name in source.names:
        versions = [version for version in source.versions(name) if version[0] <= time]
        if not versions or versions[-1][0] > to_microseconds(through):
            continue
        path = mirror.held_content(source.source.base + name)
        content = path.read_bytes() if path is not None else None
        if content != versions[-1][1]:
            raise Loss(f"T is {through}, and {name} has {(content or b'nothing')[:20]!r}")
