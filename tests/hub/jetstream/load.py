"""Appends to many topics from several nodes at once, and what must hold afterwards."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from itertools import count

from rsnotify.errors import StorageError
from rsnotify_hub.fragments import Fragment
from rsnotify_jetstream.nats_settings import NatsSettings
from tests.hub.helpers import Clock
from tests.hub.jetstream.nodes import Node, caught_up, running_node
from tests.hub.storing import made
from tests.waiting import PATIENCE

#: How many fragments are appended at once, one after the other.
BURSTS = (1, 5, 2)


class Load:
    """Publishers, each of which appends to one topic through one node, some fragments at once.

    Attributes:
        acknowledged: The bodies of what was acknowledged, by topic.
        retries: How often an append failed and was tried again.
        nodes: The nodes.
    """

    def __init__(self, nodes: Sequence[Node], *, topics: int) -> None:
        self.topics = [f"topic {number}" for number in range(topics)]
        self.acknowledged: dict[str, list[bytes]] = {topic: [] for topic in self.topics}
        self.retries = 0
        self.nodes = nodes
        self._count = self._wanted = 0
        self._counted = asyncio.Condition()
        self._stopping = False

    async def reached(self, more: int) -> None:
        """Wait until more appends were acknowledged."""
        self._wanted = self._count + more
        async with asyncio.timeout(PATIENCE), self._counted:
            await self._counted.wait_for(lambda: self._count >= self._wanted)

    async def publish(self, number: int, node: Node, topic: str) -> None:
        """Append fragments of a publisher of its own, one burst after the other."""
        end = 0
        for burst in count():
            if self._stopping:
                return
            begin, end = end, end + BURSTS[burst % len(BURSTS)]
            fragments = [made(n, n + 1, padding=number) for n in range(begin, end)]
            while not await self._append(node, topic, fragments):
                self.retries += 1
            self.acknowledged[topic] += [fragment.body for fragment in fragments]
            self._count += 1
            async with self._counted:
                self._counted.notify_all()
            if self._count > self._wanted:  # such as while a server starts, for many seconds
                await asyncio.sleep(0.1)

    async def _append(self, node: Node, topic: str, fragments: Sequence[Fragment]) -> bool:
        try:
            await node.append(topic, *fragments)
        except StorageError:
            await asyncio.sleep(0.01)
            return False
        return True

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """Run a publisher for each node and topic, until the end of the block."""
        async with asyncio.timeout(PATIENCE), asyncio.TaskGroup() as tasks:
            for number, node in enumerate(self.nodes):
                for topic in self.topics:
                    tasks.create_task(self.publish(number, node, topic))
            yield
            self._stopping = True

    async def check(self, *late: Node) -> None:
        """Check that every node has everything acknowledged, once, and all in one order.

        Args:
            late: Nodes that were started later, and so were notified of less.
        """
        await caught_up(*self.nodes, *late)
        order = self.nodes[0].listener.order
        assert len(set(order)) == len(order)
        assert order == sorted(order)
        for node in self.nodes:
            assert node.listener.order == order
        for topic in self.topics:
            kept = await self.nodes[0].kept(topic)
            bodies = [fragment.body for fragment in kept]
            assert len(set(bodies)) == len(bodies)
            assert set(self.acknowledged[topic]) <= set(bodies)
            for number in range(len(self.nodes)):
                self._check_order(number, bodies)
            for node in self.nodes:
                assert node.listener.fragments(topic) == kept
            for node in (*self.nodes[1:], *late):
                assert await node.kept(topic) == kept
                assert node.state(topic) == self.nodes[0].state(topic)

    def _check_order(self, publisher: int, bodies: list[bytes]) -> None:
        """What one publisher appended is in its order."""
        sent = [made(n, n + 1, padding=publisher).body for n in range(len(bodies))]
        own = set(sent)
        mine = [body for body in bodies if body in own]
        assert mine == sent[: len(mine)]


@asynccontextmanager
async def loaded(
    settings: NatsSettings, clock: Clock, *, count: int, topics: int
) -> AsyncIterator[Load]:
    """Publish through some nodes in the block, and check then what they and a new one have."""
    async with nodes(settings, clock, count) as running:
        load = Load(running, topics=topics)
        async with load.running():
            yield load
        async with running_node(settings, clock) as late:
            await load.check(late)


@asynccontextmanager
async def nodes(settings: NatsSettings, clock: Clock, count: int) -> AsyncIterator[list[Node]]:
    async with AsyncExitStack() as stack:
        yield [await stack.enter_async_context(running_node(settings, clock)) for _ in range(count)]
