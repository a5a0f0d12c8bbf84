"""Replaces what the code would use of the real machine: threads, clocks, sockets and chance."""

from __future__ import annotations

import asyncio
import concurrent.futures
import inspect
import os
import secrets
import sqlite3
import ssl
import sys
import threading
import time
from collections.abc import Callable, Hashable
from datetime import UTC, datetime, timedelta, tzinfo
from pathlib import Path
from random import Random
from types import SimpleNamespace
from typing import Any

import aiohappyeyeballs
from filelock import FileLock

import rsnotify_hub.hub
import rsnotify_hub.store.sqlite_store
import rsnotify_publisher.background.pool
from rsnotify.format.datetimes import to_microseconds
from rsnotify.runtime.addresses import look_up
from rsnotify.runtime.shared_websockets import SharedWebSockets
from rsnotify_hub.live.subscribers import LiveSubscriber
from rsnotify_hub.store.group_commit import GroupCommit
from rsnotify_hub.websocket.websocket_handler import WebSocketPublication
from rsnotify_publisher.background.pool import JournalPoller, PoolThreads, WorkKind
from rsnotify_subscriber.fetching.small_requests import _Progress
from tests.harnesses.simulation import loop as simulated
from tests.harnesses.simulation import sqlite_files
from tests.harnesses.simulation.invariants import check_leads
from tests.harnesses.simulation.loop import SimulatedLock, SimulatedLoop, current_loop, serial_hash

#: Made once, since that takes long; nothing is encrypted.
_TLS = ssl.create_default_context()
#: Not midnight: a datetime in whole seconds at midnight may denote a day.
EPOCH = datetime(2026, 1, 1, 9, 30, tzinfo=UTC)
_EPOCH = to_microseconds(EPOCH)


#: What must live as long as the process.
hooks: list[object] = []


class SimulatedThreads(PoolThreads):
    """The loop of the simulation in the place of that of a thread."""

    def __init__(self, sets: int) -> None:
        self.loop = asyncio.get_event_loop()
        self.workers = {kind: simulated.SimulatedExecutor() for kind in WorkKind}  # type: ignore[misc]
        self.readers = simulated.SimulatedExecutor()  # type: ignore[assignment]
        self.recorders = simulated.SimulatedExecutor()  # type: ignore[assignment]
        self.poller = JournalPoller()
        self.permits = asyncio.Semaphore(8)
        self.websockets = SharedWebSockets()
        self._polling = asyncio.ensure_future(self.poller.run())

    def end(self) -> None:
        self._polling.cancel()


class SimulatedScheduler:
    """Runs jobs at intervals of virtual time; in the place of APScheduler."""

    def __init__(self, **_: object) -> None:
        self._jobs: list[tuple[Callable[[], Any], float]] = []
        self._tasks: list[asyncio.Task[None]] = []

    async def _repeat(self, seconds: float, work: Callable[[], Any]) -> None:
        while True:
            await asyncio.sleep(seconds)
            await work()

    def add_job(
        self, work: Callable[[], Any], kind: str, *, seconds: float, name: str = ""
    ) -> None:
        self._jobs.append((work, seconds))

    def start(self) -> None:
        for work, seconds in self._jobs:
            self._tasks.append(asyncio.ensure_future(self._repeat(seconds, work)))

    def shutdown(self, wait: bool) -> None:
        for task in self._tasks:
            task.cancel()


class SimulatedCommit(GroupCommit):
    """Runs the transactions of the hub in the event loop."""

    def __init__(self, database: sqlite3.Connection) -> None:
        self._database = database
        self._loop = asyncio.get_running_loop()
        self._executor = simulated.SimulatedExecutor(1)
        self._thread = SimpleNamespace(is_alive=lambda: True)  # type: ignore[assignment]
        self._batches = SimpleNamespace(put=self._submit)  # type: ignore[assignment]
        self._waiting = []
        self._running = False
        self._idle = asyncio.Event()
        self._idle.set()

    def _submit(self, batch: Any) -> None:
        def write() -> None:
            results = self._run([operation for operation, _ in batch])
            self._loop.call_soon(self._finish, batch, results)

        self._executor.submit(write)


class SimulatedRandom(Random):
    """What the code draws by chance is decided by the seed."""

    def __init__(self, seed: Any = None) -> None:
        super().__init__(current_loop().random.random() if seed is None else seed)


class SimulatedDatetime(datetime):
    """The time of day of the machine that runs the current callback."""

    @classmethod
    def now(cls, tz: tzinfo | None = None) -> datetime:  # type: ignore[override]
        return EPOCH + timedelta(microseconds=microseconds())


def microseconds() -> int:
    """Return the time of day of the current machine, since the beginning of the run."""
    machine = simulated.current_machine()
    loop = current_loop()
    return round((loop.now if machine is None else machine.clock.read(loop.now)) * 1_000_000)


def _seconds() -> float:
    return EPOCH.timestamp() + microseconds() / 1_000_000


def _nanoseconds() -> int:
    return (_EPOCH + microseconds()) * 1000


def _monotonic() -> float:
    loop = SimulatedLoop.current
    return _real_monotonic() if loop is None else loop.now


def _clock(clock: int) -> float:
    return _monotonic()


def _wait(seconds: float) -> None:
    raise AssertionError("simulated code waits for real time")


def _start_thread(thread: threading.Thread) -> None:
    assert SimulatedLoop.current is None, "simulated code starts a real thread"
    _really_start(thread)


def _process() -> int:
    machine = simulated.current_machine()
    return 1 if machine is None else machine.process


def _thread() -> int:
    return 1


_real_monotonic, _real_counter = time.monotonic, time.perf_counter
_really_start = threading.Thread.start
_replace = os.replace


def _replace_file(source: Any, target: Any) -> None:
    state, is_document, _ = os.fspath(target).partition("/documents/")
    if is_document:
        check_leads(f"writes {target}", Path(state))
    _replace(source, target)
    now = _seconds()
    os.utime(target, (now, now))


def _flush(descriptor: int) -> None:
    loop = SimulatedLoop.current
    if loop is not None and loop.disks_note_flushes:
        flush(os.readlink(f"/proc/self/fd/{descriptor}"))


def flush(path: str, with_name: bool = False) -> None:
    """Note that a file or folder was flushed, on the disk that has it."""
    loop = SimulatedLoop.current
    if loop is not None and loop.disks_note_flushes:
        name = path.removeprefix(f"{os.getcwd()}/").partition("/")[0]
        disk = loop.disks.get(name)
        if disk is not None:
            disk.flush(path, with_name=with_name)


async def _look_up(host: str, port: int, **options: Any) -> Any:
    return await current_loop().getaddrinfo(host, port, **options)


async def _start_connection(*arguments: Any, **options: Any) -> Any:
    return await current_loop().network.start_connection(*arguments, **options)


def _random_bytes(count: int = 32) -> bytes:
    return current_loop().random.randbytes(count)


def _tls() -> ssl.SSLContext:
    return _TLS


def patch() -> None:
    """Run all code of this process on simulated machines from now on."""
    os.environ.clear()  # none of it is used, and some code reads all of it
    replacements: dict[object, object] = {
        concurrent.futures.ThreadPoolExecutor: simulated.SimulatedExecutor,
        Random: SimulatedRandom,
        look_up: _look_up,
        _real_monotonic: _monotonic,
        _real_counter: _monotonic,
        os.fdatasync: _flush,
        os.fsync: _flush,
        FileLock: SimulatedLock,
    }
    for target, name, replacement in (
        (rsnotify_hub.hub, "AsyncIOScheduler", SimulatedScheduler),
        (rsnotify_hub.store.sqlite_store, "GroupCommit", SimulatedCommit),
        (rsnotify_publisher.background.pool, "PoolThreads", SimulatedThreads),
        (sqlite3, "connect", sqlite_files.connect),
        (time, "time", _seconds),
        (time, "time_ns", _nanoseconds),
        (os, "replace", _replace_file),
        (ssl, "create_default_context", _tls),
        (secrets, "token_bytes", _random_bytes),
        (os, "urandom", _random_bytes),
        (os, "fsync", _flush),
        (os, "fdatasync", _flush),
        (os, "getpid", _process),
        (threading, "get_native_id", _thread),
        (threading.Thread, "start", _start_thread),
        (time, "sleep", _wait),
        (time, "monotonic", _monotonic),
        (time, "perf_counter", _monotonic),
        (time, "clock_gettime", _clock),
        (aiohappyeyeballs, "start_connection", _start_connection),
    ):
        setattr(target, name, replacement)
    hooks.append(sqlite_files.FlushHook(flush))
    for each in (LiveSubscriber, WebSocketPublication, _Progress, asyncio.Timeout):
        each.__hash__ = serial_hash  # type: ignore[method-assign]
    for module in [each for name, each in sys.modules.items() if _is_ours(name)]:
        for name, value in list(vars(module).items()):
            if value is datetime and "datetime.now(" in inspect.getsource(module):
                setattr(module, name, SimulatedDatetime)
            elif callable(value) and isinstance(value, Hashable) and value in replacements:
                setattr(module, name, replacements[value])


def _is_ours(name: str) -> bool:
    return name.partition(".")[0] in (
        "rsnotify",
        "rsnotify_gateway",
        "rsnotify_hub",
        "rsnotify_jetstream",
        "rsnotify_publisher",
        "rsnotify_relay",
        "rsnotify_subscriber",
    )
