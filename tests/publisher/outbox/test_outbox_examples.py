"""Runs the examples in publisher/examples that record changes in a transaction."""

from __future__ import annotations

import subprocess
import sys
import urllib.error
import urllib.request
from pathlib import Path

from rsnotify.format.reader import read_document
from tests.ports import free_port
from tests.publisher.helpers import PATIENCE, eventually

EXAMPLES = Path(__file__).resolve().parents[3] / "publisher/examples"


def test_the_django_example_publishes_committed_changes(postgresql: str):
    done = subprocess.run(
        [sys.executable, EXAMPLES / "outbox_django.py", postgresql],
        capture_output=True,
        text=True,
        timeout=PATIENCE,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == [
        "PUT a: 204",
        "PUT b: 500",
        "PUT a: 204",
        "updated https://source.example/data/a 3",
        "updated https://source.example/data/a 5",
    ]


def test_the_aiohttp_example_publishes_committed_changes(postgresql: str):
    port = free_port()
    process = subprocess.Popen(
        [sys.executable, EXAMPLES / "outbox_aiohttp.py", postgresql, str(port)],
        stderr=subprocess.PIPE,
        text=True,
    )
    site = f"http://127.0.0.1:{port}/data/"
    try:
        eventually(lambda: _put(site + "a", b"one") == 204)
        assert _put(site + "b", b"") == 500
        assert _put(site + "a", b"three") == 204
        reported = [(f"{site}a", 3), (f"{site}a", 5)]
        eventually(lambda: _changes(site) == reported)
        with urllib.request.urlopen(site + "a", timeout=PATIENCE) as answer:
            assert answer.read() == b"three"
    finally:
        process.terminate()
        _, errors = process.communicate(timeout=PATIENCE)
    assert "CheckViolation" in errors


def _put(url: str, body: bytes) -> int:
    request = urllib.request.Request(url, body, method="PUT")
    try:
        with urllib.request.urlopen(request, timeout=PATIENCE) as answer:
            return int(answer.status)
    except urllib.error.HTTPError as error:
        with error:
            return error.code
    except urllib.error.URLError:
        return 0  # the server has not started yet


def _changes(site: str) -> list[tuple[str, int | None]]:
    with urllib.request.urlopen(f"{site}changelist.xml", timeout=PATIENCE) as answer:
        document = read_document(answer.read())
    return [(entry.uri, entry.length) for entry in document.resources]
