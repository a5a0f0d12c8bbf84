"""What the trials of recipes share: the blocks of a page, a copy that follows, and PHP."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.error import HTTPError
from urllib.request import Request, urlopen

import pytest

from tests.ports import free_port
from tests.publisher.helpers import eventually
from tests.reader import ROOT, Reader, fences_of

#: The names of the recipes, and where their processes are here.
_PUSH, _HUB = "http://127.0.0.1:8001", "http://127.0.0.1:8080"
#: The URLs that are not there are answered by the front controller, as a web server is set up.
_ROUTER = """<?php
$path = $_SERVER['DOCUMENT_ROOT'] . rawurldecode(parse_url($_SERVER['REQUEST_URI'], PHP_URL_PATH));
if (is_file($path)) return false;
$_SERVER['SCRIPT_NAME'] = '/index.php';
require $_SERVER['DOCUMENT_ROOT'] . '/index.php';
"""


def needs(*programs: str, packages: str) -> None:
    """Skip a trial where programs or files are not installed."""
    missing = [one for one in programs if shutil.which(one) is None and not Path(one).exists()]
    if missing:
        pytest.skip(f"{', '.join(missing)} is missing: apt-get install {packages}")


def block(page: str, begin: str) -> str:
    """Return the block of a recipe that has a text in its first two lines."""
    bodies = [body for _, body in fences_of((ROOT / "docs/recipes" / page).read_text())]
    (found,) = (body for body in bodies if begin in "\n".join(body.splitlines()[:2]))
    return found


class Trial(Reader):
    """A reader who connects a system as a recipe says, and follows it."""

    def __init__(
        self, folder: Path, known: Mapping[str, str], *, hub: str = "rsnotify hub", **options: Any
    ) -> None:
        names = {"https://push.example": _PUSH, "https://hub.example": _HUB, **known}
        super().__init__(folder, names, **options)
        self.prepare()
        self.start(hub)

    def prepare(self) -> None:
        """Put into the folder what the hub needs."""

    def gateway(self, page: str, **settings: float) -> None:
        """Start the gateway of a recipe, with shorter waits, and other settings of its origin."""
        text = block(page, "# gateway.toml")
        text = re.sub(r"^(poll\w*|delay|compare) = .*$", "", text, flags=re.MULTILINE)
        given = {"poll": 0.2, "poll_most": 0.2, "delay": 0.01, **settings}
        text += "".join(f"{name} = {value}\n" for name, value in given.items())
        self.write("gateway.toml", text)
        self.start("rsnotify gateway gateway.toml --port 8001")

    def follow(self, url: str) -> None:
        self.start(f"rsnotify follow {url} copy --allow-private-addresses")

    def copied(self) -> dict[str, str]:
        """Return the contents of the copy, by path."""
        folder = self.folder / "copy"
        files = (path for path in folder.rglob("*") if path.is_file())
        return {str(path.relative_to(folder)): _text(path) for path in files}

    def copies(self, text: str) -> None:
        """Wait until some file of the copy has a text."""
        eventually(lambda: any(text in body for body in self.copied().values()))

    def loses(self, text: str) -> None:
        """Wait until no file of the copy has a text."""
        eventually(lambda: not any(text in body for body in self.copied().values()))

    def has(self, name: str) -> None:
        """Wait until the copy has a file whose path contains a name."""
        eventually(lambda: any(name in path for path in self.copied()))

    def lacks(self, name: str) -> None:
        eventually(lambda: not any(name in path for path in self.copied()))

    def origin(self, name: str) -> dict[str, Any]:
        """Return what the gateway states of an origin."""
        return dict(get(self.adapt(f"{_PUSH}/{name}/origin.json")))


def _text(path: Path) -> str:
    try:
        return path.read_text(errors="replace")
    except FileNotFoundError:  # it was just deleted
        return ""


def get(url: str, body: object = None, method: str | None = None, **headers: str) -> Any:
    """Request JSON, and return it; raise `HTTPError` for an error."""
    data = None if body is None else json.dumps(body).encode()
    given = {"Content-Type": "application/json", **headers}
    with urlopen(Request(url, data, given, method=method), timeout=60) as response:
        return json.load(response)


class PhpServer:
    """The web server of PHP, with some processes; its folder has a front controller."""

    def __init__(self, root: Path, environment: Mapping[str, str] | None = None) -> None:
        self.port = free_port()
        self.url = f"http://127.0.0.1:{self.port}"
        self._root = root
        self._environment = {**os.environ, "PHP_CLI_SERVER_WORKERS": "3", **(environment or {})}
        self._process: subprocess.Popen[bytes] | None = None
        (root.parent / "router.php").write_text(_ROUTER)

    def start(self) -> None:
        with (self._root.parent / "php.log").open("ab") as log:
            self._process = subprocess.Popen(
                ["php", "-S", f"127.0.0.1:{self.port}", "-t", self._root, "router.php"],
                cwd=self._root.parent,
                env=self._environment,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        eventually(self._answers)

    def _answers(self) -> bool:
        try:
            with urlopen(self.url, timeout=60):
                return True
        except HTTPError:
            return True
        except OSError:
            return False

    def pause(self) -> None:
        assert self._process is not None
        os.killpg(self._process.pid, signal.SIGSTOP)

    def resume(self) -> None:
        assert self._process is not None
        os.killpg(self._process.pid, signal.SIGCONT)

    def stop(self) -> None:
        if self._process is not None:
            os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()
            self._process = None


@contextmanager
def running_mariadb(folder: Path) -> Iterator[Path]:
    """Run a MariaDB, and yield its socket."""
    socket, data = folder / "mariadb.sock", folder / "mariadb"
    with (folder / "mariadb.log").open("ab") as log:
        subprocess.run(
            [
                *("mariadb-install-db", "--no-defaults", f"--datadir={data}", "--user=root"),
                *("--auth-root-authentication-method=normal", "--skip-test-db"),
            ],
            stdout=log,
            stderr=log,
            check=True,
        )
        server = subprocess.Popen(
            [
                *("mariadbd", "--no-defaults", f"--datadir={data}", f"--socket={socket}"),
                *("--skip-networking", "--user=root", "--innodb-buffer-pool-size=16M"),
            ],
            stdout=log,
            stderr=log,
        )
    try:
        eventually(lambda: run_sql(socket, "SELECT 1"))
        yield socket
    finally:
        server.terminate()
        server.wait()


@contextmanager
def running(folder: Path, *command: str) -> Iterator[None]:
    """Run a server in a folder, with a log of its name."""
    with (folder / f"{Path(command[0]).name}.log").open("ab") as log:
        process = subprocess.Popen(command, cwd=folder, stdout=log, stderr=log)
    try:
        yield
    finally:
        process.terminate()
        process.wait()


def run_sql(socket: Path, statement: str) -> bool:
    command = ["mariadb", "--no-defaults", f"--socket={socket}", "-uroot", "-e", statement]
    return subprocess.run(command, capture_output=True, check=False).returncode == 0


def survives(
    trial: Trial, name: str, fails: Callable[[], None], returns: Callable[[], None]
) -> None:
    """See that a system that fails deletes nothing, and that the gateway states why."""
    before = trial.copied()
    fails()
    eventually(lambda: trial.origin(name)["problem"] is not None)
    assert trial.copied() == before
    returns()
    eventually(lambda: trial.origin(name)["problem"] is None)
    assert trial.copied().keys() == before.keys()
