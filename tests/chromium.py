"""Chromium as a process, for tests. What drives it is in `browser`."""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import IO

import pytest

#: Without these a headless Chromium wants a GPU, a sandbox of its own, and the open network.
_FLAGS = (
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--disable-dev-shm-usage",
    "--hide-scrollbars",
    "--remote-debugging-port=0",
)
_LISTENING = re.compile(rb"DevTools listening on (ws://\S+)")


@contextmanager
def running_chromium() -> Iterator[str]:
    """Run Chromium with a profile that is thrown away; skip the test where there is none."""
    names = ("chromium", "chromium-browser", "google-chrome")
    path = next(filter(None, map(shutil.which, names)), None)
    if path is None:
        pytest.skip("chromium is not installed")
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as profile:
        process = subprocess.Popen(
            [path, *_FLAGS, f"--user-data-dir={profile}"],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            start_new_session=True,  # so that its many processes can be ended together
        )
        assert process.stderr is not None
        with process.stderr as stderr:
            try:
                yield _devtools_url(stderr)
            finally:
                with suppress(ProcessLookupError):
                    os.killpg(process.pid, signal.SIGKILL)
                process.wait()


def _devtools_url(stderr: IO[bytes]) -> str:
    for line in stderr:
        if found := _LISTENING.search(line):
            threading.Thread(target=_drain, args=(stderr,), daemon=True).start()
            return found[1].decode()
    raise AssertionError("chromium did not start")


def _drain(stderr: IO[bytes]) -> None:
    with suppress(ValueError):  # it was closed
        while stderr.read(65_536):
            pass
