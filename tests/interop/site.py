"""A Source made of PyPI's `resync-build` and the plainest of web servers."""

from __future__ import annotations

import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

#: Seconds; only what hangs takes them.
PATIENCE = 120


class _Handler(SimpleHTTPRequestHandler):
    """Serves a folder, and says nothing of it."""

    def log_message(self, format: str, *args: object) -> None:
        """Keep the tests' output clean."""


@contextmanager
def served(folder: Path) -> Iterator[str]:
    """Serve a folder by http.server on a free port; give its URL, without a slash at the end."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), partial(_Handler, directory=str(folder)))
    thread = threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


class Site:
    """Resources below `data/`, and beside it the documents as `resync-build` writes them."""

    def __init__(self, folder: Path, url: str) -> None:
        self.folder = folder
        self.url = url
        self.data = folder / "data"
        self.data.mkdir(parents=True)

    @property
    def capability_list(self) -> str:
        return f"{self.url}/capabilitylist.xml"

    def build(self, *arguments: str, out: str) -> Path:
        path = self.folder / out
        path.parent.mkdir(exist_ok=True)
        command = [str(Path(sys.executable).with_name("resync-build")), *arguments]
        done = subprocess.run(
            [*command, "--outfile", str(path)],
            cwd=self.folder,
            capture_output=True,
            text=True,
            timeout=PATIENCE,
        )
        assert done.returncode == 0, done.stdout + done.stderr
        return path

    def _build_list(self, *arguments: str, out: str) -> Path:
        return self.build(
            *(*arguments, "--hash", "sha-256", "--capabilitylist-link", self.capability_list),
            *("--paths", str(self.data), f"{self.url}={self.folder}"),
            out=out,
        )

    def describe(self) -> None:
        well_known = ".well-known/resourcesync"
        self.build("--write-sourcedescription", self.capability_list, out=well_known)

    def offer(self, *capabilities: str) -> None:
        offered = ",".join(f"{name}={self.url}/{name}.xml" for name in capabilities)
        self.build("--write-capabilitylist", offered, out="capabilitylist.xml")

    def list_resources(self, *arguments: str) -> Path:
        """Write the Resource List, or its Index and its parts."""
        return self._build_list("--write-resourcelist", *arguments, out="resourcelist.xml")

    def list_changes(self, since: Path) -> Path:
        """Write the Change List: how the resources differ from an older Resource List."""
        return self._build_list(
            "--write-changelist", "--reference", str(since), out="changelist.xml"
        )
