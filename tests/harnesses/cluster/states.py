"""States of a Source, a hub on SQLite and a Destination, opened by two releases in turn."""

from __future__ import annotations

import asyncio
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from rsnotify.runtime.processes import PROCESS_TIMEOUT
from tests.ports import free_port
from tests.running import Running

ROLES = ("source", "hub", "destination")


class Refused(Exception):
    """A process did not open its state; the text is what it printed last."""


class States:
    """Three folders, and the programs that open them."""

    def __init__(self, root: Path) -> None:
        self._root = root
        self._url = f"http://127.0.0.1:{free_port()}/"
        self._hub = f"http://127.0.0.1:{free_port()}/"
        (root / "files").mkdir(parents=True)
        self._changes = 0

    def _command(self, role: str) -> list[str]:
        files, copy = self._root / "files", self._root / "copy"
        at = {each: each.split(":")[2].strip("/") for each in (self._url, self._hub)}
        commands = {
            "source": [
                *("source", str(files), "--base-url", self._url, "--port", at[self._url]),
                *("--hub", self._hub),
            ],
            "hub": ["hub", "--data", str(self._root / "hub"), "--port", at[self._hub]],
            "destination": ["follow", self._url, str(copy), "--once"],
        }
        return [sys.executable, "-m", "rsnotify", *commands[role], "--allow-private-addresses"]

    @contextmanager
    def _serving(self, role: str, environment: Mapping[str, str]) -> Iterator[None]:
        process = Running(self._command(role), {**os.environ, **environment})
        try:
            try:
                process.says(re.compile(r"http://\S+"))
            except AssertionError:
                raise Refused(_last(process.output())) from None
            yield
        finally:
            process.ask(signal.SIGTERM)
            process.ends()

    def play(self, environments: Mapping[str, Mapping[str, str]]) -> None:
        """Change the Source and catch up the Destination, each with its own variables.

        Raises:
            Refused: A program did not open its state.
            AssertionError: The copy is wrong.
        """
        self._changes += 1
        (self._root / "files" / f"{self._changes}").write_text(str(self._changes))
        with (
            self._serving("hub", environments["hub"]),
            self._serving("source", environments["source"]),
        ):
            done = subprocess.run(
                self._command("destination"),
                env={**os.environ, **environments["destination"]},
                capture_output=True,
                text=True,
                timeout=PROCESS_TIMEOUT,
                check=False,
            )
            if done.returncode != 0:
                raise Refused(_last(done.stdout + done.stderr))
        names = [
            {
                path.name: path.read_text()
                for path in (self._root / each).iterdir()
                if path.is_file()
            }
            for each in ("files", "copy")
        ]
        assert names[0] == names[1], names


def _last(output: str) -> str:
    lines = output.strip().splitlines()
    assert "Traceback" not in output, output
    return lines[-1] if lines else "nothing"


async def compare(root: Path, old: Mapping[str, str]) -> tuple[list[str], list[str]]:
    """Open the states with the old release, this one, and the old one again.

    Returns:
        What happened in sentences, and which promises were broken.
    """
    found: list[str] = []
    broken: list[str] = []
    new: Mapping[str, str] = {}
    for role in ROLES:
        states = States(root / role)
        environments = dict.fromkeys(ROLES, new)
        for name, environment in (("the old release", old), ("this one", new), ("the old", old)):
            try:
                await asyncio.to_thread(states.play, environments | {role: environment})
            except Refused as error:
                found.append(f"{role}: {name} does not open its state: {error}")
                if environment is new:
                    broken.append(found[-1])
            except AssertionError as error:
                broken.append(f"{role}: {name}: {error}")
            else:
                found.append(f"{role}: {name} opens its state, and the copy is right")
    return found, broken
