"""Some rounds of `make torture`, and that it finds wrong claims."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from datetime import UTC, datetime, timedelta

import pytest

from tests.harnesses.torture.faulty_path import _Messages
from tests.harnesses.torture.truth import Claim, Truth

COMMAND = [sys.executable, "-m", "tests.harnesses.torture", "--rate", "10"]
BEGAN = datetime(2026, 11, 23, tzinfo=UTC)


def test_every_copy_is_right_or_says_that_it_may_not_be_under_fifty_faults():
    # This seed has Destinations by MQTT, with PostgreSQL, and by two others, and a hub on NATS.
    command = [*COMMAND, "--rounds", "50", "--pause", "0.1", "--settle", "25", "--seed", "19"]
    # Within the limit of `make test`; only what does not settle takes that long.
    done = subprocess.run(command, capture_output=True, text=True, timeout=380)
    assert done.returncode == 0, done.stdout + done.stderr
    assert " 50 " in done.stdout
    if os.environ.get("RSNOTIFY_REQUIRE_ALL") == "1":
        assert "libfaketime" in done.stdout
        assert "is not installed" not in done.stdout


def test_an_interrupted_run_ends_at_once():
    process = subprocess.Popen(
        [*COMMAND, "--rounds", "9"], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    assert process.stdout.readline().startswith("seed")
    assert process.stdout.readline().startswith("clocks")
    process.send_signal(signal.SIGTERM)
    _, errors = process.communicate(timeout=120)
    assert process.returncode == 130, errors


@pytest.fixture
def truth() -> Truth:
    """A resource that was created after a second, updated after two and deleted after three."""
    truth = Truth()
    for second, digest in enumerate(("old", "new", None), 1):
        truth.intend("a", digest)
        truth.acknowledge("a", digest, BEGAN + timedelta(seconds=second))
    truth.intend("b", "unacknowledged")
    truth.acknowledge("c", "there", BEGAN + timedelta(seconds=4))
    return truth


@pytest.mark.parametrize(
    ("second", "held"),
    [
        (0, {}),
        (0, {"a": "old"}),
        (1, {"a": "old"}),
        (1, {"a": "new"}),
        (2.5, {"a": "new", "b": "unacknowledged"}),
        (2.5, {}),
        (3, {}),
    ],
)
def test_a_copy_may_be_newer_than_it_claims(truth: Truth, second: float, held: dict[str, str]):
    assert not list(truth.check(Claim("copy", BEGAN + timedelta(seconds=second), held)))


@pytest.mark.parametrize(
    ("second", "held", "found"),
    [
        (2, {"a": "old"}, "its state of"),
        (2, {"a": "other"}, "never had"),
        (3, {"a": "new"}, "deleted"),
        (3, {"d": "new"}, "never was"),
        (4, {}, "nothing"),
    ],
)
def test_a_copy_that_is_older_than_it_claims_is_found(
    truth: Truth, second: float, held: dict[str, str], found: str
):
    (wrong,) = truth.check(Claim("copy", BEGAN + timedelta(seconds=second), held))
    assert found in wrong


def test_a_journal_that_lacks_an_acknowledged_change_is_found(truth: Truth):
    truth.check_journal(BEGAN + timedelta(seconds=4))
    with pytest.raises(AssertionError, match="was acknowledged"):
        truth.check_journal(BEGAN + timedelta(seconds=3))


@pytest.mark.parametrize("size", [1, 3, 1000])
def test_requests_and_frames_are_told_apart_wherever_they_are_cut(size: int):
    upgrade = b"GET /ws HTTP/1.1\r\nUpgrade: websocket\r\n\r\n"
    post = b"POST /websub HTTP/1.1\r\nContent-Length: 3\r\n\r\n<a>"
    masked = bytes([0x81, 0x83, 1, 2, 3, 4, ord("<") ^ 1, ord("a") ^ 2, ord(">") ^ 3])
    medium = bytes([0x81, 126, 0, 200]) + b"<" * 200
    control = bytes([0x81, 2]) + b"{}"
    ping = bytes([0x89, 0])
    sent = [post, upgrade, masked, medium, control, ping, medium]
    messages, found = _Messages(requests=True), []
    whole = b"".join(sent)
    for start in range(0, len(whole), size):
        found += messages.take(whole[start : start + size])
    assert found == list(zip(sent, [True, False, True, True, False, False, True], strict=True))
