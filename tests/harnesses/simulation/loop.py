"""An event loop in virtual time, in which machines are killed between any two callbacks.

The real code of Source, hub and Destination runs in one thread. Nothing waits: when no callback is
ready, the time of the loop advances to the next timer. Work for executors runs in the loop too,
after a delay that the seed decides. So a seed determines the whole run.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextvars
from collections import deque
from collections.abc import Callable, Coroutine, Iterable
from functools import partial
from heapq import heappop, heappush
from itertools import count
from random import Random
from typing import TYPE_CHECKING, Any, ClassVar, Self, TypeVar

from filelock import Timeout

if TYPE_CHECKING:
    from tests.harnesses.simulation.disk import SimulatedDisk
    from tests.harnesses.simulation.network import Network
    from tests.harnesses.simulation.wire import Wire

T = TypeVar("T")
#: The machine that runs the current callback; None for the simulation itself.
_machine: contextvars.ContextVar[Machine | None] = contextvars.ContextVar("machine", default=None)


class Deadlock(Exception):
    """Nothing is ready, and no timer is set."""


_FRACTION = 0.000_137


class Clock:
    """The time of day of a machine, in seconds since the beginning of the run.

    It differs a little from the loop's time. Otherwise many changes would be dated at a whole
    second, which means any time within that second.
    """

    def __init__(self) -> None:
        self._ahead = _FRACTION
        self._stands_at: float | None = None

    def read(self, now: float) -> float:
        return (now if self._stands_at is None else self._stands_at) + self._ahead

    def set(self, ahead: float) -> None:
        """Set it ahead of the true time by so many seconds."""
        self._ahead, self._stands_at = ahead + _FRACTION, None

    def stop(self, now: float) -> None:
        self._stands_at = now


class Machine:
    """A process of a simulated machine; once it is killed, none of its callbacks runs any more."""

    def __init__(self, loop: SimulatedLoop, name: str, clock: Clock | None = None) -> None:
        self.name = name
        self.clock = clock or Clock()
        self.process = next(loop.processes)
        self.is_alive = True
        #: How many of its callbacks have run; while that is the same, so is what it knows and has.
        self.steps = 0
        #: What a machine that is paused has to run; None while it is not.
        self._paused: list[asyncio.Handle] | None = None
        #: By how much its work for executors takes longer.
        self.slowness = 1
        self._loop = loop
        self.context = contextvars.copy_context()
        self.context.run(_machine.set, self)
        #: Called when the machine is killed: what the operating system does for a dead process.
        self.on_kill: list[Callable[[], object]] = []
        #: The connections to databases that are kept, by the file and the options.
        self.databases: dict[tuple[object, ...], list[Any]] = {}

    def run(self, function: Callable[..., T], *arguments: Any) -> T:
        return self.context.copy().run(function, *arguments)

    def spawn(self, work: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
        return self._loop.create_task(work, context=self.context.copy())

    def pause(self) -> None:
        """Stop like a process by SIGSTOP, until `resume`."""
        if self._paused is None:
            self._paused = []

    def resume(self) -> None:
        held, self._paused = self._paused, None
        self._loop.run_soon(held or ())

    @property
    def is_paused(self) -> bool:
        return self._paused is not None

    def may_run(self, handle: asyncio.Handle) -> bool:
        """Return whether a callback may run now; keep it if it may run later."""
        if self.is_alive and self._paused is not None:
            self._paused.append(handle)
            return False
        self.steps += 1
        return self.is_alive

    def kill(self) -> None:
        """Stop at once, without running any clean-up code."""
        self.is_alive = False
        for release in reversed(self.on_kill):
            release()
        self.on_kill.clear()
        self.databases.clear()


def current_machine() -> Machine | None:
    return _machine.get()


def current_loop() -> SimulatedLoop:
    assert SimulatedLoop.current is not None
    return SimulatedLoop.current


def serial_hash(self: object) -> int:
    """Return a hash that does not depend on the address, for the order of objects in sets."""
    serials = current_loop().serials
    return serials.setdefault(id(self), (len(serials), self))[0]


class _Handle(asyncio.TimerHandle):
    """A callback, without what only the debug mode of asyncio needs."""

    __slots__ = ()

    def __init__(self, when: float, callback: Any, arguments: Any, context: Any) -> None:
        self._when = when
        self._callback = callback
        self._args = arguments
        self._context = contextvars.copy_context() if context is None else context
        self._cancelled = False
        self._source_traceback = None

    def cancel(self) -> None:
        self._cancelled = True
        self._callback = self._args = None  # type: ignore[assignment]


class SimulatedTask(asyncio.Task[T]):
    __hash__ = serial_hash


class SimulatedFuture(asyncio.Future[T]):
    __hash__ = serial_hash


class SimulatedLoop(asyncio.BaseEventLoop):
    """An event loop in virtual time.

    Attributes:
        now: Seconds since the beginning of the run.
        random: Decides what the seed decides.
        steps: How many callbacks have run.
        tasks: All tasks, and the callbacks that did not run: otherwise, the clean-up code of killed
            machines would run.
        serials: The hashes of objects, with the objects, by their addresses.
        locks: The files that are locked.
        disks: The disks of the machines, by the names of their folders.
        disks_note_flushes: Whether the power may be cut; noting what is flushed takes time.
    """

    current: ClassVar[SimulatedLoop | None] = None
    #: Returns False; asyncio calls it for each future.
    get_debug = bool

    _scheduled: list[Any]
    _ready: deque[asyncio.Handle]

    def __init__(self, seed: int) -> None:
        super().__init__()
        self.now = 0.0
        self.random = Random(seed)
        self.network: Network
        self.wire: Wire
        self.steps = 0
        #: All tasks, and what killed machines were about to run, so that none of it is destroyed
        #: before the run ends.
        self.tasks: list[SimulatedTask[Any]] = []
        self._dropped: list[object] = []
        self.serials: dict[int, tuple[int, object]] = {}
        self.locks: dict[str, SimulatedLock] = {}
        self.disks: dict[str, SimulatedDisk] = {}
        self.disks_note_flushes = True
        #: What is done once the current callback has ended.
        self.processes = count(2)
        self._then: list[Callable[[], object]] = []
        self._default = SimulatedExecutor()
        self._serials = count()
        self.set_task_factory(self._make_task)

    def time(self) -> float:
        return self.now

    @property
    def timers(self) -> int:
        return sum(not timer._cancelled for _, _, timer in self._scheduled)

    def _make_task(self, _: object, work: Any, **options: Any) -> Any:
        task = SimulatedTask(work, loop=self, **options)
        self.tasks.append(task)
        return task

    def _asyncgen_firstiter_hook(self, agen: object) -> None: ...

    def _run_once(self) -> None:
        """Run what is ready, or else what is scheduled next, unless its machine was killed."""
        ready, scheduled = self._ready, self._scheduled
        while not ready:
            if not scheduled:
                raise Deadlock("nothing is ready, and no timer is set")
            when, _, timer = heappop(scheduled)
            if not timer._cancelled:
                self.now = max(self.now, when)
                ready.append(timer)
        while scheduled and scheduled[0][0] <= self.now:
            timer = heappop(scheduled)[2]
            if not timer._cancelled:
                ready.append(timer)
        self.steps += len(ready)
        for _ in range(len(ready)):
            handle: Any = ready.popleft()
            if handle._cancelled:
                continue
            context = handle._context
            machine = context.get(_machine)
            if machine is not None and not machine.may_run(handle):
                self._dropped.append(handle)
                continue
            try:
                context.run(handle._callback, *handle._args)
            except Exception as error:
                self.call_exception_handler({"message": "in a callback", "exception": error})
            while self._then:
                self._then.pop()()

    def after_callback(self, work: Callable[[], object]) -> None:
        """Do something after the current callback, before any other."""
        self._then.append(work)

    def create_future(self) -> asyncio.Future[Any]:
        return SimulatedFuture(loop=self)

    def run_soon(self, handles: Iterable[asyncio.Handle]) -> None:
        self._ready.extend(handles)

    def call_at(  # type: ignore[override]
        self, when: float, callback: Any, *arguments: Any, context: Any = None
    ) -> asyncio.TimerHandle:
        timer = _Handle(when, callback, arguments, context)
        heappush(self._scheduled, (when, next(self._serials), timer))
        return timer

    def call_later(  # type: ignore[override]
        self, delay: float, callback: Any, *arguments: Any, context: Any = None
    ) -> asyncio.TimerHandle:
        return self.call_at(self.now + delay, callback, *arguments, context=context)

    def call_soon(  # type: ignore[override]
        self, callback: Any, *arguments: Any, context: Any = None
    ) -> asyncio.Handle:
        handle = _Handle(self.now, callback, arguments, context)
        self._ready.append(handle)
        return handle

    call_soon_threadsafe = call_soon  # type: ignore[assignment]

    def run_in_executor(  # type: ignore[override]
        self, executor: Any, function: Callable[..., T], *arguments: Any
    ) -> asyncio.Future[T]:
        future: asyncio.Future[T] = self.create_future()
        (executor or self._default).schedule(partial(function, *arguments), future)
        return future

    async def getaddrinfo(self, host: Any, port: Any, **_: Any) -> Any:
        return [(2, 1, 6, "", (host, port))]


class _Call:
    def __init__(self, function: Callable[[], Any], future: Any) -> None:
        self._function = function
        self.future = future
        self.machine = _machine.get()

    def run(self) -> None:
        if self.future.done() or (self.machine is not None and not self.machine.is_alive):
            return
        try:
            result = self._function()
        except BaseException as error:
            self.future.set_exception(error)
        else:
            self.future.set_result(result)


class _LazyFuture(concurrent.futures.Future[T]):
    """The result of a call that runs when its turn comes, or when something waits for it."""

    run: Callable[[], None]

    def result(self, timeout: float | None = None) -> T:
        self.run()
        return super().result(0)


class SimulatedExecutor(concurrent.futures.Executor):
    """Runs calls in the event loop, each after a delay; with one worker, in their order."""

    def __init__(self, max_workers: int | None = None, *_: object, **__: object) -> None:
        self._is_ordered = max_workers == 1
        self._waiting: list[_Call] = []
        self._next = 0.0

    def submit(self, fn: Callable[..., T], /, *args: Any, **kwargs: Any) -> _LazyFuture[T]:
        future: _LazyFuture[T] = _LazyFuture()
        future.run = self.schedule(partial(fn, *args, **kwargs), future)
        return future

    def schedule(self, function: Callable[[], T], future: Any) -> Callable[[], None]:
        """Run a function later, which sets the result of a future; return what runs it at once."""
        loop = current_loop()
        call = _Call(function, future)
        slowness = 1 if call.machine is None else call.machine.slowness
        when = loop.now + loop.random.choice(_WORK_SECONDS) * slowness
        run = call.run
        if self._is_ordered:
            self._waiting.append(call)
            self._next = when = max(when, self._next)
            run = partial(self._run_through, call)
        loop.call_at(when, run)
        return run

    def _run_through(self, call: _Call) -> None:
        while call in self._waiting:
            self._waiting.pop(0).run()

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        if self._waiting:
            self._run_through(self._waiting[-1])


#: How long blocking work takes.
_WORK_SECONDS = (0.0, 0.0001, 0.001, 0.001, 0.01, 0.3)


class SimulatedLock:
    """A lock of a file between machines, in the place of `FileLock`; released by a kill."""

    def __init__(
        self, path: Any, timeout: float = -1, blocking: bool = True, thread_local: bool = True
    ) -> None:
        self._path = str(path)
        self._is_tried = timeout == 0 or not blocking
        self._count = 0
        #: Who acquired it last.
        self.machine: Machine | None = None

    @property
    def is_locked(self) -> bool:
        return self._count > 0

    def acquire(self, timeout: float | None = None, blocking: bool = True) -> SimulatedLock:
        locks = current_loop().locks
        if locks.get(self._path, self) is not self:
            if self._is_tried or timeout == 0 or not blocking:
                raise Timeout(self._path)
            raise Deadlock(f"{self._path} is locked, in one thread")
        with open(self._path, "ab"):
            pass
        if not self._count:
            self.machine = _machine.get()
            if self.machine is not None:
                self.machine.on_kill.append(partial(self.release, force=True))
        locks[self._path] = self
        self._count += 1
        return self

    def release(self, force: bool = False) -> None:
        self._count = 0 if force else max(0, self._count - 1)
        locks = current_loop().locks
        if not self._count and locks.get(self._path) is self:
            del locks[self._path]

    def __enter__(self) -> Self:
        if not self._count:
            self.acquire()
        return self

    def __exit__(self, *_: object) -> None:
        self.release()
