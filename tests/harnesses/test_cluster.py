"""A short trial of a cluster under faults, and that its checks find what must not happen."""

from __future__ import annotations

import subprocess
import sys

import pytest

from rsnotify_hub.fragments import merge_fragments, read_fragment
from tests.harnesses.cluster.receivers import Receiver
from tests.harnesses.cluster.traffic import Ledger
from tests.nats_servers import require_nats

COMMAND = [sys.executable, "-m", "tests.harnesses.cluster", "--seed", "7"]
TOPIC = "https://source.example/a/channel.xml"
OTHER = "https://source.example/b/channel.xml"


@pytest.mark.slow
@pytest.mark.parametrize("options", [["--minutes", "1"], ["--upgrade-from"]], ids=["", "upgrade"])
def test_what_is_acknowledged_is_delivered_in_order_under_faults(options: list[str]):
    require_nats()
    done = subprocess.run([*COMMAND, *options], capture_output=True, text=True, timeout=900)
    print(done.stdout)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.fixture
def ledger() -> Ledger:
    ledger = Ledger([TOPIC, OTHER])
    for topic in ledger.topics:
        for second in range(4):
            ledger.add(topic, second)
    return ledger


@pytest.mark.parametrize(
    ("numbers", "faults", "repeats"),
    [
        ((0, 1, 2), [], 0),
        ((0, 1, 1, 2), [], 1),
        ((0, 1, 2, 1, 2, 3), [], 2),
        ((0, 2), [f"received fragment 2 of {TOPIC} after 0"], 0),
        ((1,), [f"received fragment 1 of {TOPIC} after -1"], 0),
    ],
)
def test_gaps_are_faults_and_repeats_are_counted(
    ledger: Ledger, numbers: tuple[int, ...], faults: list[str], repeats: int
):
    receiver = Receiver("one", "WebSub", ledger, [TOPIC])
    for number in numbers:
        receiver.receive(ledger.topics[TOPIC][number].body)
    assert receiver.faults == faults
    assert sum(each.is_repeat for each in receiver.deliveries) == repeats
    assert receiver.lacks({TOPIC: max(numbers) + 2})
    assert not receiver.lacks({TOPIC: max(numbers) + 1})


def test_what_was_altered_or_is_of_another_topic_is_a_fault(ledger: Ledger):
    receiver = Receiver("one", "SSE", ledger, [TOPIC])
    receiver.receive(ledger.topics[TOPIC][0].body + b" ")
    receiver.receive(ledger.topics[OTHER][0].body)
    assert len(receiver.faults) == 2
    assert not receiver.deliveries


def test_fragments_that_the_hub_merged_for_a_callback_are_found(ledger: Ledger):
    parts = [read_fragment(each.body) for each in ledger.topics[TOPIC][1:3]]
    assert ledger.place(merge_fragments(parts)) == (TOPIC, range(1, 3))
