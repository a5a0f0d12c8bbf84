"""How the servers of NATS agree on what a stream has: Raft, without its snapshots.

Every record is flushed before a server acknowledges it, as with `sync_interval: always`. So what
most servers have acknowledged survives the loss of the others.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, NamedTuple

from tests.harnesses.simulation.history import Wrong
from tests.harnesses.simulation.streams import Change, Create, Intake, Nothing, Store, Stream

if TYPE_CHECKING:
    from tests.harnesses.simulation.nats_server import SimulatedNats

#: Seconds between the heartbeats of a leader.
BEAT = 1.0
#: Seconds without a heartbeat after which a server stands for election.
_ELECTION = 4.0, 9.0
#: Seconds without answers of most servers after which a leader gives up.
_LOST = 10.0

#: A change, and the term of the leader that has proposed it.
Entry = tuple[int, Change]


class Append(NamedTuple):
    """What a leader sends: entries after another one, and how many are durable."""

    group: str
    term: int
    leader: str
    before: int
    term_before: int
    entries: Sequence[Entry]
    durable: int


class Appended(NamedTuple):
    """The answer of a follower: how many entries it has, or may have, in common."""

    group: str
    term: int
    follower: str
    succeeded: bool
    count: int


class Agreed:
    """What has become durable in a group, in order; each server has to apply just that."""

    def __init__(self, on_change: Callable[[str, Change], None]) -> None:
        self.changes: dict[str, list[Entry]] = {}
        self._on_change = on_change

    def applied(self, group: str, number: int, entry: Entry) -> None:
        changes = self.changes.setdefault(group, [])
        if number == len(changes):
            changes.append(entry)
            self._on_change(group, entry[1])
        elif changes[number] != entry:
            raise Wrong(f"the model of NATS is wrong: {group} has {entry}, not {changes[number]}")


class Replica:
    """What a server knows of a group, and its part in it.

    Attributes:
        group: The name of the stream; empty for the group that creates streams.
        stream: The messages; None in the group that creates streams.
        leader: The server that leads, as far as this one knows.
        durable: How many entries most servers have.
        intake: What is being stored, while this server leads.
    """

    def __init__(self, server: SimulatedNats, group: str, stream: Stream | None) -> None:
        self.group = group
        self.stream = stream
        self._server = server
        self._term = 0
        self._vote: tuple[int, str] = (0, "")
        self._log: list[Entry] = []
        self.durable = 0
        self.begin()

    def begin(self) -> None:
        """Begin again after a crash, with what is on the disk."""
        self.leader: str | None = None
        self._is_ready = False
        self._votes = set[str]()
        self._hear()
        self._sent: dict[str, int] = {}
        self._acknowledged: dict[str, int] = {}
        self.answered: dict[str, float] = {}
        self._done: dict[int, Callable[[int], None]] = {}

    def restore(self, log: Sequence[Entry]) -> None:
        """Replace what is on the disk by what was durable when a backup was made."""
        self._log = list(log)
        self._term = log[-1][0] if log else 0
        for _, change in log:
            if isinstance(change, Create):
                self._server.created(change)
            if self.stream is not None:
                self.stream.apply(change)
        self.durable = len(log)

    def _hear(self) -> None:
        server = self._server
        self._deadline = server.loop.now + server.chance.uniform(*_ELECTION)

    @property
    def leads(self) -> bool:
        return self.leader == self._server.name

    @property
    def _most(self) -> int:
        return (len(self._server.peers) + 1) // 2 + 1

    def has_quorum(self, seconds: float = _LOST) -> bool:
        """Return whether most servers have answered lately to this one, which leads."""
        since = self._server.loop.now - seconds
        return 1 + sum(at >= since for at in self.answered.values()) >= self._most

    # The leader.

    def propose(self, change: Change, done: Callable[[int], None]) -> None:
        """Store a change; `done` is called with its result once most servers have it."""
        self._log.append((self._term, change))
        self._done[len(self._log)] = done
        if isinstance(change, Store):
            self.intake.add(change.messages)
        for peer in self._server.peers:
            self._replicate(peer)
        self._advance()

    def _replicate(self, peer: str) -> None:
        message = self._message(peer)
        self._sent[peer] = len(self._log)
        self._server.tell(peer, "append", message)

    def _message(self, peer: str) -> Append:
        before = self._sent.get(peer, len(self._log))
        return Append(
            self.group,
            self._term,
            self._server.name,
            before,
            self._log[before - 1][0] if before else 0,
            tuple(self._log[before:]),
            self.durable,
        )

    def beat(self) -> None:
        """Send a heartbeat if this server leads; stand for election if no other one does."""
        now = self._server.loop.now
        if self.leads:
            if not self.has_quorum():
                self._follow(None)
                return
            for peer in self._server.peers:
                self._replicate(peer)
        elif now > self._deadline:
            self.stand()

    def stand(self) -> None:
        self._term += 1
        self._vote = self._term, self._server.name
        self._votes = {self._server.name}
        self._follow(None)
        log = self._log
        for peer in self._server.peers:
            self._server.tell(
                peer,
                "request_vote",
                self.group,
                self._term,
                self._server.name,
                (log[-1][0] if log else 0, len(log)),
            )
        self._count()

    def _count(self) -> None:
        if self.leads or self._votes == set() or len(self._votes) < self._most:
            return
        self._votes = set()
        self.leader = self._server.name
        now = self._server.loop.now
        self._sent = dict.fromkeys(self._server.peers, len(self._log))
        self._acknowledged, self._done = {}, {}
        self.answered = dict.fromkeys(self._server.peers, now)
        if self.stream is not None:
            self.intake = Intake(self.stream, is_alone=not self._server.peers)
        self.propose(Nothing(), self._lead)

    def _lead(self, _: int) -> None:
        self._is_ready = True
        self._server.leads_now(self)

    def answer(self, answer: Appended) -> None:
        """Receive the answer of a follower."""
        if answer.term > self._term:
            self._term = answer.term
            self._follow(None)
        if not self.leads or answer.term < self._term:
            return
        self.answered[answer.follower] = self._server.loop.now
        if answer.succeeded:
            known = self._acknowledged.get(answer.follower, 0)
            self._acknowledged[answer.follower] = max(known, answer.count)
            self._advance()
        else:
            self._sent[answer.follower] = answer.count
            self._replicate(answer.follower)

    def _advance(self) -> None:
        counts = [self._acknowledged.get(peer, 0) for peer in self._server.peers]
        durable = sorted([len(self._log), *counts], reverse=True)[self._most - 1]
        if durable > self.durable and self._log[durable - 1][0] == self._term:
            self._apply(durable)
            for peer in self._server.peers:
                self._replicate(peer)

    def lag(self, peer: str) -> int:
        return self.durable - min(self.durable, self._acknowledged.get(peer, 0))

    # All servers.

    def _apply(self, durable: int) -> None:
        while self.durable < durable:
            entry = self._log[self.durable]
            self._server.agreed.applied(self.group, self.durable, entry)
            self.durable += 1
            change = entry[1]
            if isinstance(change, Create):
                self._server.created(change)
            first = 0 if self.stream is None else self.stream.last + 1
            result = 0 if self.stream is None else self.stream.apply(change)
            done = self._done.pop(self.durable, None)
            if self.leads and done is not None:
                if isinstance(change, Store):
                    self.intake.remove(change.messages)
                    self._server.republish(self, first, change.messages)
                done(result)

    def _follow(self, leader: str | None) -> None:
        if self._is_ready and leader != self.leader:
            self._is_ready = False
            self._server.leads_no_more(self)
        self.leader = leader
        self._hear()

    def append(self, message: Append) -> Appended:
        """Receive what a leader sends."""
        name = self._server.name
        if message.term < self._term:
            return Appended(self.group, self._term, name, False, 0)
        self._term = message.term
        self._votes = set()
        self._follow(message.leader)
        log, before = self._log, message.before
        if before > len(log) or (before and log[before - 1][0] != message.term_before):
            return Appended(self.group, self._term, name, False, min(len(log), before - 1))
        for number, entry in enumerate(message.entries, before):
            if number < len(log) and log[number][0] != entry[0]:
                del log[number:]
            if number >= len(log):
                log.append(entry)
        count = before + len(message.entries)
        self._apply(min(message.durable, count))
        return Appended(self.group, self._term, name, True, count)

    def request_vote(self, term: int, candidate: str, last: tuple[int, int]) -> None:
        log = self._log
        if term > self._term:
            self._term = term
            self._follow(None)
        own = log[-1][0] if log else 0, len(log)
        if term == self._term and self._vote[0] < term and last >= own:
            self._vote = term, candidate
            self._hear()
            self._server.tell(candidate, "vote", self.group, term, self._server.name)

    def vote(self, term: int, voter: str) -> None:
        if term == self._term and self._votes:
            self._votes.add(voter)
            self._count()
