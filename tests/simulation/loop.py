"""An event loop in virtual time, in which machines are killed between any two callbacks.

The real code of Source, hub and Destination runs in one thread. Nothing waits: when no callback is
ready, the time of the loop advances to the next timer. Work for executors runs in the loop too,
after a delay that the seed decides. So a seed determines the whole run.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextvars
import sqlite3
from collections.abc import Callable, Coroutine
from random import Random
from typing import Any, TypeVar

from filelock import UnixFileLock

T = TypeVar("T")

#: The machine that runs the current callback; None for the simulation itself.
_machine: contextvars.ContextVar[Machine | None] = contextvars.ContextVar("machine", default=None)


class Deadlock(Exception):
    """Nothing is ready, and no timer is set."""


class Machine:
    """A process of a simulated machine; once it is killed, none of its callbacks runs any more."""

    def __init__(self, loop: SimulatedLoop, name: str) -> None:
        self.name = name
        self.is_alive = True
        self._loop = loop
        self.context = contextvars.copy_context()
        self.context.run(_machine.set, self)
        #: Called when the machine is killed: what the operating system does for a dead process.
        self.on_kill: list[Callable[[], object]] = []
        self._kept: list[object] = []

    def run(self, function: Callable[..., T], *arguments: Any) -> T:
        return self.context.copy().run(function, *arguments)

    def spawn(self, work: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
        task = self._loop.create_task(work, context=self.context.copy())
        self._kept.append(task)
        return task

    def kill(self) -> None:
        """Stop at once, without running any clean-up code."""
        self.is_alive = False
        # The garbage collector would run the clean-up code of abandoned coroutines.
        self._loop.dead.append((self, asyncio.all_tasks(self._loop)))
        for release in reversed(self.on_kill):
            release()
        self.on_kill.clear()


def current_machine() -> Machine | None:
    return _machine.get()


class _Selector:
    """Advances the time of the loop instead of waiting for sockets."""

    def __init__(self, loop: SimulatedLoop) -> None:
        self._loop = loop

    def select(self, timeout: float | None) -> list[Any]:
        if timeout is None:
            raise Deadlock("nothing is ready, and no timer is set")
        if timeout > 0:
            self._loop.now += timeout
        return []

    def close(self) -> None: ...


class SimulatedLoop(asyncio.BaseEventLoop):
    """An event loop in virtual time.

    Attributes:
        now: Seconds since the beginning of the run.
        random: Decides what the seed decides.
    """

    def __init__(self, seed: int) -> None:
        super().__init__()
        self.now = 0.0
        self.random = Random(seed)
        self.steps = 0
        #: The killed machines and their tasks.
        self.dead: list[tuple[Machine, object]] = []
        self._clock_resolution = 1e-6
        self._selector = _Selector(self)

    def time(self) -> float:
        return self.now

    def _process_events(self, event_list: object) -> None: ...

    def _write_to_self(self) -> None: ...

    def _guarded(self, callback: Callable[..., object], *arguments: Any) -> None:
        machine = _machine.get()
        self.steps += 1
        if machine is None or machine.is_alive:
            callback(*arguments)

    def call_soon(  # type: ignore[override]
        self, callback: Any, *arguments: Any, context: Any = None
    ) -> asyncio.Handle:
        return super().call_soon(self._guarded, callback, *arguments, context=context)

    def call_soon_threadsafe(  # type: ignore[override]
        self, callback: Any, *arguments: Any, context: Any = None
    ) -> asyncio.Handle:
        return self.call_soon(callback, *arguments, context=context)

    def call_at(  # type: ignore[override]
        self, when: float, callback: Any, *arguments: Any, context: Any = None
    ) -> asyncio.TimerHandle:
        return super().call_at(when, self._guarded, callback, *arguments, context=context)

    def run_in_executor(  # type: ignore[override]
        self, executor: Any, function: Callable[..., T], *arguments: Any
    ) -> asyncio.Future[T]:
        chosen = executor or default_executor(self)
        return asyncio.wrap_future(chosen.submit(function, *arguments), loop=self)

    async def getaddrinfo(self, host: Any, port: Any, **_: Any) -> Any:
        return [(2, 1, 6, "", (host, port))]


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
        self._waiting: list[_LazyFuture[Any]] = []
        self._next = 0.0

    def submit(self, fn: Callable[..., T], /, *args: Any, **kwargs: Any) -> _LazyFuture[T]:
        loop = asyncio.get_event_loop()
        assert isinstance(loop, SimulatedLoop)
        future: _LazyFuture[T] = _LazyFuture()
        machine = _machine.get()

        def work() -> None:
            if future.done() or not future.set_running_or_notify_cancel():
                return
            if machine is not None and not machine.is_alive:
                return
            try:
                result = fn(*args, **kwargs)
            except BaseException as error:
                future.set_exception(error)
            else:
                future.set_result(result)

        def run_in_order() -> None:
            while future in self._waiting:
                self._waiting.pop(0).run_alone()  # type: ignore[attr-defined]

        future.run_alone = work  # type: ignore[attr-defined]
        when = loop.now + loop.random.choice(_WORK_SECONDS)
        if self._is_ordered:
            self._waiting.append(future)
            future.run = run_in_order
            self._next = when = max(when, self._next)
        else:
            future.run = work
        loop.call_at(when, future.run)
        return future

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        while self._waiting:
            self._waiting[0].run()


#: How long blocking work takes.
_WORK_SECONDS = (0.0, 0.0001, 0.001, 0.001, 0.01, 0.3)


def default_executor(loop: SimulatedLoop) -> SimulatedExecutor:
    found = loop.__dict__.get("_executor")
    if found is None:
        found = loop.__dict__["_executor"] = SimulatedExecutor()
    return found


_acquire = UnixFileLock._acquire


def acquire(lock: UnixFileLock) -> None:
    """Acquire a lock, which is released when the machine is killed."""
    _acquire(lock)
    machine = _machine.get()
    if machine is not None and lock.is_locked:
        machine.on_kill.append(lambda: lock.release(force=True))


_connect = sqlite3.connect


def connect(*arguments: Any, **options: Any) -> sqlite3.Connection:
    """Open a database, which is closed without a commit when the machine is killed."""
    connection: sqlite3.Connection = _connect(*arguments, **options)
    machine = _machine.get()
    if machine is not None:
        machine.on_kill.append(connection.close)
    return connection
