"""A hub that is stopped (SIGSTOP) for longer than its lease, and then continues."""

from __future__ import annotations

import os
import signal

from rsnotify_hub.store.jetstream.settings import NatsSettings
from tests.hub.helpers import Clock
from tests.hub.jetstream.callbacks import callback_ports
from tests.hub.jetstream.hub_process import hub_process
from tests.hub.jetstream.hubs import running_hubs, settled, until


async def test_a_hub_that_was_stopped_delivers_nothing_that_another_hub_has(
    settings: NatsSettings, clock: Clock
):
    async with running_hubs(settings, clock) as hubs, callback_ports(12) as callbacks:
        here = await hubs.start("here")
        nodes = here.store.node.nodes
        await settled([here])
        with hub_process(settings, "paused") as process:
            await until(lambda: len(nodes) == 2)
            (other,) = nodes.keys() - {here.store.node.id}
            await settled([here], other)
            for url in callbacks.urls:
                await here.request(url)
            mine = {url for url in callbacks.urls if here.owns(url)}
            await until(lambda: here.urls == mine)
            theirs = set(callbacks.urls) - mine
            # Its subscriptions are confirmed once it has stored them, which it alone knows.
            second = 1
            while not all(url in callbacks.received for url in theirs):
                await here.publish(second)
                await callbacks.all_have(second, mine)
                second += 1
            await callbacks.all_have(second - 1)

            process.send_signal(signal.SIGSTOP)
            os.waitid(os.P_PID, process.pid, os.WSTOPPED | os.WNOWAIT)  # noqa: ASYNC222
            await here.publish(second)
            await settled([here])
            assert here.urls == set(callbacks.urls)
            await callbacks.all_have(second)
            counts = {url: len(callbacks.hubs[url]) for url in callbacks.urls}

            process.send_signal(signal.SIGCONT)
            await settled([here], other)
            await here.publish(second + 1)
            await callbacks.all_have(second + 1)
            for url in theirs:
                # What it had in its buffers when it continued was delivered by the other hub.
                assert callbacks.received[url].count(second) == 1
                assert len(callbacks.hubs[url]) == counts[url] + 1
                assert callbacks.hubs[url][-1] == "http://paused.example/websub"
            assert callbacks.overlaps == set()
