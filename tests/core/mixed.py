"""One stream over four transports at once, each with its own faults and way of joining."""

from __future__ import annotations

from collections.abc import Sequence
from enum import Enum

from hypothesis import strategies as st
from msgspec.structs import replace

from rsnotify.format.datetimes import Instant
from rsnotify.format.model import Document
from tests.core.world import OFFER, Destination, Source

#: Fragments that a hub keeps, so that at times it does not reach back.
_KEPT = 3


class Joining(Enum):
    """What a new connection receives: all since an instant, the latest fragment, or nothing."""

    LOG = "WebSocket"
    RETAINED = "MQTT"
    NEWEST_ITEM = "XMPP"
    NOTHING = "WebSub"


class Connection:
    """One connection from a hub to a Destination; the test decides which messages arrive."""

    def __init__(self, joining: Joining) -> None:
        self._joining = joining
        self._log: list[Document] = []
        self.wire: list[Document] = []
        self.up = False

    def emit(self, fragment: Document) -> None:
        self._log.append(fragment)
        if self.up:
            self.wire.append(fragment)

    def join(self, since: Instant | None) -> bool:
        """Connect, and return whether something may be missing."""
        self.up = True
        if self._joining is Joining.NOTHING or not self._log:
            return self._joining is not Joining.LOG
        if self._joining in (Joining.RETAINED, Joining.NEWEST_ITEM):
            self.wire.append(self._log[-1])
            return False
        log = self._log[-_KEPT:]
        if since is not None:
            self.wire += [one for one in log if one.until is not None and one.until > since]
        begins = log[0].from_
        return since is not None and begins is not None and begins > since

    def lose(self) -> None:
        self.up = False
        self.wire.clear()

    def merge(self) -> None:
        """Merge what waits into one fragment, as for a subscriber that lags."""
        if self.wire and all(
            one.until == other.from_ or not other.resources
            for one, other in zip(self.wire, self.wire[1:], strict=False)
        ):
            resources = tuple(entry for one in self.wire for entry in one.resources)
            whole = replace(self.wire[0], resources=resources, until=self.wire[-1].until)
            self.wire = [whole]


class Mixed:
    """A Destination that receives the stream of a Source over four transports."""

    def __init__(self, source: Source, destination: Destination) -> None:
        self.source = source
        self.destination = destination
        self.connections = [Connection(joining) for joining in Joining]
        for connection in self.connections:
            self._join(connection)

    def emit(self, size: int) -> Document:
        fragment = self.source.fragment(size)
        for connection in self.connections:
            connection.emit(fragment)
        return fragment

    def _join(self, connection: Connection) -> None:
        gap = connection.join(self.destination.follower.known)
        self.destination.push_up()
        if gap:
            self.destination.push_gap()

    def _lose(self, connection: Connection) -> None:
        connection.lose()
        if not any(connection.up for connection in self.connections):
            self.destination.push_down()

    def crash(self) -> None:
        """Restart the Destination from its stored state, and reconnect as before."""
        joined = [connection for connection in self.connections if connection.up]
        for connection in joined:
            connection.lose()
        self.destination.restart()
        for connection in joined:
            self._join(connection)

    def play(self, step: tuple) -> None:
        destination = self.destination
        match step:
            case "change", name, deleted, same_instant:
                self.source.change(name, deleted, same_instant)
            case "publish", what:
                getattr(self.source, what)()
            case "work", count:
                for _ in range(count):
                    destination.step()
            case "wait", seconds:
                destination.tick(seconds)
            case ("crash",):
                self.crash()
            case what, number, *place:
                self._play_at(self.connections[number], what, place[0] if place else 0)

    def _play_at(self, connection: Connection, what: str, place: int) -> None:
        wire = connection.wire
        match what:
            case "deliver" if wire:
                self.destination.push(wire.pop(place % len(wire)))
            case "double" if wire:
                self.destination.push(wire[place % len(wire)])
            case "drop" if wire:
                wire.pop(place % len(wire))
            case "merge":
                connection.merge()
            case "lose" if connection.up:
                self._lose(connection)
            case "regain" if not connection.up:
                self._join(connection)

    def finish(self, order: Sequence[int]) -> None:
        """Reconnect every connection and deliver its messages, in sequence or interleaved."""
        for connection in self.connections:
            if not connection.up:
                self._join(connection)
        for number in order:
            self._play_at(self.connections[number], "deliver", 0)
        for connection in self.connections:
            while connection.wire:
                self.destination.push(connection.wire.pop(0))
        self.destination.settle()
        self.destination.poll()  # changes from push are confirmed


def deliver_perfectly(source: Source, destination: Destination, fragment: Document) -> None:
    """Deliver a fragment over a perfect transport: T follows, and nothing waits for the lists."""
    destination.push(fragment)
    destination.work()
    assert fragment.until is not None
    assert destination.follower.pending or through(destination) >= fragment.until


def through(destination: Destination) -> Instant:
    progress = destination.follower.progress
    assert progress is not None
    return progress.through


NAMES = st.sampled_from("abcde")
CHANGES = st.tuples(NAMES, st.booleans())
NUMBERS = st.integers(0, len(Joining) - 1)
CHANGE = st.tuples(st.just("change"), NAMES, st.booleans(), st.booleans())
EMIT = st.tuples(st.just("emit"), st.integers(1, 4))
DELIVER = st.tuples(st.sampled_from(["deliver", "deliver", "double"]), NUMBERS, st.integers(0, 5))
WORK = st.tuples(st.just("work"), st.integers(1, 6))
STEPS = st.one_of(
    # What carries the stream comes more often than what breaks it, or there were none.
    *(CHANGE, CHANGE, EMIT, EMIT, DELIVER, DELIVER, DELIVER, WORK),
    st.tuples(st.sampled_from(["drop", "merge", "lose", "regain"]), NUMBERS),
    st.tuples(st.just("wait"), st.sampled_from([0.05, 0.3, 2.0])),
    st.tuples(st.just("publish"), st.sampled_from(["rotate", "list_resources"])),
    st.tuples(st.just("crash")),
)
HISTORIES = st.lists(STEPS, min_size=20, max_size=80)


def play_both(mixed: Mixed, single: Destination, steps: list[tuple], order: list[int]) -> None:
    """Play a history over four faulty transports to one Destination, a perfect one to another."""
    source = mixed.source
    single.settle()
    for step in steps:
        if step[0] == "emit":
            deliver_perfectly(source, single, mixed.emit(step[1]))
        else:
            mixed.play(step)
    mixed.destination.broken = 0.0
    source.finish(OFFER)
    for _ in range(2):  # what is left, then a heartbeat
        deliver_perfectly(source, single, mixed.emit(len(source.history) + 1))
    mixed.finish(order)
    # One that read its first list after the last heartbeat receives the next.
    deliver_perfectly(source, single, mixed.emit(1))
    mixed.finish([])
    single.settle()
    single.poll()
