"""Programs of other people that read what our Source publishes, and ours that reads theirs."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

#: Seconds; only what hangs takes them.
PATIENCE = 120


def contents(folder: Path) -> dict[str, bytes]:
    return {
        path.relative_to(folder).as_posix(): path.read_bytes()
        for path in folder.rglob("*")
        if path.is_file()
    }


def _run(command: list[str], folder: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=PATIENCE)


class ResyncClient:
    """`resync-sync`; it keeps its state in the folder it runs in."""

    def __init__(self, copy: Path) -> None:
        self.copy = copy
        copy.mkdir(parents=True)

    def run(self, url: str, *arguments: str) -> str:
        command = str(Path(sys.executable).with_name("resync-sync"))
        done = _run([command, *arguments, url.rstrip("/"), str(self.copy)], self.copy.parent)
        said = done.stdout + done.stderr
        assert done.returncode == 0, said
        assert "Traceback" not in said
        return said

    def baseline(self, url: str) -> str:
        return self.run(url, "--baseline", "--hash", "sha-256")

    def incremental(self, url: str, *arguments: str) -> str:
        # Its --hash does not work with --incremental: ChangeList has no hashes().
        return self.run(url, "--incremental", "--delete", *arguments)

    def is_in_sync(self, url: str) -> bool:
        said = self.run(url, "--audit", "--hash", "sha-256")
        return "IN SYNC" in said and "NOT IN SYNC" not in said


class Node:
    """Runs JavaScript that imports packages of npm; skips the test where one is missing."""

    def __init__(self, *packages: str) -> None:
        modules = os.environ.get("RSNOTIFY_NODE", "")
        found = [(Path(modules) / "node_modules" / one).is_dir() for one in packages]
        if shutil.which("node") is None or not all(found):
            pytest.skip(
                "needs node and, in the folder that RSNOTIFY_NODE names, what "
                f"`npm install {' '.join(packages)}` puts there"
            )
        self.folder = Path(modules)

    def command(self, script: Path, *arguments: str) -> list[str]:
        """Return how to run a script in `folder`."""
        return ["node", "--input-type=module", "-e", script.read_text(), *arguments]

    def run(self, script: str, *arguments: str) -> Any:
        done = _run(self.command(Path(__file__).with_name(script), *arguments), self.folder)
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout)


def follow(url: str, copy: Path, *options: str) -> str:
    """Catch up by `rsnotify follow --once`, and return its log."""
    return _ours("-v", "follow", url, str(copy), "--once", *options)


def is_in_step(url: str, copy: Path, *options: str) -> bool:
    return _ours("audit", url, str(copy), *options).splitlines()[-1].startswith("in step")


def _ours(*arguments: str) -> str:
    done = _run([sys.executable, "-m", "rsnotify", *arguments], Path.cwd())
    said = done.stderr + done.stdout
    assert done.returncode in (0, 1, 2), said
    assert "Traceback" not in said
    return said
