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

PATIENCE = 120


class _Handler(SimpleHTTPRequestHandler):
    """Serves a folder, and says nothing of it."""

    def log_message(self, format: str, *args: object) -> None:
        """Keep the tests' output clean."""


@contextmanager
def served(folder: Path) -> Iterator[str]:
    """Serve a folder by http.server on a free port; give its URL, without a slash at the end."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), partial(_Handler, directory=str(folder)))
    thread = threading.Thread(target=server.serve_forever, daemon=True)
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

    def build(self, *arguments: str, out: str) -> Path:
        """Run `resync-build` for one document or dump, and return where it was written."""
        path = self.folder / out
        path.parent.mkdir(exist_ok=True)
        command = [str(Path(sys.executable).with_name("resync-build")), *arguments]
        done = subprocess.run(
            [*command, "--outfile", out],
            cwd=self.folder,
            capture_output=True,
            text=True,
            timeout=PATIENCE,
        )
        assert done.returncode == 0, done.stdout + done.stderr
        return path

    @property
    def mapping(self) -> str:
        """The URI of the resources, and where they are."""
        return f"{self.url}/data=data"

    def describe(self, *capabilities: str) -> None:
        """Write the Source Description and a Capability List."""
        offered = ",".join(f"{name}={self.url}/{name}.xml" for name in capabilities)
        well_known = ".well-known/resourcesync"
        self.build(
            *("--write-capabilitylist", offered),
            *("--sourcedescription-link", f"{self.url}/{well_known}"),
            out="capabilitylist.xml",
        )
        self.build(*("--write-sourcedescription", f"{self.url}/capabilitylist.xml"), out=well_known)

    def list_resources(self, *arguments: str) -> Path:
        """Write the Resource List, or its Index and its parts."""
        return self.build(
            *("--write-resourcelist", "--hash", "sha-256", *arguments),
            *("--capabilitylist-link", f"{self.url}/capabilitylist.xml", self.mapping),
            out="resourcelist.xml",
        )

    def list_changes(self, since: Path, *arguments: str) -> Path:
        """Write the Change List: how the resources differ from an older Resource List."""
        return self.build(
            *("--write-changelist", "--reference", str(since), "--hash", "sha-256", *arguments),
            *("--capabilitylist-link", f"{self.url}/capabilitylist.xml", self.mapping),
            out="changelist.xml",
        )
