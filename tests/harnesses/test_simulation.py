"""Seeds of the simulation, each a history of changes and faults in virtual time."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

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


def test_no_process_is_left_when_the_simulation_is_killed():
    with subprocess.Popen(
        [*_COMMAND, "--workers", "1", "-v", "1-1000"], cwd=_ROOT, stdout=subprocess.PIPE
    ) as running:
        running.stdout.readline()  # a seed runs
        os.kill(running.pid, signal.SIGKILL)
        # The pipe ends once every process that holds it has ended.
        running.stdout.read()
