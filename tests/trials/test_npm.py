"""Clients of npm as subscribers of a hub that is killed, and which are killed themselves."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Callable, Iterator
from itertools import pairwise
from pathlib import Path

import pytest

from rsnotify.format.datetimes import format_datetime
from rsnotify.format.model import Document
from rsnotify.format.reader import read_document
from rsnotify.runtime.mqtt_broker import channel_topic
from tests.interop.clients import Node
from tests.mosquitto import Mosquitto
from tests.publisher.helpers import eventually
from tests.running import LoggingServer, Running
from tests.trials.deployment import HUB, Deployment

pytestmark = pytest.mark.slow

INTEROP = Path(__file__).parents[1] / "interop"


class Subscriber:
    """A client that prints fragments, and begins again after the last one."""

    def __init__(self, package: str, *arguments: str) -> None:
        self._node = Node(package)
        self._script = Path(__file__).with_name(f"subscribe_{package}.mjs")
        self._arguments = arguments
        self.fragments: list[Document] = []
        self._process: Running | None = None

    def start(self, since: str) -> None:
        command = self._node.command(self._script, *self._arguments, since)
        self._process = Running(command, os.environ, self._node.folder)

    def kill(self) -> None:
        assert self._process is not None
        self._process.ask(signal.SIGKILL)
        self._process.ends()
        self._process.show()
        self.fragments = self.received()
        self._process = None

    def received(self) -> list[Document]:
        """Return what all processes have received until now."""
        if self._process is None:
            return self.fragments
        lines = self._process.output().splitlines(keepends=True)
        texts = [json.loads(line) for line in lines if line.endswith("\n")]
        return [*self.fragments, *(read_document(text.encode()) for text in texts)]


@pytest.fixture
def subscribers() -> Iterator[list[Subscriber]]:
    made: list[Subscriber] = []
    yield made
    for subscriber in made:
        if subscriber._process is not None:
            subscriber.kill()


def follow_while_both_are_killed(trial: Deployment, subscriber: Subscriber) -> None:
    """See that the subscriber receives exactly the changes of the Source, in their order."""

    def change(name: str) -> None:
        nonlocal count
        trial.put(name, name)
        count += 1
        trial.records(count)

    def receives(name: str) -> None:
        eventually(lambda: any(name in str(one.resources) for one in subscriber.received()))

    count = 0  # the first files are the baseline, not changes
    begin = trial.change_list().from_
    assert begin is not None
    subscriber.start(format_datetime(begin))
    for round_ in range(2):
        change(f"first-{round_}")
        receives(f"first-{round_}")
        trial.kill(trial.hub)
        change(f"while-the-hub-is-away-{round_}")
        trial.start(trial.hub)
        receives(f"while-the-hub-is-away-{round_}")
        subscriber.kill()
        change(f"while-the-subscriber-is-away-{round_}")
        last = subscriber.fragments[-1].until
        assert last is not None
        subscriber.start(format_datetime(last))
        receives(f"while-the-subscriber-is-away-{round_}")

    received = subscriber.received()
    intervals = [(one.from_, one.until) for one in received]
    for (_, until), (from_, _) in pairwise(intervals):
        assert from_ is not None
        assert until is not None
        assert from_ <= until, "a gap"
    first = intervals[0][0]
    assert first is not None
    changes = [(one.uri, one.change, one.datetime) for doc in received for one in doc.resources]
    listed = trial.change_list().resources
    expected = [(one.uri, one.change, one.datetime) for one in listed if one.changed_at > first]
    assert len(expected) >= 6
    assert changes == expected
    trial.end()


@pytest.mark.parametrize("package", ["ws", "eventsource"])
def test_a_subscriber_of_the_hub(
    tmp_path: Path, package: str, subscribers: list[Subscriber]
) -> None:
    with Deployment(tmp_path / "here") as trial:
        subscriber = Subscriber(package, trial.adapt(HUB), f"{trial.url}channel.xml")
        subscribers.append(subscriber)
        follow_while_both_are_killed(trial, subscriber)


def test_a_subscriber_of_a_broker(
    tmp_path: Path,
    subscribers: list[Subscriber],
    started: Callable[[LoggingServer], LoggingServer],
) -> None:
    broker = Mosquitto(tmp_path / "mosquitto")
    started(broker)
    with Deployment(tmp_path / "here", f'mqtt_url = "{broker.url}"\n') as trial:
        topic = channel_topic(f"{trial.url}channel.xml")
        subscriber = Subscriber("mqtt", broker.url, topic)
        subscribers.append(subscriber)
        follow_while_both_are_killed(trial, subscriber)
