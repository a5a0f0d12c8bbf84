"""A hub of several nodes on NATS JetStream, behind a load balancer, and callbacks."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextlib import suppress
from functools import partial
from random import Random
from types import MappingProxyType
from typing import Any

import aiohttp
import nats.nuid
from aiohttp import web

import rsnotify_jetstream.jetstream_store as jetstream_store
from rsnotify.errors import RsnotifyError
from rsnotify.format.datetimes import Instant, parse_datetime
from rsnotify.runtime.command_line import SHUTDOWN_TIMEOUT as STOP_SECONDS
from rsnotify_hub.application import HUB, create_application
from rsnotify_jetstream.jetstream_store import JetStreamStore
from tests.harnesses.simulation import cluster_invariants, faults
from tests.harnesses.simulation.cluster_invariants import LOG_NAME, ClusterCheck
from tests.harnesses.simulation.loop import Clock, Machine, SimulatedLoop
from tests.harnesses.simulation.nats_server import Backup, Servers, SimulatedNats
from tests.harnesses.simulation.network import Network
from tests.harnesses.simulation.run import Check, Run
from tests.harnesses.simulation.wire import INTERVAL
from tests.harnesses.simulation.world import (
    BASE,
    Hub,
    Simulated,
    World,
    hub_configuration,
    hub_url,
    make_world,
)

#: The shards of subscriptions; a node needs about ten requests for each that it takes.
SHARDS = 3
_BALANCER, _NODE_PORT, _CALLBACK_PORT = 8010, 8050, 8030
_TOPIC = f"{BASE}channel.xml"
#: Seconds until a process that has ended is started again.
_RESTART_SECONDS = 1.0


class HubNode(Hub):
    """A node of the hub, which is started again when it ends.

    Attributes:
        store: Its store, while it runs.
    """

    def __init__(
        self, loop: SimulatedLoop, network: Network, number: int, nats: str, queue: int
    ) -> None:
        super().__init__(loop, network, f"node{number}", Clock())
        self.url = hub_url(0)
        self.log = LOG_NAME
        self.port = _NODE_PORT + number
        self._nats = nats
        self._queue = queue
        self._runner: web.AppRunner | None = None
        self.is_stopping = False

    @property
    def store(self) -> JetStreamStore | None:
        if self._runner is None or self.machine is None or HUB not in self._runner.app:
            return None
        store = self._runner.app[HUB].store
        assert isinstance(store, JetStreamStore)
        return store

    async def run(self, machine: Machine) -> None:
        configuration = hub_configuration(_BALANCER, self._queue, self.topics, store=self._nats)
        while True:
            app = create_application(configuration, public_url=self.url, anonymous=False)
            self._runner = runner = web.AppRunner(app, access_log=None, auto_decompress=False)
            try:
                await runner.setup()
                break
            except RsnotifyError:
                with suppress(RsnotifyError):
                    await runner.cleanup()
                await asyncio.sleep(_RESTART_SECONDS)
        assert runner.server is not None
        for port in (_BALANCER, self.port):
            self.network.listen(machine, port, runner.server)
        await asyncio.Event().wait()

    def stop(self) -> None:
        """Stop as by SIGTERM."""
        if self.machine is not None and self.store is not None and not self.is_stopping:
            self.is_stopping = True
            self.machine.spawn(self._stop(self.machine))
            self.loop.call_at(self.loop.now + STOP_SECONDS, self._ended, self.machine)

    async def _stop(self, machine: Machine) -> None:
        assert self._runner is not None
        for port in (_BALANCER, self.port):
            self.network.refuse(machine, port)
        await self._runner.cleanup()
        # Not from the callback of a machine that is killed.
        self.loop.after_callback(partial(self._ended, machine))

    def _ended(self, machine: Machine) -> None:
        if self.machine is machine:
            self.kill()
            if not self.loop.wire.is_faulty:
                self.start()

    def kill(self) -> None:
        super().kill()
        self._runner = None
        self.is_stopping = False


class CallbackMachine(Simulated):
    """A subscriber whose callback receives fragments, and sometimes fails.

    Attributes:
        begin: Through which instant the log was when the subscription was verified.
        through: The latest end of the fragments that it has accepted; None before the first.
    """

    def __init__(self, run: ClusterRun, number: int) -> None:
        super().__init__(run.loop, run.network, f"callback{number}", Clock())
        self._port = _CALLBACK_PORT + number
        self.url = f"http://127.0.0.1:{self._port}/"
        self._played = run
        self.is_verified = False
        self.through: Instant | None = None
        self.duplicates = self.deliveries = 0

    async def run(self, machine: Machine) -> None:
        app = web.Application()
        app.router.add_get("/", self._verify)
        app.router.add_post("/", self._receive)
        await self.network.serve(machine, self._port, app)
        while self.through is None:  # a node may be killed before it stores the subscription
            with suppress(aiohttp.ClientError, OSError, TimeoutError):
                await self._subscribe()
            await asyncio.sleep(5)

    async def _subscribe(self) -> None:
        form = {"hub.mode": "subscribe", "hub.topic": _TOPIC, "hub.callback": self.url}
        async with (
            faults.open_client() as client,
            client.post(hub_url(0) + "websub", data=form) as response,
        ):
            self._played.note(f"{self.name} subscribes: {response.status}")

    async def _verify(self, request: web.Request) -> web.Response:
        self.is_verified = True
        return web.Response(text=request.query["hub.challenge"])

    async def _receive(self, request: web.Request) -> web.Response:
        run = self._played
        body = await request.read()
        chance = run.chance.random()
        if run.wire.is_faulty and chance < 0.1:
            raise web.HTTPServiceUnavailable
        for found in INTERVAL.finditer(body):
            begin, until = (parse_datetime(each.decode()) for each in found.groups())
            run.check_cluster.received(self.name, begin, until, self.through)
            self.deliveries += 1
            self.duplicates += self.through is not None and until <= self.through
            self.through = max(until, self.through or until)
        if run.wire.is_faulty and chance < 0.2:
            await asyncio.sleep(1)
            raise web.HTTPBadGateway  # the hub does not know that it has arrived
        return web.Response()


def lead_elsewhere(run: ClusterRun) -> None:
    """Kill or suspend the server that leads a stream, which another one leads then."""
    name = run.chance.choice(("rsnotify-log", "KV_rsnotify-cluster", "KV_rsnotify-cursors", ""))
    leader = run.servers.leader(name)
    if leader is None or leader.is_paused:
        return
    how = run.chance.choice(("kill", "suspend"))
    seconds = run.chance.choice((3.0, 6.0, 8.0, 15.0, 30.0))
    run.note(f"{how} {leader.name}, which leads {name or 'all'}, for {seconds:.0f} s")
    _fail_for(run, leader, seconds, kills=how == "kill")


def lose_quorum(run: ClusterRun) -> None:
    """Kill or suspend most servers for some time."""
    seconds = run.chance.choice((2.0, 8.0, 20.0))
    kills = run.chance.random() < 0.5
    chosen = run.chance.sample(run.servers.all, 2)
    run.note(f"{'kill' if kills else 'suspend'} {[each.name for each in chosen]} for {seconds} s")
    for each in chosen:
        _fail_for(run, each, seconds, kills=kills)


def _fail_for(run: ClusterRun, server: SimulatedNats, seconds: float, *, kills: bool) -> None:
    machine = server.machine
    if machine is None:
        return
    if kills:
        server.kill()
    else:
        machine.pause()
        # The server then receives what follows from these, before it knows the other leader.
        for before in (2.0, 1.5, 1.0, 0.5, 0.0):
            run.loop.call_at(run.loop.now + seconds - before, faults.change, run)
    run.loop.call_at(run.loop.now + seconds, _return, run, server)


def _return(run: ClusterRun, server: SimulatedNats) -> None:
    if server.machine is None:
        run.note(f"start {server.name}")
        server.start()
    elif server.machine.is_paused:
        run.note(f"resume {server.name}")
        server.machine.resume()


def back_up_or_restore(run: ClusterRun) -> None:
    """Back up all servers once each callback is subscribed, or restore them while no node runs."""
    if any(each.through is None for each in run.callbacks):
        return
    if run.backup is None:
        run.note("back up the servers")
        run.backup = run.servers.back_up()
    elif run.chance.random() < 0.5:
        run.note("restore the servers from the backup")
        stopped: list[Simulated] = [*run.nodes, *run.servers.all]
        for each in stopped:
            if each.machine is not None:
                each.kill()
        run.servers.restore(run.backup)
        run.check_cluster.restored(run.backup)
        for each in reversed(stopped):
            each.start()


def stop_node(run: ClusterRun) -> None:
    node = run.chance.choice(run.nodes)
    if node.machine is not None:
        run.note(f"stop {node.name}")
        node.stop()


def start_nodes(run: ClusterRun) -> None:
    for each in run.nodes:
        if each.machine is None:
            run.note(f"start {each.name}")
            each.start()


def request_readiness(run: ClusterRun) -> None:
    for each in run.nodes:
        run.intruder.spawn(run.check_cluster.request_readiness(each))


def disturb(run: ClusterRun) -> None:
    """Delay or break off a connection."""
    run.check_cluster.disturb()
    run.chance.choice((faults.reset, faults.delay))(run)


def set_clock(run: ClusterRun) -> None:
    faults.set_clock(run)
    run.check_cluster.watch_clocks()  # it may be set right at once


def check_servers(run: ClusterRun) -> None:
    """Have the nodes check the servers, perhaps while another one begins to lead."""
    for each in run.nodes:
        if each.machine is not None and (store := each.store) is not None:
            each.machine.spawn(store.check_servers())
    if run.chance.random() < 0.5:
        run.loop.call_at(run.loop.now + run.chance.random(), lead_elsewhere, run)


def wait(run: ClusterRun) -> None:
    """Change something during some seconds, so that faults show."""
    for second in range(6):
        run.loop.call_at(run.loop.now + second, faults.change, run)


def _few_bytes(count: int = 32) -> bytes:
    return SimulatedLoop.current.random.randbytes(count) if SimulatedLoop.current else bytes(count)


class ClusterRun(Run):
    """A seed whose hub is a cluster."""

    convergence = 600.0
    actions: faults.Actions = MappingProxyType(
        {
            faults.change: 40,
            faults.burst: 2,
            faults.kill_or_start: 10,
            faults.pause: 4,
            faults.resume: 4,
            faults.partition: 5,
            faults.heal: 5,
            disturb: 5,
            faults.be_absent: 1,
            set_clock: 2,
            faults.intrude: 1,
            lead_elsewhere: 6,
            lose_quorum: 3,
            stop_node: 3,
            start_nodes: 3,
            request_readiness: 3,
            check_servers: 6,
            wait: 3,
            back_up_or_restore: 2,
        }
    )

    @staticmethod
    def patch() -> None:
        """Check what the extension does, and have it begin with few shards."""
        opened: Any = partial(jetstream_store.open_jetstream, shards=SHARDS)
        jetstream_store.open_jetstream = opened
        nats.nuid.token_bytes = _few_bytes
        nats.nuid.randbelow = lambda limit: int.from_bytes(_few_bytes(7)) % limit
        cluster_invariants.patch()

    def __init__(self, seed: int) -> None:
        super().__init__(seed)
        self.check_cluster.watch()

    def make_world(self, seed: int) -> World:
        rare = Random(f"world {seed}")
        found = make_world(self.loop.random, rare)
        return found._replace(
            hubs=1,
            far=rare.choice(("plain", "filtered", "slow", "websub", "websub", "websub")),
            rotate="15 changes",
            power=False,
            rewritten=False,
            late=False,
        )

    def make_hubs(self) -> Sequence[Hub]:
        self.chance = chance = Random(f"cluster {self.seed}")
        self.network.balanced.add(_BALANCER)
        self.check_cluster = ClusterCheck(self, _TOPIC)
        self.loop.check_cluster = self.check_cluster  # type: ignore[attr-defined]
        self.servers = Servers(
            self.loop,
            self.network,
            3,
            chance,
            self.check_cluster.changed,
            unanswered=chance.choice((0.0, 0.0, 0.02)),
        )
        self.servers.begin()
        self.backup: Backup | None = None
        self.nodes = [
            HubNode(self.loop, self.network, number, self.servers.url, self.world.queue)
            for number in range(chance.choice((2, 3)))
        ]
        self.callbacks = [CallbackMachine(self, number) for number in range(2)]
        self.wire.sharing.update(each.name for each in self.nodes)
        return self.nodes

    def other_machines(self) -> Sequence[Simulated]:
        return [*self.servers.all, *self.callbacks]

    def make_checks(self) -> Sequence[Check]:
        return [self.check_cluster, *super().make_checks()]

    def end(self) -> None:
        self.servers.unanswered = 0.0
        super().end()
        self.check_cluster.ended()

    def is_equal(self) -> bool:
        return super().is_equal() and self.check_cluster.is_level()

    def describe(self) -> str:
        return f"{super().describe()}; {self.check_cluster.describe()}"
