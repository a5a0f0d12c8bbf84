"""TCP in virtual time: delays, resets, partitions, and the connections of machines that die."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Collection, Iterable
from itertools import count
from typing import Any, cast

from aiohttp import web

from tests.harnesses.simulation.loop import Machine, SimulatedLoop, current_machine

Factory = Callable[[], asyncio.BaseProtocol]
#: How long data is on its way, in seconds.
_LATENCIES = (0.0001,) * 8 + (0.001,) * 4 + (0.02, 0.5)


class SimulatedSocket:
    """A connection that was accepted and has no transport yet."""

    def __init__(self, port: int, listener: tuple[Machine, Factory] | None) -> None:
        self.port = port
        self.listener = listener

    def close(self) -> None: ...


class SimulatedTransport(asyncio.Transport):
    """One end of a connection."""

    def __init__(self, network: Network, machine: Machine, port: int) -> None:
        super().__init__({"peername": ("127.0.0.1", port), "sockname": ("127.0.0.1", port)})
        self.machine = machine
        self.serial = next(network.serials)
        self.peer: SimulatedTransport
        self._network = network
        self._loop = network.loop
        self._protocol: asyncio.Protocol | asyncio.BufferedProtocol
        self._is_closing = False
        self._is_lost = False
        #: What has arrived and was not read; None is the end.
        self._arrived: deque[bytes | None] = deque()
        self._is_paused = False
        self._in_flight = 0
        self._high = self._network.buffer
        self._low = self._high // 4
        self._is_writing_paused = False
        self._next_arrival = 0.0
        #: What was sent and has not arrived, in order.
        self.on_its_way: deque[bytes | None] = deque()

    def begin(self, protocol: asyncio.BaseProtocol) -> None:
        self._protocol = cast(asyncio.Protocol, protocol)
        self._protocol.connection_made(self)

    def set_protocol(self, protocol: asyncio.BaseProtocol) -> None:
        self._protocol = cast(asyncio.Protocol, protocol)

    def get_protocol(self) -> asyncio.BaseProtocol:
        return self._protocol

    # Output

    def write(self, data: Any) -> None:
        if self._is_closing or not data or not self.machine.is_alive:
            return
        self._in_flight += len(data)
        self._network.carry(self, bytes(data))
        if not self._is_writing_paused and self.get_write_buffer_size() > self._high:
            self._is_writing_paused = True
            self._protocol.pause_writing()

    def writelines(self, list_of_data: Iterable[Any]) -> None:
        self.write(b"".join(list_of_data))

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        self._high = self._network.buffer if high is None else high
        self._low = self._high // 4 if low is None else low

    def get_write_buffer_size(self) -> int:
        return max(0, self._in_flight - self._network.buffer)

    def can_write_eof(self) -> bool:
        return False

    def delivered(self, size: int) -> None:
        self._in_flight -= size
        if self._is_writing_paused and self.get_write_buffer_size() <= self._low:
            self._is_writing_paused = False
            if not self._is_lost:
                self._call(self._protocol.resume_writing)

    def delay(self, seconds: float) -> None:
        """Delay what is sent next. It stays behind what is on its way."""
        self._next_arrival = max(self._next_arrival, self._loop.now + seconds)

    def arrival(self) -> float:
        """Return when what is sent now arrives: after everything before it."""
        random = self._loop.random
        self._next_arrival = max(self._next_arrival, self._loop.now + random.choice(_LATENCIES))
        return self._next_arrival

    # Input

    def arrive(self, data: bytes | None) -> None:
        if self._is_lost:
            return
        self._arrived.append(data)
        if not self._is_paused:
            self._read()

    def _read(self) -> None:
        while self._arrived and not self._is_paused and not self._is_lost:
            data = self._arrived.popleft()
            if data is not None:
                self.peer.delivered(len(data))
                if not self._is_closing:
                    self._pass_on(data)
            elif not self._protocol.eof_received():
                self.close()

    def _pass_on(self, data: bytes) -> None:
        protocol = self._protocol
        if not isinstance(protocol, asyncio.BufferedProtocol):
            protocol.data_received(data)
            return
        while data:
            buffer = protocol.get_buffer(-1)
            count = min(len(buffer), len(data))
            buffer[:count] = data[:count]
            protocol.buffer_updated(count)
            data = data[count:]

    def pause_reading(self) -> None:
        self._is_paused = True

    def resume_reading(self) -> None:
        if self._is_paused:
            self._is_paused = False
            self._call(self._read)

    def is_reading(self) -> bool:
        return not self._is_paused

    # The end

    def is_closing(self) -> bool:
        return self._is_closing

    def close(self) -> None:
        if not self._is_closing:
            self._is_closing = True
            self._network.carry(self, None)
            self._call(self.lose, None)

    def abort(self) -> None:
        self._is_closing = True
        self._network.break_off(self)
        self._call(self.lose, None)

    def lose(self, error: Exception | None) -> None:
        self._is_closing = True
        if not self._is_lost:
            self._is_lost = True
            self._protocol.connection_lost(error)

    def _call(self, function: Callable[..., object], *arguments: Any) -> None:
        self._loop.call_soon(function, *arguments, context=self.machine.context.copy())


class Network:
    """The connections between machines, each of which listens at a port of its own."""

    def __init__(self, loop: SimulatedLoop) -> None:
        self.loop = loop
        loop.network = self
        loop.create_connection = self.create_connection  # type: ignore[assignment, method-assign]
        self.serials = count()
        #: How many bytes a connection holds.
        self.buffer = 65_536
        #: Who listens at each port; the first accepts.
        self._listeners: dict[int, list[tuple[Machine, Factory]]] = {}
        #: The ports of load balancers: chance decides which of those who listen accepts.
        self.balanced = set[int]()
        self._ends: set[SimulatedTransport] = set()
        self._cut: set[frozenset[str]] = set()
        #: What waits for the end of a partition.
        self._held: list[Callable[[], object]] = []

    def listen(self, machine: Machine, port: int, factory: Factory) -> None:
        self._listeners.setdefault(port, []).append((machine, factory))
        machine.on_kill.append(lambda: self.refuse(machine, port))

    async def serve(
        self, machine: Machine, port: int, app: web.Application, *, auto_decompress: bool = True
    ) -> None:
        runner = web.AppRunner(app, access_log=None, auto_decompress=auto_decompress)
        await runner.setup()
        assert runner.server is not None
        self.listen(machine, port, runner.server)

    def refuse(self, machine: Machine, port: int) -> None:
        """Have a machine not listen any more."""
        listeners = self._listeners[port]
        listeners[:] = [each for each in listeners if each[0] is not machine]

    def _listener(self, port: int) -> tuple[Machine, Factory] | None:
        listeners = self._listeners.get(port)
        if listeners and port in self.balanced:
            return self.loop.random.choice(listeners)
        return next(iter(listeners or ()), None)

    def _break_off_all(self, machine: Machine) -> None:
        for end in sorted(self._ends, key=lambda end: end.serial):
            if end.machine is machine:
                self.break_off(end)

    def register(self, machine: Machine) -> None:
        """Break off the connections of a machine when it is killed."""
        machine.on_kill.append(lambda: self._break_off_all(machine))

    # Faults

    def partition(self, one: str, other: str) -> None:
        self._cut.add(frozenset((one, other)))

    def heal(self) -> None:
        self._cut.clear()
        held, self._held = self._held, []
        for each in held:
            each()

    def reset_one(self) -> None:
        ends = sorted(self._ends, key=lambda end: end.serial)
        if ends:
            chosen = self.loop.random.choice(ends)
            chosen._call(chosen.lose, ConnectionResetError("reset"))
            self.break_off(chosen)

    def delay_one(self, seconds: float) -> None:
        """Delay what is sent next on a connection."""
        ends = sorted(self._ends, key=lambda end: end.serial)
        if ends:
            self.loop.random.choice(ends).delay(seconds)

    def delay_from(self, senders: Collection[str], receiver: str, seconds: float) -> None:
        """Delay what machines send next to another one."""
        for end in self._ends:
            if end.machine.name in senders and end.peer.machine.name == receiver:
                end.delay(seconds)

    def hold(self, one: Machine, other: Machine, again: Callable[[], object]) -> bool:
        """Return whether two machines are apart; `again` is called once they are not."""
        if self._are_apart(one, other):
            self._held.append(again)
            return True
        return False

    def are_cut(self, one: str, other: str) -> bool:
        return frozenset((one, other)) in self._cut

    def _are_apart(self, one: Machine, other: Machine) -> bool:
        return self.are_cut(one.name, other.name)

    # Connections

    async def start_connection(self, addr_infos: Any, **_: Any) -> SimulatedSocket:
        port = addr_infos[0][4][1]
        machine = current_machine()
        assert machine is not None
        await asyncio.sleep(self.loop.random.choice(_LATENCIES))
        found = self._listener(port)
        if found is not None and self._are_apart(machine, found[0]):
            await asyncio.sleep(3600)
        if found is None or not found[0].is_alive:
            found = self._listener(port)
        if found is None:
            raise ConnectionRefusedError(111, f"Connect call failed ('127.0.0.1', {port})")
        return SimulatedSocket(port, found)

    async def create_connection(
        self,
        factory: Factory,
        host: object = None,
        port: int | None = None,
        *,
        sock: SimulatedSocket | None = None,
        **_: Any,
    ) -> tuple[asyncio.Transport, asyncio.BaseProtocol]:
        caller = current_machine()
        assert caller is not None
        if sock is None:
            sock = await self.start_connection([(2, 1, 6, "", (host, port))])
        found = sock.listener
        if found is None or not found[0].is_alive:
            found = self._listener(sock.port)
        if found is None:
            raise ConnectionRefusedError(111, f"Connect call failed ('127.0.0.1', {sock.port})")
        machine, server = found
        near = SimulatedTransport(self, caller, sock.port)
        far = SimulatedTransport(self, machine, 0)
        near.peer, far.peer = far, near
        self._ends |= {near, far}
        protocol = factory()
        machine.run(lambda: far.begin(server()))
        near.begin(protocol)
        return near, protocol

    def carry(self, sender: SimulatedTransport, data: bytes | None) -> None:
        """Deliver data to the other end, after a delay and after the end of a partition."""
        receiver = sender.peer
        sender.on_its_way.append(data)

        def arrive() -> None:
            if self._are_apart(sender.machine, receiver.machine):
                self._held.append(again)
            else:
                receiver.arrive(sender.on_its_way.popleft())

        def again() -> None:
            receiver._call(arrive)

        self.loop.call_at(sender.arrival(), arrive, context=receiver.machine.context.copy())
        if data is None:
            self._ends.discard(sender)

    def break_off(self, end: SimulatedTransport) -> None:
        other = end.peer
        self._ends -= {end, other}

        def lose() -> None:
            if self._are_apart(end.machine, other.machine):
                self._held.append(lambda: other._call(lose))
            else:
                other.lose(ConnectionResetError(104, "Connection reset by peer"))

        self.loop.call_at(end.arrival(), lose, context=other.machine.context.copy())
