"""WebSub callbacks: the cost of a delivery for the hub, and for aiohttp's client.

The figure is the processor time of the process (all its threads), divided by the number of
successful deliveries. Callbacks are in a process of their own (`callback_server.py`), each with an
address of its own, and one in ten of them is broken: it hangs, answers 500, resets the connection
or redirects. Each fragment is published once all sound callbacks have the one before.

The hub makes every fragment durable, stores the cursor of each subscription, merges the fragments
that a callback lacks, and limits what callbacks may do. For comparison, a bare loop on aiohttp's
client signs and POSTs the same bodies to callbacks of the same kind, and does nothing else; and a
bare writer on kept connections does so to the sound ones (`bare_sender.py`).
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

import targets
from callback_server import COUNT, SOUND, callbacks, secret_of
from fanout import SIZE, TOPIC, MeasuredHub, fragment, processor_seconds, running

RUNS = 7
ROUNDS = 20
_CLIENT, _BARE = "aiohttp's client", "a bare writer"


class CallbackServer:
    """A process of callbacks."""

    def __init__(self, folder: Path, stack: ExitStack) -> None:
        script = str(Path(__file__).with_name("callback_server.py"))
        self._process = stack.enter_context(running([sys.executable, script], folder))
        self.port = int(self._read_line())

    def wait(self, deliveries: int) -> None:
        """Wait until the working callbacks have received so many more."""
        assert self._process.stdin is not None
        self._process.stdin.write(f"{deliveries}\n")
        self._process.stdin.flush()
        if self._read_line() != "done":
            raise ConnectionError("the callbacks have failed; see their messages in the log")

    def _read_line(self) -> str:
        assert self._process.stdout is not None
        return self._process.stdout.readline().strip()


class MeasuredSender(Protocol):
    """One of the two measured senders."""

    pid: int

    def publish(self, bodies: list[bytes]) -> None:
        """Send to all callbacks."""


class ScriptSender:
    """Another sender, in a process of its own."""

    def __init__(self, name: str, server: CallbackServer, folder: Path, stack: ExitStack) -> None:
        script = str(Path(__file__).with_name(name))
        arguments = [str(server.port)]
        self._process = stack.enter_context(running([sys.executable, script, *arguments], folder))
        self.pid = self._process.pid

    def publish(self, bodies: list[bytes]) -> None:
        assert self._process.stdin is not None
        for body in bodies:
            self._process.stdin.write(body.hex() + "\n")
        self._process.stdin.flush()


def subscribe(hub: MeasuredHub, server: CallbackServer) -> None:
    """Subscribe every callback, and wait until all have confirmed."""
    for callback in callbacks(server.port):
        form = {
            "hub.mode": "subscribe",
            "hub.topic": TOPIC,
            "hub.callback": callback,
            "hub.secret": secret_of(callback),
        }
        with urlopen(f"http://127.0.0.1:{hub.port}/websub", urlencode(form).encode()):
            pass
    server.wait(COUNT)
    while _status(hub)["subscriptions"] < COUNT:
        time.sleep(0.1)


def _status(hub: MeasuredHub) -> dict[str, Any]:
    with urlopen(f"http://127.0.0.1:{hub.port}/admin/status") as answer:
        found: dict[str, Any] = json.load(answer)
        return found


class Run:
    """Rounds of one sender."""

    def __init__(self, sender: MeasuredSender, server: CallbackServer) -> None:
        self._sender = sender
        self._server = server
        self._number = 0

    def measure(self, rounds: int) -> float:
        """Return the microseconds of a delivery."""
        began = processor_seconds(self._sender.pid)
        for _ in range(rounds):
            self._sender.publish([fragment(self._number)])
            self._number += 1
            self._server.wait(SOUND)
        return (processor_seconds(self._sender.pid) - began) / (rounds * SOUND) * 1e6


def measure(folder: Path, stack: ExitStack) -> dict[str, float]:
    """Return the microseconds of a delivery, the median of some runs, by sender."""
    servers = [CallbackServer(folder, stack) for _ in range(3)]
    os.environ["RSNOTIFY_HUB_ALLOW_PRIVATE_ADDRESSES"] = "1"  # the callbacks are on this machine
    hub = MeasuredHub(folder, stack)
    subscribe(hub, servers[0])
    runs = {
        MeasuredHub.name: Run(hub, servers[0]),
        _CLIENT: Run(ScriptSender("aiohttp_sender.py", servers[1], folder, stack), servers[1]),
        _BARE: Run(ScriptSender("bare_sender.py", servers[2], folder, stack), servers[2]),
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
    print(f"WebSub, {COUNT} callbacks of which {COUNT - SOUND} are broken, {SIZE} bytes, signed:")
    print(f"{'the processor time of':36}{'us':>10}{'ratio':>10}")
    hub = results[MeasuredHub.name]
    for name, took in results.items():
        print(f"{'a delivery by ' + name:36}{took:10.1f}{hub / took:10.3f}")
    targets.compare("signed callback, ratio to aiohttp's client", hub / results[_CLIENT], 0.15)
    targets.compare("signed callback, ratio to a bare writer", hub / results[_BARE], 1.5)


if __name__ == "__main__":
    main()
