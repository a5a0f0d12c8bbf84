"""WebSub callbacks: what a delivery costs the hub, beside aiohttp's client in the same run.

The figure is the time of a processor that the process (all its threads) takes, divided by the
deliveries that succeeded. Callbacks are in a process of their own (`receivers.py`), each with an
address of its own, and one in ten of them is broken: it hangs, answers 500, resets the connection
or redirects. Each fragment is published once all sound callbacks have the one before.

The hub makes every fragment durable, keeps where each subscription stands, merges what a callback
lags behind, and bounds all that callbacks may do. Beside it, a bare loop on aiohttp's client signs
and POSTs the same bodies to callbacks of the same kind, and does nothing else.
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
import time
from contextlib import ExitStack
from pathlib import Path
from statistics import median
from typing import Any, Protocol
from urllib.parse import urlencode
from urllib.request import urlopen

from fanout import SIZE, TOPIC, Hub, fragment, processor_seconds, running
from receivers import COUNT, SOUND, callbacks, secret_of

RUNS = 7
ROUNDS = 20


class Receivers:
    """A process of callbacks."""

    def __init__(self, folder: Path, stack: ExitStack) -> None:
        script = str(Path(__file__).with_name("receivers.py"))
        self._process = stack.enter_context(running([sys.executable, script], folder))
        self.port = int(self._says())

    def wait(self, deliveries: int) -> None:
        """Wait until the sound ones have so many more."""
        assert self._process.stdin is not None
        self._process.stdin.write(f"{deliveries}\n")
        self._process.stdin.flush()
        if self._says() != "done":
            raise ConnectionError("the callbacks have failed; see their messages in the log")

    def _says(self) -> str:
        assert self._process.stdout is not None
        return self._process.stdout.readline().strip()


class Sender(Protocol):
    """One of the two that are measured."""

    pid: int

    def publish(self, bodies: list[bytes]) -> None:
        """Send to all callbacks."""


class Client:
    """aiohttp's client, in a process of its own (`posts.py`)."""

    def __init__(self, receivers: Receivers, folder: Path, stack: ExitStack) -> None:
        script = str(Path(__file__).with_name("posts.py"))
        arguments = [str(receivers.port)]
        self._process = stack.enter_context(running([sys.executable, script, *arguments], folder))
        self.pid = self._process.pid

    def publish(self, bodies: list[bytes]) -> None:
        assert self._process.stdin is not None
        for body in bodies:
            self._process.stdin.write(body.hex() + "\n")
        self._process.stdin.flush()


def subscribe(hub: Hub, receivers: Receivers) -> None:
    """Subscribe every callback, and wait until all have confirmed."""
    for callback in callbacks(receivers.port):
        form = {
            "hub.mode": "subscribe",
            "hub.topic": TOPIC,
            "hub.callback": callback,
            "hub.secret": secret_of(callback),
        }
        with urlopen(f"http://127.0.0.1:{hub.port}/websub", urlencode(form).encode()):
            pass
    receivers.wait(COUNT)
    while _status(hub)["subscriptions"] < COUNT:
        time.sleep(0.1)


def _status(hub: Hub) -> dict[str, Any]:
    with urlopen(f"http://127.0.0.1:{hub.port}/admin/status") as answer:
        found: dict[str, Any] = json.load(answer)
        return found


class Run:
    """Rounds of one sender."""

    def __init__(self, sender: Sender, receivers: Receivers) -> None:
        self._sender = sender
        self._receivers = receivers
        self._number = 0

    def measure(self, rounds: int) -> float:
        """Return the microseconds of a delivery."""
        began = processor_seconds(self._sender.pid)
        for _ in range(rounds):
            self._sender.publish([fragment(self._number)])
            self._number += 1
            self._receivers.wait(SOUND)
        return (processor_seconds(self._sender.pid) - began) / (rounds * SOUND) * 1e6


def measure(folder: Path, stack: ExitStack) -> dict[str, float]:
    """Return the microseconds of a delivery, the median of some runs, by sender."""
    receivers = [Receivers(folder, stack), Receivers(folder, stack)]
    os.environ["RSNOTIFY_HUB_ALLOW_PRIVATE_ADDRESSES"] = "1"  # the callbacks are on this machine
    hub = Hub(folder, stack)
    subscribe(hub, receivers[0])
    runs = {
        Hub.name: Run(hub, receivers[0]),
        "aiohttp's client": Run(Client(receivers[1], folder, stack), receivers[1]),
    }
    took: dict[str, list[float]] = {name: [] for name in runs}
    for number in range(RUNS + 1):
        for name, run in runs.items():
            each = run.measure(ROUNDS)
            if number:  # the first one opens the connections
                took[name].append(each)
    return {name: median(times) for name, times in took.items()}


def main() -> None:
    """Measure and print."""
    with tempfile.TemporaryDirectory(prefix="rsnotify-bench-") as name, ExitStack() as stack:
        results = measure(Path(name), stack)
    hub, client = results.values()
    print(f"WebSub, {COUNT} callbacks of which {COUNT - SOUND} are broken, {SIZE} bytes, signed:")
    print(
        f"{'the processor time of':36}" + "".join(f"{name:>18}" for name in results) + "     ratio"
    )
    print(f"{'a delivery, us':36}{hub:18.1f}{client:18.1f}{hub / client:10.3f}")


if __name__ == "__main__":
    main()
