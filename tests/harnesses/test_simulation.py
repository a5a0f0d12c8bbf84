"""Seeds of the simulation, each a history of changes and faults in virtual time."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from contextlib import closing
from pathlib import Path

import pytest

from tests.harnesses.simulation.loop import Machine, SimulatedLoop
from tests.harnesses.simulation.network import Network, SimulatedTransport

_COMMAND = [sys.executable, "-m", "tests.harnesses.simulation.run"]
_ROOT = Path(__file__).parents[2]
#: More, by `make simulate`, take longer than the suite may.
_SEEDS = ("1-100", "relays:6", "gateways:3")


def simulate(*arguments: str, **variables: str) -> subprocess.CompletedProcess[str]:
    """Run seeds in processes that end with this one, however it ends."""
    command, env = [*_COMMAND, *arguments], os.environ | variables
    return subprocess.run(command, cwd=_ROOT, env=env, capture_output=True, text=True, check=False)


def traces(*seeds: str) -> list[str]:
    """Run seeds in one process; return their traces without the line that counts the seconds."""
    run = simulate("-v", "--workers", "1", *seeds)
    assert run.returncode == 0, run.stdout + run.stderr
    return run.stdout.splitlines()[:-1]


def test_every_invariant_holds_in_each_seed():
    # With the hashes that it sets, it does not begin again, which imports everything twice.
    result = simulate(*_SEEDS, PYTHONHASHSEED="0")

    assert result.returncode == 0, result.stdout + result.stderr


def test_a_seed_gives_the_same_trace_alone_and_after_others():
    alone, after = traces("13"), traces("11-13", "12")

    assert len(alone) > 20
    begin = after.index(alone[0], 1)
    assert after[begin : begin + len(alone)] == alone


@pytest.mark.slow  # each seed takes as long as three of the others
def test_every_invariant_holds_of_a_hub_of_several_nodes():
    result = simulate("cluster:1-40", PYTHONHASHSEED="0")

    assert result.returncode == 0, result.stdout + result.stderr


def test_a_hub_of_several_nodes_gives_the_same_trace_twice():
    trace = traces("cluster:9", "cluster:9")

    again = next(number for number, line in enumerate(trace[1:], 1) if " World(" in line)
    assert again > 20
    assert trace[again:] == trace[:again]


class Receiver(asyncio.Protocol):
    def __init__(self) -> None:
        self.received = b""

    def data_received(self, data: bytes) -> None:
        self.received += data


def test_what_follows_a_delayed_message_arrives_with_it(monkeypatch: pytest.MonkeyPatch):
    loop = SimulatedLoop(1)
    monkeypatch.setattr(SimulatedLoop, "current", loop)
    network, receiver = Network(loop), Receiver()
    network.listen(Machine(loop, "near"), 80, lambda: receiver)

    async def send() -> bytes:
        transport, _ = await network.create_connection(asyncio.Protocol, port=80)
        assert isinstance(transport, SimulatedTransport)
        for seconds, data in (3600.0, b"first"), (1.0, b"second"):
            transport.delay(seconds)
            transport.write(data)
        await asyncio.sleep(3000)
        before = receiver.received
        await asyncio.sleep(1000)
        return before

    with closing(loop):
        assert loop.run_until_complete(Machine(loop, "far").spawn(send())) == b""
    assert receiver.received == b"firstsecond"


def test_no_process_is_left_when_the_simulation_is_killed():
    with subprocess.Popen(
        [*_COMMAND, "--workers", "1", "-v", "1-1000"], cwd=_ROOT, stdout=subprocess.PIPE
    ) as running:
        running.stdout.readline()  # a seed runs
        os.kill(running.pid, signal.SIGKILL)
        # The pipe ends once every process that holds it has ended.
        running.stdout.read()
