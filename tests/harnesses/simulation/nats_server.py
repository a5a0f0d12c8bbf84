"""A cluster of NATS servers with JetStream, as far as the extension uses it.

The servers speak the protocol of NATS over the simulated network, so the client library and the
extension run unchanged. Between each other they send objects instead of bytes, with delays, and in
order. What they store is in `streams`, how they agree on it in `raft`. A server that was suspended
acts on what clients have sent meanwhile, perhaps before it learns that another one leads now.

`tests.harnesses.test_simulated_nats` compares all of it with a real server.
"""

from __future__ import annotations

import asyncio
import base64
from collections import deque
from collections.abc import Callable
from functools import partial
from random import Random
from typing import Any

import msgspec

from rsnotify.format.datetimes import from_microseconds, to_microseconds
from tests.harnesses.simulation.loop import Clock, Machine, SimulatedLoop
from tests.harnesses.simulation.network import Network
from tests.harnesses.simulation.patching import EPOCH
from tests.harnesses.simulation.raft import BEAT, Agreed, Append, Appended, Entry, Replica
from tests.harnesses.simulation.streams import (
    Change,
    Create,
    Delete,
    Message,
    Purge,
    Store,
    Stream,
    error,
    matches,
)
from tests.harnesses.simulation.world import Simulated

VERSION = "2.12.3"
MAX_PAYLOAD = 1024 * 1024
_PORT = 8040
#: What the clocks of machines count from.
_EPOCH = to_microseconds(EPOCH)
_API = "$JS.API."
#: Seconds until a server answers that there is no leader, so that a leader can answer first.
_ERROR_SECONDS = 0.5
#: How long data is on its way from one server to another, in seconds.
_LATENCIES = (0.0002,) * 12 + (0.002,) * 3 + (0.05,)
#: How long a server that was suspended ignores the others, while it reads what clients have sent.
_WAKING = (0.0, 0.05, 0.3)
_NO_HEADERS = b""


#: The durable records of each group.
Backup = dict[str, list[Entry]]


class Servers:
    """All servers of a cluster.

    Args:
        count: How many there are: 1, or 3.
        chance: Decides delays, and who leads.
        on_change: Called with each change of a stream that has become durable.
        unanswered: Which part of the acknowledgements is lost.
    """

    def __init__(
        self,
        loop: SimulatedLoop,
        network: Network,
        count: int,
        chance: Random,
        on_change: Callable[[str, Change], None],
        *,
        unanswered: float = 0.0,
    ) -> None:
        self.agreed = Agreed(on_change)
        self.unanswered = unanswered
        self.chance = chance
        names = [f"nats{number}" for number in range(count)]
        self.all = [SimulatedNats(loop, network, name, self) for name in names]
        self.by_name = {each.name: each for each in self.all}
        for each in self.all:
            each.connect_to([other for other in self.all if other is not each], network)

    @property
    def url(self) -> str:
        return "nats://" + ",".join(f"127.0.0.1:{each.port}" for each in self.all)

    def begin(self) -> None:
        """Have a server stand for election as soon as it runs, so that the cluster is usable."""
        self.chance.choice(self.all).stands_first = True

    def start(self) -> None:
        self.begin()
        for each in self.all:
            each.start()

    def back_up(self) -> Backup:
        """Return the durable records of all groups. The first one creates the streams."""
        return {"": [], **{name: list(log) for name, log in self.agreed.changes.items()}}

    def restore(self, backup: Backup) -> None:
        """Replace the records of all servers by those of a backup. No server may be running."""
        self.agreed.changes = {name: list(log) for name, log in backup.items()}
        for server in self.all:
            server.replicas = {"": Replica(server, "", None)}
            for name, log in backup.items():
                server.replicas[name].restore(log)

    def leader(self, group: str) -> SimulatedNats | None:
        """Return the server that leads a group by a majority's view, if it runs."""
        for each in self.all:
            replica = each.replicas.get(group)
            if each.machine is not None and replica is not None and replica.leads:
                return each
        return None


class Link:
    """What one server sends to another, in order."""

    def __init__(
        self, network: Network, receiver: SimulatedNats, chance: Random, *, waits: bool
    ) -> None:
        self._network = network
        self._receiver = receiver
        self._chance = chance
        self._waits = waits
        self._next = 0.0
        self._queue: deque[tuple[Machine, str, tuple[Any, ...]]] = deque()

    def send(self, sender: Machine, method: str, arguments: tuple[Any, ...]) -> None:
        machine = self._receiver.machine
        if machine is None:
            return
        loop = self._network.loop
        self._next = max(self._next, loop.now + self._chance.choice(_LATENCIES))
        self._queue.append((sender, method, arguments))
        loop.call_at(self._next, self._arrive, machine, context=machine.context)

    def _arrive(self, machine: Machine) -> None:
        receiver, loop = self._receiver, self._network.loop
        again = partial(loop.call_soon, self._arrive, machine, context=machine.context)
        if self._queue and self._network.hold(self._queue[0][0], machine, again):
            return
        if self._waits and loop.now < receiver.busy_until:
            loop.call_at(receiver.busy_until, self._arrive, machine, context=machine.context)
            return
        if self._queue:
            _, method, arguments = self._queue.popleft()
            getattr(receiver, method)(*arguments)

    def clear(self) -> None:
        self._queue.clear()


class NatsMachine(Machine):
    """A machine with a server, which is busy for some time after it was suspended."""

    server: SimulatedNats

    def resume(self) -> None:
        if self.is_paused:
            self.server.busy_until = self._loop.now + self.server.chance.choice(_WAKING)
        super().resume()


class Reader:
    """A consumer: from which position on it reads which subjects of a stream."""

    def __init__(self, replica: Replica, config: dict[str, Any]) -> None:
        self.replica = replica
        self.config = config
        self._next: int = config.get("opt_start_seq", 1)
        self._delivered = 0

    def pull(self, count: int) -> list[tuple[int, int, int]]:
        """Return the positions of the next messages, with their numbers and how many are left."""
        stream = self.replica.stream
        assert stream is not None
        waiting = list(stream.following(self._next, self.config.get("filter_subject")))
        found = []
        for number, seq in enumerate(waiting[:count], 1):
            self._delivered += 1
            found.append((seq, self._delivered, len(waiting) - number))
            self._next = seq + 1
        return found


class SimulatedNats(Simulated):
    """A server.

    Attributes:
        replicas: What is on its disk, by the names of the groups.
        peers: The names of the other servers.
        busy_until: Until when it does not receive what the others send.
    """

    def __init__(self, loop: SimulatedLoop, network: Network, name: str, servers: Servers) -> None:
        super().__init__(loop, network, name, Clock())
        self.servers = servers
        self.chance = servers.chance
        self.agreed = servers.agreed
        self.port = _PORT + int(name[-1])
        self.busy_until = 0.0
        self.stands_first = False
        self.peers: list[str] = []
        self.replicas: dict[str, Replica] = {}
        self._links: dict[str, tuple[Link, Link]] = {}

    def connect_to(self, others: list[SimulatedNats], network: Network) -> None:
        self.peers = [each.name for each in others]
        for each in others:
            self._links[each.name] = (
                Link(network, each, self.chance, waits=False),
                Link(network, each, self.chance, waits=True),
            )
        self.replicas = {"": Replica(self, "", None)}

    # Its life.

    def start(self) -> None:
        self._clients: dict[ClientConnection, None] = {}
        self._readers: dict[str, Reader] = {}
        self._interest: dict[str, int] = {}
        #: What the clients of other servers subscribe to, as far as this one knows.
        self._interests: dict[str, dict[str, int]] = {name: {} for name in self.peers}
        self._creators: dict[str, str] = {}
        machine = NatsMachine(self.loop, self.name, self.clock)
        machine.server = self
        self.machine = machine
        self.network.register(machine)
        machine.on_kill.append(self._gone)
        for each in self.replicas.values():
            each.begin()
        for name in self.peers:
            self._tell(name, "introduced", self.name, {})
            other = self.servers.by_name[name]
            if other.machine is not None:
                other.introduce(self.name)
        machine.spawn(self._run(machine))

    def introduce(self, name: str) -> None:
        self._tell(name, "introduced", self.name, dict(self._interest))

    def _gone(self) -> None:
        for name in self.peers:
            other = self.servers.by_name[name]
            if other.machine is not None:
                other.introduced(self.name, {})
            for link in other._links[self.name]:
                link.clear()

    async def run(self, machine: Machine) -> None:
        self.network.listen(machine, self.port, lambda: ClientConnection(self))
        await asyncio.sleep(self.chance.random())
        if self.stands_first:
            self.stands_first = False
            self.replicas[""].stand()
        while True:
            await asyncio.sleep(BEAT)
            if (busy := self.busy_until - self.loop.now) > 0:
                await asyncio.sleep(busy)
            for each in list(self.replicas.values()):
                each.beat()

    def _now(self) -> int:
        return _EPOCH + round(self.clock.read(self.loop.now) * 1_000_000)

    # The other servers.

    def tell(self, peer: str, method: str, *arguments: Any) -> None:
        """Send another server what concerns an agreement."""
        if self.machine is not None:
            self._links[peer][1].send(self.machine, method, arguments)

    def _tell(self, peer: str, method: str, *arguments: Any) -> None:
        """Send another server what concerns clients."""
        if self.machine is not None:
            self._links[peer][0].send(self.machine, method, arguments)

    def append(self, message: Append) -> None:
        replica = self.replicas.get(message.group)
        if replica is not None:
            self.tell(message.leader, "answer", replica.append(message))

    def answer(self, answer: Appended) -> None:
        self.replicas[answer.group].answer(answer)

    def request_vote(self, group: str, term: int, candidate: str, last: tuple[int, int]) -> None:
        if (replica := self.replicas.get(group)) is not None:
            replica.request_vote(term, candidate, last)

    def vote(self, group: str, term: int, voter: str) -> None:
        self.replicas[group].vote(term, voter)

    def introduced(self, name: str, interest: dict[str, int]) -> None:
        self._interests[name] = interest

    def interested(self, name: str, pattern: str, more: int) -> None:
        _count(self._interests[name], pattern, more)

    def subscribe(self, pattern: str, more: int = 1) -> None:
        """Receive what is published to a pattern, for a client or for a stream."""
        _count(self._interest, pattern, more)
        for name in self.peers:
            self._tell(name, "interested", self.name, pattern, more)

    # Agreements.

    def created(self, change: Create) -> None:
        replica = self.replicas.get(change.name)
        if replica is not None:
            assert replica.stream is not None
            replica.stream.config = replica.stream.config | change.config
            return
        stream = Stream(change.config, change.created)
        self.replicas[change.name] = replica = Replica(self, change.name, stream)
        if change.first == self.name and self.machine is not None:
            replica.stand()

    def leads_now(self, replica: Replica) -> None:
        if replica.stream is not None:
            for subject in replica.stream.config["subjects"]:
                self.subscribe(subject)

    def leads_no_more(self, replica: Replica) -> None:
        if replica.stream is not None and self.machine is not None:
            for subject in replica.stream.config["subjects"]:
                self.subscribe(subject, -1)

    def republish(self, replica: Replica, first: int, messages: tuple[Message, ...]) -> None:
        """Publish what a stream has stored, as its settings say."""
        assert replica.stream is not None
        where = replica.stream.config.get("republish")
        if where is None:
            return
        source, target = where["src"].removesuffix(">"), where["dest"].removesuffix(">")
        for seq, message in enumerate(messages, first):
            if matches(where["src"], message.subject):
                subject = target + message.subject.removeprefix(source)
                raw = message.raw + self._place(replica.group, seq, message)
                self.publish(subject, "", raw, message.body)

    @staticmethod
    def _place(name: str, seq: int, message: Message) -> bytes:
        lines = (
            f"Nats-Stream: {name}\r\nNats-Subject: {message.subject}\r\nNats-Sequence: {seq}\r\n"
            f"Nats-Time-Stamp: {_text(message.time)}\r\n"
        )
        return lines.encode()

    # Messages.

    def publish(self, subject: str, reply: str, raw: bytes, body: bytes) -> bool:
        """Deliver a message to all who receive its subject; return whether there is anyone."""
        is_found = self.routed(subject, reply, raw, body)
        is_api = subject.startswith(_API) and not subject.startswith("$JS.API.DIRECT.")
        for name, interest in self._interests.items():
            if is_api or any(matches(pattern, subject) for pattern in interest):
                self._tell(name, "routed", subject, reply, raw, body)
                is_found = True
        return is_found

    def routed(self, subject: str, reply: str, raw: bytes, body: bytes) -> bool:
        """Deliver a message here."""
        is_found = False
        if subject.startswith(_API):
            self._api(subject.removeprefix(_API), reply, body)
            is_found = True
        elif not subject.startswith("_INBOX."):
            for replica in self.replicas.values():
                if replica.stream is not None and replica.leads:
                    for pattern in replica.stream.config["subjects"]:
                        if matches(pattern, subject):
                            self._store(replica, subject, reply, raw, body)
                            is_found = True
        for client in list(self._clients):
            is_found |= client.deliver(subject, reply, raw, body)
        return is_found

    def closed(self, client: ClientConnection) -> None:
        if client in self._clients:
            del self._clients[client]
            if self.machine is not None:
                for pattern in client.patterns():
                    self.subscribe(pattern, -1)

    def opened(self, client: ClientConnection) -> None:
        self._clients[client] = None

    # Streams.

    def _store(self, replica: Replica, subject: str, reply: str, raw: bytes, body: bytes) -> None:
        message = Message(subject, parse_headers(raw), raw, body, self._now())
        messages = [message]
        extra: dict[str, Any] = {}
        if "Nats-Batch-Id" in message.headers:
            found = replica.intake.batch(message)
            if not isinstance(found, list):
                if found is not None:
                    self._refuse(reply, replica, found)
                return
            messages = found
            extra = {"batch": message.headers["Nats-Batch-Id"], "count": len(messages)}
        refused = replica.intake.refuse(messages[0])
        if isinstance(refused, dict):
            self._refuse(reply, replica, refused)
        elif refused is not None:
            found_at = {"stream": replica.group, "seq": refused, "duplicate": True}
            self._acknowledge(reply, found_at)
        else:
            replica.propose(
                Store(tuple(messages)),
                lambda last: self._acknowledge(
                    reply, {"stream": replica.group, "seq": last, **extra}
                ),
            )

    def _refuse(self, reply: str, replica: Replica, why: dict[str, Any]) -> None:
        self._acknowledge(reply, {"error": why, "stream": replica.group, "seq": 0})

    def _acknowledge(self, reply: str, answer: dict[str, Any]) -> None:
        if self.chance.random() >= self.servers.unanswered:
            self._answer(reply, answer)

    def _answer(self, reply: str, answer: dict[str, Any]) -> None:
        if reply and self.machine is not None:
            self.publish(reply, "", _NO_HEADERS, msgspec.json.encode(answer))

    # The API of JetStream.

    def _api(self, action: str, reply: str, body: bytes) -> None:
        *names, last = action.split(".")
        request = msgspec.json.decode(body) if body else {}
        match names, last:
            case [], "INFO":
                self._of_all(reply, lambda: self._answer(reply, {"storage": 0, "limits": {}}))
            case ["STREAM", ("CREATE" | "UPDATE")], name:
                self._of_all(reply, lambda: self._create(name, request, reply))
            case ["STREAM", "INFO"], name:
                self._information(name, reply)
            case ["STREAM", "MSG", "GET"], name:
                self._of_leader(name, reply, lambda replica: self._get(replica, request, reply))
            case ["STREAM", "MSG", "DELETE"], name:
                self._of_leader(name, reply, lambda replica: self._delete(replica, request, reply))
            case ["STREAM", "PURGE"], name:
                purge = Purge(request.get("filter", ">"), request.get("seq", 2**62))
                self._of_leader(name, reply, lambda replica: self._purge(replica, purge, reply))
            case ["DIRECT", "GET"], name:
                self._get_directly(name, request, reply)
            case ["CONSUMER", "CREATE"], name:
                self._of_all(reply, lambda: self._place_reader(name, request["config"], reply))
            case ["CONSUMER", "DELETE", _], name:
                if self._readers.pop(name, None) is not None:
                    self._answer(reply, {"success": True})
            case ["CONSUMER", "MSG", "NEXT", _], name:
                self._pull(name, request, reply)

    def _refuse_later(self, reply: str, code: int) -> None:
        assert self.machine is not None
        self.loop.call_at(
            self.loop.now + _ERROR_SECONDS,
            self._answer,
            reply,
            {"error": error(code)},
            context=self.machine.context,
        )

    def _of_all(self, reply: str, act: Callable[[], None]) -> None:
        """Act if this server leads all servers."""
        servers = self.replicas[""]
        if servers.leads:
            act()
        elif servers.leader is None:
            self._refuse_later(reply, 10008)

    def _of_leader(self, name: str, reply: str, act: Callable[[Replica], None]) -> None:
        """Act if this server leads a stream."""
        replica = self.replicas.get(name)
        if replica is None:
            if self.replicas[""].leads:
                self._answer(reply, {"error": error(10059)})
        elif replica.leads:
            act(replica)
        elif replica.leader is None:
            self._refuse_later(reply, 10008)

    def _create(self, name: str, config: dict[str, Any], reply: str) -> None:
        change = Create(name, config, self._now(), self.chance.choice([self.name, *self.peers]))

        def done(_: int) -> None:
            replica = self.replicas[name]
            self._answer(reply, self._describe(replica) | {"did_create": True})

        known = self.replicas.get(name)
        settings = {} if known is None or known.stream is None else known.stream.config
        if settings and settings == settings | config:
            done(0)
            return
        self.replicas[""].propose(change, done)

    def _information(self, name: str, reply: str) -> None:
        replica = self.replicas.get(name)
        if replica is not None and (replica.leads or replica.leader is None):
            self._answer(reply, self._describe(replica))
        elif replica is None and self.replicas[""].leads:
            self._answer(reply, {"error": error(10059)})
        elif replica is None and self.replicas[""].leader is None:
            self._refuse_later(reply, 10008)

    def _describe(self, replica: Replica) -> dict[str, Any]:
        stream = replica.stream
        assert stream is not None
        found: dict[str, Any] = {
            "config": stream.config,
            "created": _text(stream.created),
            "state": stream.facts,
            "ts": _text(self._now()),
        }
        if self.peers:
            since = self.loop.now - 2 * BEAT
            found["cluster"] = {"name": "test", "replicas": []}
            if replica.leads:
                found["cluster"]["leader"] = self.name
            for peer in self.peers:
                heard = replica.answered.get(peer, 0.0)
                lag = replica.lag(peer) if replica.leads else 0
                copy = {"name": peer, "current": heard >= since and lag == 0, "lag": lag}
                if self.servers.by_name[peer].machine is None:
                    copy["offline"] = True
                found["cluster"]["replicas"].append(copy)
        return found

    def _get(self, replica: Replica, which: dict[str, Any], reply: str) -> None:
        assert replica.stream is not None
        seq = replica.stream.find(which)
        if seq is None:
            self._answer(reply, {"error": error(10037)})
            return
        message = replica.stream.messages[seq]
        found = {"subject": message.subject, "seq": seq, "time": _text(message.time)}
        if message.body:
            found["data"] = base64.b64encode(message.body).decode()
        if message.raw:
            found["hdrs"] = base64.b64encode(b"NATS/1.0\r\n%b\r\n" % message.raw).decode()
        self._answer(reply, {"message": found})

    def _delete(self, replica: Replica, request: dict[str, Any], reply: str) -> None:
        seq: int = request["seq"]
        assert replica.stream is not None
        is_beyond = seq > replica.stream.last

        def done(count: int) -> None:
            missing = error(10057) if is_beyond else error(10043, f"sequence {seq} not found")
            self._answer(reply, {"success": True} if count else {"error": missing})

        replica.propose(Delete(seq), done)

    def _purge(self, replica: Replica, purge: Purge, reply: str) -> None:
        replica.propose(
            purge, lambda count: self._answer(reply, {"success": True, "purged": count})
        )

    def _get_directly(self, name: str, request: dict[str, Any], reply: str) -> None:
        replica = self.replicas.get(name)
        stream = None if replica is None else replica.stream
        message = None if stream is None else stream.messages.get(request["seq"])
        if message is None:
            self._status(reply, "404 Message Not Found")
        else:
            raw = message.raw + self._place(name, request["seq"], message)
            self.publish(reply, "", raw, message.body)

    def _status(self, reply: str, status: str) -> None:
        self.publish(reply, "", b" " + status.encode(), b"")

    # Readers.

    def _place_reader(self, name: str, config: dict[str, Any], reply: str) -> None:
        """Have one of the servers make a reader."""
        if name not in self.replicas:
            self._answer(reply, {"error": error(10059)})
            return
        running = [each.name for each in self.servers.all if each.machine is not None]
        host = self.chance.choice(running)
        if host == self.name:
            self.make_reader(name, config, reply)
        else:
            self._tell(host, "make_reader", name, config, reply)

    def make_reader(self, stream: str, config: dict[str, Any], reply: str) -> None:
        replica = self.replicas.get(stream)
        if replica is not None:
            name = f"{self.name}-{self.chance.getrandbits(48):x}"
            self._readers[name] = Reader(replica, config)
            self._answer(reply, {"name": name, "stream_name": stream, "config": config})

    def _pull(self, name: str, request: dict[str, Any], reply: str) -> None:
        reader = self._readers.get(name)
        if reader is None:
            return
        stream = reader.replica.stream
        assert stream is not None
        is_empty = True
        for seq, number, left in reader.pull(request["batch"]):
            is_empty = False
            message = stream.messages[seq]
            raw, body = message.raw, message.body
            if reader.config.get("headers_only"):
                raw, body = raw + b"Nats-Msg-Size: %d\r\n" % len(body), b""
            place = f"$JS.ACK.{reader.replica.group}.{name}.1.{seq}.{number}.{message.time}.{left}"
            self.publish(reply, place, raw, body)
        if is_empty:
            self._status(reply, "404 No Messages")


class ClientConnection(asyncio.Protocol):
    """The connection of a client to a server."""

    def __init__(self, server: SimulatedNats) -> None:
        self._server = server
        self._received = bytearray()
        #: The subscriptions by their ids: the pattern, and how many messages are left, if limited.
        self._subscriptions: dict[bytes, tuple[str, int | None]] = {}
        self._waiting: list[bytes] = []

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        server = self._server
        server.opened(self)
        info = {
            "server_id": server.name,
            "server_name": server.name,
            "version": VERSION,
            "headers": True,
            "jetstream": True,
            "max_payload": MAX_PAYLOAD,
            "port": server.port,
        }
        if server.peers:
            info["cluster"] = "test"
        self._send(b"INFO %b\r\n" % msgspec.json.encode(info))

    def connection_lost(self, _: Exception | None) -> None:
        self._server.closed(self)

    def patterns(self) -> list[str]:
        return [pattern for pattern, _ in self._subscriptions.values()]

    def data_received(self, data: bytes) -> None:
        received = self._received
        received += data
        while (end := received.find(b"\r\n")) >= 0:
            command, *words = bytes(received[:end]).split()
            if command in (b"PUB", b"HPUB"):
                size = int(words[-1])
                if len(received) < end + size + 4:
                    return
                payload = bytes(received[end + 2 : end + 2 + size])
                del received[: end + size + 4]
                self._publish(command == b"HPUB", words, payload)
                continue
            del received[: end + 2]
            if command == b"PING":
                self._send(b"PONG\r\n")
            elif command == b"SUB":
                self._subscriptions[words[-1]] = words[0].decode(), None
                self._server.subscribe(words[0].decode())
            elif command == b"UNSUB":
                self._unsubscribe(words)

    def _unsubscribe(self, words: list[bytes]) -> None:
        if len(words) > 1 and words[0] in self._subscriptions:
            self._subscriptions[words[0]] = self._subscriptions[words[0]][0], int(words[1])
            return
        found = self._subscriptions.pop(words[0], None)
        if found is not None:
            self._server.subscribe(found[0], -1)

    def _publish(self, has_headers: bool, words: list[bytes], payload: bytes) -> None:
        raw = b""
        sizes = 2 if has_headers else 1
        if has_headers:
            length = int(words[-2])
            raw, payload = payload[len(b"NATS/1.0\r\n") : length - 2], payload[length:]
        reply = words[1].decode() if len(words) > 1 + sizes else ""
        subject = words[0].decode()
        if not self._server.publish(subject, reply, raw, payload) and reply:
            self.deliver(reply, "", b" 503", b"")

    def deliver(self, subject: str, reply: str, raw: bytes, body: bytes) -> bool:
        """Send a message to the client if it has subscribed to it, and return whether it has."""
        is_found = False
        for sid, (pattern, left) in list(self._subscriptions.items()):
            if not matches(pattern, subject):
                continue
            is_found = True
            target = b"%b %b %b" % (subject.encode(), sid, reply.encode() + b" " * bool(reply))
            if raw:
                line = (
                    b"NATS/1.0%b\r\n\r\n" % raw if raw[:1] == b" " else b"NATS/1.0\r\n%b\r\n" % raw
                )
                sizes = b"%d %d" % (len(line), len(line) + len(body))
                self._send(b"HMSG %b%b\r\n%b%b\r\n" % (target, sizes, line, body))
            else:
                self._send(b"MSG %b%d\r\n%b\r\n" % (target, len(body), body))
            if left is not None:
                self._subscriptions[sid] = pattern, left - 1
                if left == 1:
                    self._unsubscribe([sid])
        return is_found

    def _send(self, data: bytes) -> None:
        if not self._waiting and self._server.machine is not None:
            context = self._server.machine.context
            self._server.loop.call_soon(self._flush, context=context)
        self._waiting.append(data)

    def _flush(self) -> None:
        self._transport.write(b"".join(self._waiting))
        self._waiting.clear()


def parse_headers(raw: bytes) -> dict[str, str]:
    headers = {}
    for line in raw.decode().split("\r\n"):
        name, separator, value = line.partition(":")
        if separator:
            headers[name] = value.strip()
    return headers


def _text(microseconds: int) -> str:
    return from_microseconds(microseconds).isoformat().replace("+00:00", "Z")


def _count(counts: dict[str, int], key: str, more: int) -> None:
    count = counts.get(key, 0) + more
    if count:
        counts[key] = count
    else:
        counts.pop(key, None)
