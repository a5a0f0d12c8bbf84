"""Clients of npm as subscribers of a hub that is killed, and which are killed themselves."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from rsnotify.format.datetimes import Instant, format_datetime
from rsnotify.format.model import Document, Resource
from rsnotify.format.reader import read_document
from rsnotify.runtime.mqtt_broker import channel_topic
from tests.interop.clients import Node
from tests.mosquitto import Mosquitto
from tests.publisher.helpers import eventually
from tests.running import LoggingServer, Running
from tests.trials.deployment import HUB, Deployment

pytestmark = pytest.mark.slow

LDES = Path(__file__).parents[1] / "interop/follow_ldes.mjs"


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


def apply(received: list[Document]) -> tuple[Instant, list[Resource]]:
    """Return what a subscriber knows through datetimes alone: since when, and all changes.

    What a hub had not yet written when it was killed is received a second time.
    """
    begin = through = received[0].from_
    assert begin is not None
    assert through is not None
    changes = []
    for fragment in received:
        assert fragment.from_ is not None
        assert fragment.until is not None
        assert fragment.from_ <= through, "a gap"
        changes += [one for one in map(plain, fragment.resources) if is_after(one, through)]
        through = max(through, fragment.until)
    return begin, changes


def is_after(entry: Resource, instant: Instant) -> bool:
    return entry.changed_at is not None and entry.changed_at > instant


def plain(entry: Resource) -> Resource:
    return Resource(entry.uri, change=entry.change, datetime=entry.datetime)


def follow_while_both_are_killed(trial: Deployment, subscriber: Subscriber) -> None:
    """See that the subscriber receives exactly the changes of the Source, in their order."""

    def change(name: str) -> None:
        trial.put(name, name)
        trial.records(name)

    def receives(name: str) -> None:
        eventually(lambda: any(name in str(one.resources) for one in subscriber.received()))

    begin = trial.change_list().from_
    assert begin is not None
    subscriber.start(format_datetime(begin))
    eventually(lambda: subscriber.received() != [])  # a heartbeat
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

    begin, changes = apply(subscriber.received())
    listed = trial.change_list().resources
    expected = [one for one in map(plain, listed) if is_after(one, begin)]
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


def test_a_reader_of_the_event_stream_of_a_source_that_is_killed(tmp_path: Path) -> None:
    node = Node("ldes-client")
    with Deployment(tmp_path / "here", source="--views ldes --rotate '4 changes'") as trial:
        url = f"{trial.url}resourcesync/ldes.ttl"
        reader = Running(node.command(LDES, url, "ascending", "12"), os.environ, node.folder)
        for number in range(12):
            if number in (5, 9):
                trial.kill(trial.source)
            trial.put(f"{number % 7}.txt", f"version {number}")
            if number in (5, 9):
                trial.start(trial.source)
            trial.records(f"{number % 7}.txt")
        assert reader.ends() == 0, reader.output()
        found = [(uri, activity) for uri, activity, _ in json.loads(reader.output())]
        kinds = ["Create"] * 7 + ["Update"] * 5
        assert found == [(f"{trial.url}{n % 7}.txt", kind) for n, kind in enumerate(kinds)]
        trial.end()
