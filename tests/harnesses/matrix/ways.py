"""The ways to follow: a Destination on a machine of its own, and what it claims."""

from __future__ import annotations

import asyncio
import os
import shutil
from collections.abc import Callable, Coroutine, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from posixpath import normpath
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote

from aiohttp import web

from rsnotify.errors import RsnotifyError
from rsnotify.format.model import ChangeType
from rsnotify.selection import Selection
from rsnotify.sync.pace import Pace
from rsnotify_subscriber import (
    Audit,
    Callbacks,
    Fleet,
    FolderMirror,
    FollowOptions,
    Received,
    Status,
    Subscriber,
    audit,
    repair,
)
from rsnotify_subscriber.mirror.paths import FALLBACKS
from rsnotify_subscriber.push_options import Via
from tests.harnesses.matrix.source import BASE
from tests.harnesses.simulation.loop import Clock, Machine, SimulatedLoop

if TYPE_CHECKING:
    from tests.harnesses.matrix.run import Run

#: As in production; but the comparisons are more frequent, and of the changes that are parked, all
#: but one are in the backlog.
PACE = Pace(compare=60.0, parked=1)
#: The time between two comparisons of the files with what was written.
CHECK_FILES = 60.0
#: After how many seconds something starts a Destination again that has ended with an error.
_RESTART = 30.0
_CALLBACK_PORT = 8020


@dataclass(frozen=True)
class Way:
    """A way to follow.

    Args:
        name: What it is called.
        text: What it is, for the documentation.
        once: Whether it is run when something is to be known, and ends.
        repairs: Whether it is `rsnotify audit --repair` that runs during the trouble.
        first: Whether the trouble is there when the first copy is made.
        adopts: Whether the folder of the first copy has files already.
        via: The transport.
        fleet: Whether a fleet follows.
        folder: Whether the copy is files, and not what a handler keeps.
        excluded: The resources that are not selected.
    """

    name: str
    text: str
    once: bool = False
    repairs: bool = False
    first: bool = False
    adopts: bool = False
    via: Via = Via.POLL
    fleet: bool = False
    folder: bool = True
    excluded: str = ""

    def __str__(self) -> str:
        return self.name

    @property
    def pushes(self) -> bool:
        return self.via is not Via.POLL

    @property
    def interval(self) -> float:
        """The time between two polls, at most."""
        return PACE.poll_with_push if self.pushes else PACE.poll


#: A new way is one more entry.
WAYS = (
    Way("once", "`rsnotify follow --once`, of a copy that exists", once=True),
    Way("first", "`rsnotify follow --once`, of the first copy", once=True, first=True),
    Way(
        "adopt",
        "the same in a folder with files, one of them wrong",
        once=True,
        first=True,
        adopts=True,
    ),
    Way("repair", "`rsnotify audit --repair`, then `follow --once`", once=True, repairs=True),
    Way("polling", "`rsnotify follow` without push"),
    Way("selection", "`rsnotify follow` of some resources, with push", via=Via.AUTO, excluded="bd"),
    Way("push", "`rsnotify follow` with a hub over WebSocket", via=Via.AUTO),
    Way("websub", "`rsnotify follow` with callbacks from a hub", via=Via.WEBSUB),
    Way("fleet", "a fleet", fleet=True),
    Way("embedded", "a handler in another program, with push", via=Via.AUTO, folder=False),
)


@dataclass(frozen=True)
class Claim:
    right: bool
    reasons: tuple[str, ...] = ()
    #: Whether it says that the copy is wrong, and does not only doubt it.
    wrong: bool = False
    #: The files that it says are not part of the copy; `rsnotify follow --once` then exits with 1.
    foreign: tuple[str, ...] = ()
    #: Whether it says that changed content may only be seen when everything is compared.
    limited: bool = False


class _Recorder:
    """The copy of an embedded handler; it outlives the process, as a database does."""

    def __init__(self, held: dict[str, bytes], errors: Mapping[str, Exception]) -> None:
        self.held = held
        self._errors = errors

    async def apply(self, changes: Sequence[Received]) -> None:
        for one in changes:
            name = one.uri.removeprefix(BASE)
            if error := self._errors.get(name, self._errors.get("")):
                raise error
            if one.change is ChangeType.DELETED:
                self.held.pop(name, None)
            else:
                assert one.content is not None
                self.held[name] = one.content.read_bytes()


class Destination:
    """A copy of the Source, and the process that keeps it."""

    def __init__(self, run: Run, loop: SimulatedLoop, way: Way, url: str) -> None:
        self.way, self.url = way, url
        selection = Selection(excluded=tuple(way.excluded))
        self.options: dict[str, Any] = {
            "check_files": CHECK_FILES,
            "selection": selection,
            "prefer": run.shape.prefer,
            "exact": run.shape.exact,
            "adopt": way.adopts,
        }
        self.pace = PACE
        self.clock = Clock()
        self.root = Path("destination")
        self.copy, self.state = self.root / "copy", self.root / "state"
        self.held: dict[str, bytes] = {}
        #: The errors that an embedded handler raises, by resource; for all resources, by "".
        self.errors: dict[str, Exception] = {}
        self.machine: Machine | None = None
        #: The errors with which runs have ended.
        self.failures: list[str] = []
        self._run, self._loop = run, loop
        self._status: Callable[[], Claim] = lambda: Claim(False, ("it does not run",))
        self._running: Subscriber | None = None
        self.root.mkdir()
        #: The files that are there before the first copy, and may have to be named as foreign.
        self.found = set(run.source.contents if way.adopts else ())
        if way.adopts:
            self.copy.mkdir()
            for name in self.found:
                content = b"wrong" if name == "b" else run.source.contents[name]
                (self.copy / name).write_bytes(content)

    def _subscriber(self, *, callbacks: Callbacks | None = None, **shared: Any) -> Subscriber:
        known = set(FollowOptions.__struct_fields__)
        given = {name: value for name, value in self.options.items() if name in known}
        options = FollowOptions(
            via=self.way.via,
            callbacks=callbacks,
            pace=self.pace,
            allow_private_addresses=True,
            **given,
        )
        handler = FolderMirror(self.copy) if self.way.folder else _Recorder(self.held, self.errors)
        return Subscriber(self.url, handler, state=self.state, options=options, **shared)

    # Processes

    def _boot(self) -> Machine:
        self.kill()
        self.machine = machine = Machine(self._loop, "destination", self.clock)
        self._run.network.register(machine)
        return machine

    def kill(self) -> None:
        if self.machine is not None:
            self.machine.kill()
            self.machine = None
        self._status = lambda: Claim(False, ("it does not run",))

    def start(self) -> None:
        """Follow, unless the way is to catch up now and then."""
        if not self.way.once:
            machine = self._boot()
            machine.spawn(self._follow())

    async def _listen(self) -> Callbacks:
        """Serve the callbacks of this process."""
        assert self.machine is not None
        callbacks = Callbacks(f"http://127.0.0.1:{_CALLBACK_PORT}/callbacks/")
        application = web.Application()
        application.add_routes(callbacks.routes())
        await self._run.network.serve(self.machine, _CALLBACK_PORT, application)
        return callbacks

    async def _follow(self) -> None:
        callbacks = await self._listen() if self.way.via is Via.WEBSUB else None
        while True:
            if self.way.fleet:
                fleet = Fleet()
                fleet.add("one", self._subscriber(shared=fleet.shared))
                self._status = lambda fleet=fleet: _claim(  # type: ignore[misc]
                    fleet.status["one"].status, fleet.status["one"].error
                )
                await fleet.run()
                return
            self._running = one = self._subscriber(callbacks=callbacks)
            self._status = lambda one=one: _claim(one.status)  # type: ignore[misc]
            try:
                await one.run()
            except RsnotifyError as error:
                self.failures.append(str(error))
                text = str(error)
                self._status = lambda text=text: Claim(False, (text,))  # type: ignore[misc]
            await asyncio.sleep(_RESTART)

    async def report_lost(self, name: str) -> None:
        """Have a resource fetched again that the handler has lost."""
        assert self._running is not None
        assert self.machine is not None
        await self.machine.spawn(self._running.verify([BASE + name]))

    @property
    def claim(self) -> Claim:
        is_paused = self.machine is not None and self.machine.is_paused
        return Claim(False, ("it is suspended",)) if is_paused else self._status()

    async def catch_up(self) -> Claim:
        """Run `rsnotify follow --once`."""
        return await self._run_once(self._caught_up())

    async def repair(self) -> Claim:
        """Run `rsnotify audit --repair`."""
        return await self._run_once(self._repaired())

    async def _run_once(self, work: Coroutine[Any, Any, Claim]) -> Claim:
        machine = self._boot()
        ended: asyncio.Future[Claim] = self._loop.create_future()
        machine.on_kill.append(
            lambda: ended.done() or ended.set_result(Claim(False, ("it was killed",)))
        )

        async def end() -> None:
            try:
                claim = await work
            except Exception as failure:
                self._run.wrong("ends", f"it ends by {failure!r}")
                claim = Claim(False, (repr(failure),))
            if not ended.done():
                ended.set_result(claim)

        machine.spawn(end())
        return await ended

    async def _caught_up(self) -> Claim:
        one, error = self._subscriber(), ""
        try:
            await one.catch_up()
        except RsnotifyError as failure:
            error = str(failure) or type(failure).__name__
        return _claim(one.status, error)

    async def audit(self) -> Claim:
        machine = Machine(self._loop, "auditor", self.clock)
        self._run.network.register(machine)
        found = await machine.spawn(self._audited())
        machine.kill()
        return found

    async def _audited(self) -> Claim:
        try:
            found = await audit(self.url, self.copy, state=self.state, options=self._reading)
        except (RsnotifyError, OSError) as error:  # the command prints both
            return Claim(False, (str(error),))
        return _claim_of_audit(found)

    async def _repaired(self) -> Claim:
        try:
            done = await repair(self.url, self.copy, state=self.state, options=self._reading)
        except (RsnotifyError, OSError) as error:  # the command prints both
            return Claim(False, (str(error),))
        return _claim_of_audit(done.after or done.found)

    @property
    def _reading(self) -> FollowOptions:
        return FollowOptions(
            pace=self.pace, allow_private_addresses=True, prefer=self.options["prefer"]
        )

    # The copy

    def contents(self) -> dict[str, bytes]:
        """Return the contents of the copy, by the names of resources.

        What is no resource, or one that is there already by another name, is named as it is held.
        """
        found: dict[str, bytes] = {}
        for held, content in self.held.items() if not self.way.folder else self._files():
            name = _name(held)
            found[held if name in found else name] = content
        return found

    def _files(self) -> Iterator[tuple[str, bytes]]:
        root = str(self.copy)
        for where, _, names in os.walk(root):
            for name in names:
                path = os.path.join(where, name)
                with suppress(OSError), open(path, "rb") as file:
                    yield path[len(root) + 1 :], file.read()

    def path(self, name: str) -> Path:
        return next(iter(self.copy.rglob("a"))).with_name(name)

    def back_up(self, *, copy: bool, state: bool) -> None:
        """Keep the present copy and state for `restore`."""
        for wanted, folder in ((copy, self.copy), (state, self.state)):
            if wanted:
                shutil.copytree(folder, f"{folder}.backup", symlinks=True)

    def restore(self) -> None:
        """Put back what was kept, as `cp -a` does, or `rsync`."""
        for folder in (self.copy, self.state):
            backup = Path(f"{folder}.backup")
            if backup.exists():
                shutil.rmtree(folder)
                shutil.copytree(backup, folder, symlinks=True)


@cache  # The copies of all runs have the same few names.
def _name(held: str) -> str:
    """Return the name of a resource by its URI, in any spelling, or by the path of its file."""
    uri = unquote(held.rpartition("copy/")[2].rpartition(f"{FALLBACKS}/")[2])
    return normpath(uri).rpartition("set/")[2]


def _claim_of_audit(found: Audit) -> Claim:
    kinds = ("created", "updated", "deleted", "gone", "absent", "unknown")
    named = [
        f"{kind} {name}"
        for kind in kinds
        for name in getattr(found, kind)
        if name not in found.foreign
    ]
    wrong = found.in_step is False and bool(named or not found.foreign)
    right = found.in_step is not None and not wrong
    return Claim(right, (*named, *found.doubts), wrong, tuple(map(_name, found.foreign)))


def _claim(status: Status, error: str | None = None) -> Claim:
    reasons = [error, status.error, status.difference, *status.doubts]
    if not (status.level or status.doubts) and status.activity is not None:
        reasons.append(status.activity.kind)  # what the Source offers is not known yet
    right = status.level and status.in_step is not False and (not error or error == status.error)
    foreign = tuple(map(_name, status.foreign_files))
    shown = tuple(dict.fromkeys(filter(None, reasons)))
    return Claim(right, shown, foreign=foreign, limited=bool(status.limits))
