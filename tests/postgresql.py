"""A real PostgreSQL on loopback, which can crash and come back."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from secrets import token_hex
from tempfile import TemporaryDirectory

import psycopg
import pytest

from tests.ports import free_port
from tests.running import children_of, wait_for_end
from tests.watchdog import watch

#: Where Debian keeps the programs of the server, beside PATH.
DEBIAN = sorted(map(str, Path("/usr/lib/postgresql").glob("*/bin")), reverse=True)
PATH = ":".join([*DEBIAN, os.environ["PATH"]])
#: The server refuses to run as root; this is whose it is on Debian.
USER = "postgres" if os.getuid() == 0 else None
#: Seconds; only what hangs takes them.
PATIENCE = 60


class PostgreSQL:
    """A server."""

    def __init__(self, folder: Path) -> None:
        self.port = free_port()
        self._folder = folder
        self._number = folder / "data/postmaster.pid"
        self._run("initdb", "-D", "data", "-U", "owner", "-A", "trust", "--no-sync", "-E", "UTF8")

    def _run(self, *command: str) -> None:
        done = subprocess.run(
            command,
            user=USER,
            group=USER,
            extra_groups=None if USER is None else (),
            cwd=self._folder,
            env={"PATH": PATH, "LC_ALL": "C.UTF-8"},
            # No pipes, as the server would keep them open.
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            timeout=PATIENCE * 2,
        )
        assert done.returncode == 0, (command, self._log())

    def _log(self) -> str:
        with suppress(FileNotFoundError):
            return (self._folder / "log").read_text(errors="replace")
        return ""

    def start(self) -> None:
        # Without fsync, as nothing here crashes the machine itself.
        options = f"-p {self.port} -c listen_addresses=127.0.0.1 -c unix_socket_directories=''"
        options += " -c fsync=off"
        self._run("pg_ctl", "-D", "data", "-l", "log", "-w", "-o", options, "start")
        watch(self._processes()[0])

    def _processes(self) -> list[int]:
        """Return the first process, and those that it has started."""
        first = int(self._number.read_text().split()[0])
        return [first, *children_of(first)]

    def crash(self) -> None:
        """End it as a crash does: connections break, and it has to recover at the next start."""
        self._run("pg_ctl", "-D", "data", "-m", "immediate", "-w", "stop")

    def stop(self, how: signal.Signals = signal.SIGTERM) -> None:
        """End it: in order, or each process by SIGKILL."""
        if how is not signal.SIGKILL:
            self._run("pg_ctl", "-D", "data", "-m", "fast", "-w", "stop")
            return
        self.pause()  # or it would start others
        for number in self._processes():
            process = os.pidfd_open(number)
            signal.pidfd_send_signal(process, signal.SIGKILL)
            wait_for_end(process)
        # The next one would take a number that nobody has waited for yet for a server that runs.
        self._number.unlink()

    def pause(self) -> None:
        # The first one first: it would start others.
        os.kill(self._processes()[0], signal.SIGSTOP)
        for number in self._processes()[1:]:
            os.kill(number, signal.SIGSTOP)

    def resume(self) -> None:
        for number in reversed(self._processes()):
            os.kill(number, signal.SIGCONT)

    def database(self, backup_of: str = "template1") -> str:
        """Make a new database, and return how to connect to it.

        Args:
            backup_of: Its content: how to connect to another, to which nobody is connected.
        """
        name, template = f"test_{token_hex(8)}", backup_of.rpartition("/")[2]
        with psycopg.connect(self._url("postgres"), autocommit=True) as connection:
            connection.execute(f"CREATE DATABASE {name} TEMPLATE {template}".encode())
        return self._url(name)

    def _url(self, database: str) -> str:
        return f"postgresql://owner@127.0.0.1:{self.port}/{database}"


@contextmanager
def running_postgresql() -> Iterator[PostgreSQL]:
    """Run a server, or skip the test where PostgreSQL is not installed."""
    if shutil.which("initdb", path=PATH) is None:
        pytest.skip("PostgreSQL is not installed")
    # Not in a folder of pytest, which other users cannot enter.
    with TemporaryDirectory(prefix="rsnotify-postgresql-") as folder:
        if USER is not None:
            shutil.chown(folder, USER)
        server = PostgreSQL(Path(folder))
        server.start()
        try:
            yield server
        finally:
            with suppress(AssertionError, FileNotFoundError):  # it may be down already
                server.resume()
                server.crash()
