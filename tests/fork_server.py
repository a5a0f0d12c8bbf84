"""Starts `python -m rsnotify`, and a few others, as forks of a process that imported all of it.

A test run starts hundreds of such processes, and each would spend half a second of CPU on the same
imports. So a server for each test process forks them; it has no thread and no event loop. What it
forks becomes a child of the test process, and has the arguments, variables, folder, files, limits
and session that were passed to `subprocess` or asyncio. What is left of the server in it are the
imports and the hash seed.

A process of its own is started all the same where that might make a difference: if another variable
than ours differs, which a module may read while it is imported; if `subprocess` gets any other
option; within `own_interpreter()`; and on other systems than Linux.
"""

from __future__ import annotations

import atexit
import ctypes
import gc
import importlib
import io
import itertools
import json
import os
import pkgutil
import resource
import runpy
import select
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import cache
from inspect import signature
from pathlib import Path
from typing import Any, NamedTuple, NoReturn

from rsnotify.runtime import processes
from tests import reserved_names

ROOT = Path(__file__).resolve().parents[1]
#: What may be run: our program, and what a test compares with a process of its own.
MODULES = (
    *(
        "rsnotify",
        "tests.hub.jetstream.fast_node",
        "tests.started",
        "tests.harnesses.torture.live_source",
    ),
    *("tests.subscriber.hasty_audits", "gunicorn", "uvicorn"),
)
#: Programs that a file holds: our Destination that counts, and another implementation. A test may
#: add others that import little more than our packages.
FILES = {
    str(ROOT / "tests/end_to_end/counting.py"),
    *(str(Path(sys.executable).with_name(name)) for name in ("resync-build", "resync-sync")),
}
#: What our commands import.
PACKAGES = (
    "rsnotify",
    "rsnotify_demo",
    "rsnotify_gateway",
    "rsnotify_hub",
    "rsnotify_publisher",
    "rsnotify_relay",
    "rsnotify_subscriber",
)
#: What is imported only when a command reads its options or runs.
LATE = (
    *("encodings.ascii", "encodings.idna", "rich.status", "typer._adapters", "uvloop"),
    *("resync.client", "resync.list_base_with_index"),
)
#: Variables that are read only when a command runs, or are heeded here.
OURS = (
    *("RSNOTIFY_", "PYTEST_", "PYTHONUNBUFFERED", "COLUMNS", "LINES", "HOME", "NETRC"),
    "FAKETIME_TIMESTAMP_FILE",
)
_PR_SET_CHILD_SUBREAPER = 36
_MESSAGE = 100_000
_READY = b"ready"
_LIMITS = [value for name, value in vars(resource).items() if name.startswith("RLIMIT_")]
#: The arguments of `Popen` that a fork supports, too; others use the real `Popen`.
_PLAIN: dict[str, object] = {
    "executable": None,
    "close_fds": True,
    "pass_fds": (),
    "shell": False,
    "restore_signals": True,
    "gid": None,
    "gids": None,
    "uid": None,
    "umask": -1,
    "process_group": -1,
}

_servers: list[_Server] = []
_own = threading.local()


class _Request(NamedTuple):
    program: str
    is_module: bool
    arguments: Sequence[str]
    folder: str
    environment: dict[str, str]
    limits: Sequence[Sequence[int]]
    new_session: bool
    ends_with_parent: bool


def start() -> None:
    """Have `python -m rsnotify` forked from now on, where that is possible."""
    if sys.platform == "linux" and not _servers:
        _servers.append(_Server())


@contextmanager
def own_interpreter() -> Iterator[None]:
    """Start real interpreters in this thread, for example to measure their memory."""
    _own.wanted = True
    try:
        yield
    finally:
        _own.wanted = False


@cache
def forked(program: str) -> list[str]:
    """Return a command that runs a program, which may import little more than our packages."""
    with tempfile.NamedTemporaryFile("w", suffix=".py", delete=False) as file:
        file.write(program)
    atexit.register(os.unlink, file.name)
    FILES.add(file.name)
    return [sys.executable, file.name]


def prepare() -> None:
    """Start the server, so that its imports are done when it is needed."""
    for server in _servers:
        server.prepare()


class _Server:
    """The server, which begins to run when it is first needed."""

    def __init__(self) -> None:
        self._libc = ctypes.CDLL(None)
        self._environment = _of_others(self._inherited())
        self._lock = threading.Lock()
        self._channel: socket.socket | None = None
        self._ready = False
        self._begin = subprocess.Popen._execute_child  # type: ignore[attr-defined]
        self._signature = signature(self._begin)
        begin = self._begin_or_fork
        subprocess.Popen._execute_child = lambda *asked: begin(*asked)  # type: ignore[attr-defined]

    def _begin_or_fork(self, process: Any, *asked: Any) -> None:
        given = self._signature.bind(process, *asked).arguments
        request = self._request(given)
        if request is None:
            self._begin(process, *asked)
            return
        files = [
            number if given[name] == -1 else given[name]
            for number, name in enumerate(("p2cread", "c2pwrite", "errwrite"))
        ]
        process.pid = self._fork(request, files)
        process._child_created = True
        names = ("p2cread", "p2cwrite", "c2pread", "c2pwrite", "errread", "errwrite")
        process._close_pipe_fds(*(given[name] for name in names))

    def _request(self, given: dict[str, Any]) -> _Request | None:
        """Return what is to be forked, if that is as good as a process of its own."""
        words = given["args"]
        if isinstance(words, str | bytes | os.PathLike) or getattr(_own, "wanted", False):
            return None
        python, *program = [os.fsdecode(word) for word in words]
        is_module = program[:1] == ["-m"]
        if python in FILES:  # which names its interpreter itself
            python, program = sys.executable, [python, *program]
        name = "".join(program[is_module : is_module + 1])
        environment = self._inherited() if given["env"] is None else dict(given["env"])
        folder = os.fsdecode(given["cwd"] or os.getcwd())
        before = given["preexec_fn"]
        if (
            python != sys.executable
            or name not in (MODULES if is_module else FILES)
            or any(given.get(name, value) != value for name, value in _PLAIN.items())
            or _of_others(environment) != self._environment
            or before not in (None, processes._end_with_parent)
            or not Path(folder).is_dir()
        ):
            return None
        return _Request(
            program=name,
            is_module=is_module,
            arguments=program[is_module + 1 :],
            folder=folder,
            environment=environment,
            limits=[(limit, *resource.getrlimit(limit)) for limit in _LIMITS],
            new_session=given["start_new_session"],
            ends_with_parent=before is not None,
        )

    def _inherited(self) -> dict[str, str]:
        """Return the variables of this process, among them what a library in C has set."""
        lines = ctypes.POINTER(ctypes.c_char_p).in_dll(self._libc, "environ")
        texts = map(
            os.fsdecode, itertools.takewhile(bool, map(lines.__getitem__, itertools.count()))
        )
        return dict(text.split("=", 1) for text in texts)

    def _fork(self, request: _Request, files: list[int]) -> int:
        """Return the number of a new child."""
        told, tell = os.pipe()
        try:
            with self._lock:
                channel = self._wait_for_channel()
                # The server's child ends at once, and its child becomes that of this process.
                self._libc.prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
                try:
                    message = json.dumps(request).encode()
                    socket.send_fds(channel, [message], [*files, tell])
                    os.close(tell)
                    tell = -1
                    pid = os.read(told, 100)
                finally:
                    self._libc.prctl(_PR_SET_CHILD_SUBREAPER, 0, 0, 0, 0)
        finally:
            os.close(told)
            if tell != -1:
                os.close(tell)
        if not pid:
            raise ChildProcessError("the fork server started no process; see its standard error")
        return int(pid)

    def prepare(self) -> None:
        with self._lock:
            self._start()

    def _wait_for_channel(self) -> socket.socket:
        channel = self._start()
        if not self._ready:
            self._ready = channel.recv(_MESSAGE) == _READY
        if not self._ready:
            raise ChildProcessError("the fork server did not start; see its standard error")
        return channel

    def _start(self) -> socket.socket:
        if self._channel is not None:
            return self._channel
        self._channel, there = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with there:
            server = subprocess.Popen(
                [sys.executable, "-m", __name__, str(there.fileno())],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                env=self._environment,
                cwd=ROOT,
                pass_fds=[there.fileno()],
            )

        def end() -> None:
            server.kill()
            server.wait()

        atexit.register(end)
        atexit.register(self._channel.close)
        return self._channel


def _of_others(environment: Any) -> dict[str, str]:
    return {name: text for name, text in environment.items() if not name.startswith(OURS)}


def _import_all() -> None:
    for package in PACKAGES:
        found = importlib.import_module(package)
        for module in pkgutil.walk_packages(found.__path__, f"{package}."):
            if not module.name.endswith((".__main__", ".sqlalchemy")):
                with suppress(ImportError):  # of what is optional
                    importlib.import_module(module.name)
    for name in LATE:
        # Some of them change what is a warning, also for those that do not import them.
        with suppress(ImportError), warnings.catch_warnings():
            importlib.import_module(name)


def _serve(channel: socket.socket) -> tuple[_Request, list[int]]:
    """Fork until the test process ends; return in each child."""
    while True:
        try:
            message, files, _, _ = socket.recv_fds(channel, _MESSAGE, 4)
        except ConnectionError:  # the test process has ended without reading everything
            sys.exit()
        if not message:
            sys.exit()
        between = os.fork()
        if between == 0:
            between = os.getpid()
            if os.fork() != 0:
                os._exit(0)
            while os.getppid() == between:
                os.sched_yield()
            return _Request(*json.loads(message)), files
        os.waitpid(between, 0)
        for file in files:
            os.close(file)


def _become(request: _Request, files: list[int]) -> None:
    """Make this process the requested one for the system, and notify the test process."""
    for limit, *values in request.limits:
        if resource.getrlimit(limit) != tuple(values):
            resource.setrlimit(limit, tuple(values))
    if request.new_session:
        os.setsid()
    if request.ends_with_parent:
        processes._end_with_parent()
    os.chdir(request.folder)
    for number, file in enumerate(files[:3]):
        os.dup2(file, number)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    os.write(files[3], str(os.getpid()).encode())
    os.closerange(3, resource.getrlimit(resource.RLIMIT_NOFILE)[0])


def _be_as_if_just_started(request: _Request) -> None:
    """Have what an interpreter sets up when it starts."""
    for name in os.environ.keys() - request.environment.keys():
        del os.environ[name]
    os.environ.update(request.environment)
    if "FAKETIME_TIMESTAMP_FILE" in os.environ:
        # libfaketime 0.9.10 fails at the system call of `time.sleep`.
        time.sleep = lambda seconds: select.select([], [], [], seconds) and None
    sys.path[0] = request.folder if request.is_module else os.path.dirname(request.program)
    sys.argv = [request.program, *request.arguments]
    buffered = not os.environ.get("PYTHONUNBUFFERED")
    for number, name in enumerate(("stdin", "stdout", "stderr")):
        before = getattr(sys, name)
        mode = "rb" if number == 0 else "wb"
        raw = open(number, mode, buffering=-1 if buffered or number == 0 else 0, closefd=False)  # noqa: SIM115
        getattr(raw, "raw", raw).name = f"<{name}>"
        stream = io.TextIOWrapper(
            raw,
            encoding=before.encoding,
            errors=before.errors,
            newline=None if number == 0 else "\n",
            line_buffering=buffered and (number == 2 or raw.isatty()),
            write_through=not buffered,
        )
        stream.mode = mode[0]  # type: ignore[attr-defined]
        setattr(sys, name, stream)
        setattr(sys, f"__{name}__", stream)


def _end(code: object) -> NoReturn:
    """End as an interpreter does, but do not take all modules apart.

    That would copy all memory that is shared with the server: most of the CPU of a short command.
    What only garbage would report while it is destroyed is reported.
    """
    with suppress(AttributeError, OSError, ValueError):  # which the interpreter reports
        if isinstance(code, int):
            threading._shutdown()  # type: ignore[attr-defined]
            atexit._run_exitfuncs()
            gc.collect()
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(code)
    sys.exit(code)  # type: ignore[arg-type]


def _main() -> NoReturn:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for those that it forks
    _import_all()
    reserved_names.refuse()
    gc.collect()
    gc.freeze()
    channel = socket.socket(fileno=int(sys.argv[1]))
    with suppress(ConnectionError):
        channel.send(_READY)
    request, files = _serve(channel)
    channel.detach()
    _become(request, files)
    _be_as_if_just_started(request)
    try:
        if request.is_module:
            runpy.run_module(request.program, run_name="__main__", alter_sys=True)
        else:
            runpy.run_path(request.program, run_name="__main__")
        code: object = 0
    except SystemExit as end:
        code = end.code or 0
    _end(code)


if __name__ == "__main__":
    _main()
