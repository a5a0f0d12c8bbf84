"""Three nodes of a hub and three NATS servers under faults: what is acknowledged is delivered.

    make cluster-trial ARGS="--seed 7 --minutes 3"

Publishers, and subscribers over WebSocket, Server-Sent Events, WebSub and MQTT, in this process,
use real processes of the hub. The seed decides the faults: hubs and NATS servers are killed,
suspended and restarted in order, the servers lose their majority, a clock is wrong, and a server
comes back with an old store. A real Source and a Destination take part, too.

Exit code 0 means: each acknowledged fragment reached every subscriber of its topic, unaltered and
in order; without a majority, publications were answered with 503 and Retry-After within two
seconds; after its return, publishing worked within the given time; no subscription was lost; and
the Destination equals the Source, and no change had its effect twice. Figures are printed.

With `--upgrade-from` the hubs begin with an earlier revision and are restarted one by one with
this one, and then with the earlier one again, while faults happen. The revision is unpacked beside
this one by `git archive`, and uses the same environment. The states of a Source, a hub on SQLite
and a Destination are opened by the earlier revision, by this one, and again by the earlier one,
which may refuse them with a sentence.

With `--scenario wiped` all that NATS has is deleted, while the hubs run and while they do not; with
`--scenario foreign` another program has streams of the same names, or another hub uses them.
"""

from __future__ import annotations

import argparse
import asyncio
import random
import signal
import sys
import tempfile
import time
from collections.abc import Awaitable, Mapping
from contextlib import AsyncExitStack
from pathlib import Path
from typing import TypeVar

from rsnotify.runtime.tasks import cancel
from tests.end_to_end import history
from tests.harnesses.cluster.deployment import NODES, Deployment, nats_servers
from tests.harnesses.cluster.faults import KINDS, Faults, Happened
from tests.harnesses.cluster.judge import Judge, Logs, in_words
from tests.harnesses.cluster.receivers import Receiver, callbacks, mqtt_clients, streams
from tests.harnesses.cluster.releases import release, unpack
from tests.harnesses.cluster.scenarios import SCENARIOS
from tests.harnesses.cluster.states import compare
from tests.harnesses.cluster.traffic import Ledger, Publishing
from tests.waiting import PATIENCE

T = TypeVar("T")
TOPICS = tuple(f"https://source.example/{name}/channel.xml" for name in "abcde")
#: Callbacks that subscribe after the faults.
_LATE = 60
#: Changes a second of the Source.
_CHANGES = 2.0
_POLL = 0.1


class Trial:
    """A deployment, what is published there, and what is received."""

    def __init__(self, root: Path, arguments: argparse.Namespace) -> None:
        self._arguments = arguments
        self._random = random.Random(arguments.seed)
        self._root = root
        # The variables with which hubs of an earlier, and of the tested revision are started.
        self._old: Mapping[str, str] = {}
        self._tested: Mapping[str, str] = {}
        if arguments.upgrade_from is not None:
            revision = arguments.upgrade_from or release()
            self._old = unpack(revision, root / "old")
            print(f"the old release is {revision}", flush=True)
        if arguments.revision is not None:
            self._tested = unpack(arguments.revision, root / "tested")
        self.deployment = Deployment(root, nats_servers(root))
        self.ledger = Ledger(TOPICS)

    async def run(self) -> int:
        """Run it, print the figures, and return the exit code."""
        async with AsyncExitStack() as stack:
            await stack.enter_async_context(self.deployment.running(self._old or self._tested))
            old = await self._save_old()
            receivers = await self._subscribe(stack)
            self.judge = judge = Judge(self.deployment, self.ledger, receivers)
            judge.answers = not self._old
            publishing = Publishing(
                self.ledger, self.deployment.hubs, self._arguments.rate / len(TOPICS)
            )
            logs = Logs(self.deployment)
            published = asyncio.create_task(publishing.run())
            changed = asyncio.create_task(asyncio.to_thread(self._change))
            await self._level()
            logs.since("the start")
            faults = Faults(self.deployment, self._random, old)
            if self._old:
                await self._upgrade(faults, logs)
            else:
                await self._cause(faults, logs)
            publishing.ends.set()
            await self._level()
            if published.done():
                await published
            await cancel([published])
            receivers += await self._late(stack)
            await publishing.once()
            await self._level()
            await changed
            await self._check_state(receivers)
            logs.since("the end")
        if self._old:
            found, broken = await compare(self._root / "states", self._old)
            judge.broken += broken
            for line in found:
                print(line)
        judge.check()
        if logs.tracebacks:
            judge.broken.append(f"the hubs logged {logs.tracebacks} tracebacks")
        self._print(logs)
        return 1 if judge.broken else 0

    async def _save_old(self) -> str:
        """Keep a copy of the store of a NATS server, to be restored, and return its name."""
        name = self._random.choice(sorted(self.deployment.servers))
        await self.deployment.stop_server(name)
        await asyncio.to_thread(self.deployment.save_store, name)
        self.deployment.servers[name].start()
        await self.deployment.until_healthy(name)
        await self.deployment.until_led()
        await self.deployment.until_shared()
        return name

    async def _subscribe(self, stack: AsyncExitStack) -> list[Receiver]:
        nodes = list(self.deployment.hubs.values())
        found: list[Receiver] = []
        found += await stack.enter_async_context(callbacks(8, self.ledger, nodes))
        found += await stack.enter_async_context(streams(6, 4, self.ledger, nodes))
        if (broker := self.deployment.broker) is not None:
            found += await stack.enter_async_context(mqtt_clients(2, self.ledger, broker.url))
        return found

    async def _late(self, stack: AsyncExitStack) -> list[Receiver]:
        """Subscribe so many callbacks that most shards have some, and thus a working owner."""
        nodes = list(self.deployment.hubs.values())
        try:
            late = callbacks(_LATE, self.ledger, nodes, are_late=True)
            return [*await stack.enter_async_context(late)]
        except TimeoutError:
            self.judge.broken.append("some subscriptions are not confirmed after the faults")
            return []

    def _change(self) -> None:
        """Change the Source's folder for as long as the trial takes."""
        steps = history.make_up(round(60 * self._arguments.minutes * _CHANGES), seed=1)
        history.apply(steps, self.deployment.source_folder, _CHANGES)

    async def _cause(self, faults: Faults, logs: Logs) -> None:
        """Cause faults until the time is over; wait after most of them until all is level."""
        began = time.monotonic()
        end = began + 60 * self._arguments.minutes
        while time.monotonic() < end:
            kind = faults.draw()
            if self._arguments.kind and kind not in self._arguments.kind:
                continue
            if kind == "old store":  # it is the only one that lacks anything
                await self._level()
            print(f"{time.monotonic() - began:7.1f} s: {kind}", flush=True)
            fault = await faults.happen(kind)
            if self._random.random() < 0.7:
                await self._after(fault, logs)
            else:
                self.judge.faults.append(fault)
                # At any instant: this wait stands for no event.
                await asyncio.sleep(self._random.uniform(0, 3))
                logs.since(fault.what)

    async def _upgrade(self, faults: Faults, logs: Logs) -> None:
        """Restart the hubs one by one with this release, and then with the old one, under faults.

        Those of other kinds are caused between two of them, while nodes of both releases run.
        """
        for environment, what in ((self._tested, "upgrade"), (self._old, "downgrade")):
            for name in self._random.sample(NODES, len(NODES)):
                self.deployment.set_environment(name, environment)
                print(f"{what} {name}", flush=True)
                await self._after(await faults.restart_hub(name, f"{what} {name}"), logs)
                kind = faults.draw()
                print(f"  {kind}", flush=True)
                await self._after(await faults.happen(kind), logs)

    async def _after(self, fault: Happened, logs: Logs) -> None:
        self.judge.faults.append(fault)
        await self._level()
        print(f"  {self.judge.lateness(fault)}", flush=True)
        logs.since(fault.what)

    async def _level(self) -> None:
        """Wait until all that is due now is acknowledged and delivered."""
        due = self.ledger.due_before(time.monotonic())
        end = time.monotonic() + PATIENCE
        while missing := self.judge.missing(due):
            if time.monotonic() > end:
                self.judge.broken += missing[:10]
                return
            await asyncio.sleep(_POLL)

    async def _check_state(self, receivers: list[Receiver]) -> None:
        called = sum(each.transport == "WebSub" for each in receivers)
        try:
            rows = await self.deployment.subscriptions()
        except TimeoutError:
            self.judge.broken.append("a subscription is behind though all is delivered")
        else:
            if len({row["id"] for row in rows}) != called or len(rows) != called:
                self.judge.broken.append(f"there are {len(rows)} subscriptions, not {called}")
        if difference := await self.deployment.in_step():
            self.judge.broken.append(f"the Destination is not in step: {difference}")

    def _print(self, logs: Logs) -> None:
        judge = self.judge
        for line in judge.returns(self._arguments.return_within):
            print(line)
        for line in judge.report():
            print(line)
        print("logged by the hubs:")
        for line in in_words(logs.sentences.most_common()):
            print(line)
        for line in logs.often:
            print(line)
        for line in judge.broken:
            print(f"broken: {line}")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seed", type=int, default=random.randrange(10**6))
    parser.add_argument("--minutes", type=float, default=3.0, help="how long faults are caused")
    parser.add_argument("--rate", type=float, default=20.0, help="fragments a second")
    parser.add_argument("--kind", action="append", choices=KINDS, help="only such faults")
    parser.add_argument(
        "--return-within",
        type=float,
        default=20.0,
        help="seconds from the election of a leader until publishing has to work",
    )
    parser.add_argument(
        "--upgrade-from",
        nargs="?",
        const="",
        metavar="REVISION",
        help="begin with this revision, the last release by default, upgrade, and go back",
    )
    parser.add_argument("--revision", help="try the hub of another revision than this one")
    parser.add_argument("--scenario", choices=SCENARIOS, help="only what befalls NATS as a whole")
    parser.add_argument("--keep", type=Path, help="a folder to keep everything in")
    arguments = parser.parse_args()
    print(f"seed {arguments.seed}", flush=True)
    with tempfile.TemporaryDirectory(
        prefix="rsnotify-cluster-", ignore_cleanup_errors=True
    ) as name:
        root = arguments.keep or Path(name)
        root.mkdir(parents=True, exist_ok=True)
        if arguments.scenario is None:
            return asyncio.run(_interruptible(Trial(root, arguments).run()))
        broken = asyncio.run(_interruptible(SCENARIOS[arguments.scenario](root)))
        for line in broken:
            print(f"broken: {line}")
        return 1 if broken else 0


async def _interruptible(work: Awaitable[T]) -> T:
    """Return what work returns; end all processes when this one is to end."""
    task = asyncio.ensure_future(work)
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, task.cancel)
    return await task


if __name__ == "__main__":
    sys.exit(main())
