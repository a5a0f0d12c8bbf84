"""A gateway or a relay in virtual time, between the Source and the Destination."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from rsnotify_gateway import Gateway, OriginSettings
from rsnotify_gateway.config import OriginKind
from rsnotify_publisher import Options
from rsnotify_relay import Relay
from rsnotify_subscriber import FollowOptions
from rsnotify_subscriber.push_options import Via
from tests.harnesses.matrix.source import SITE
from tests.harnesses.matrix.ways import PACE
from tests.harnesses.simulation.loop import Machine

if TYPE_CHECKING:
    from tests.harnesses.matrix.run import Run

_PORT = 8002
_BASE = f"http://127.0.0.1:{_PORT}/"
_OPTIONS = Options(heartbeat=5, refresh=0.5, resource_list_every=60, linger=5, poll=5)


class Between:
    """What is between, if a shape has it; `url` is what the Destination follows."""

    def __init__(self, run: Run) -> None:
        self._run = run
        self._kind = run.shape.through
        self.machine: Machine | None = None
        self.url = f"{_BASE}set/" if self._kind else SITE + run.shape.start

    def start(self) -> None:
        if self._kind:
            self.machine = Machine(self._run.loop, self._kind)
            self._run.network.register(self.machine)
            work = self._gateway if self._kind == "gateway" else self._relay
            self.machine.spawn(work(self.machine))

    async def _gateway(self, machine: Machine) -> None:
        shape = self._run.shape
        origin = OriginSettings(
            name="set",
            type=OriginKind.RESOURCESYNC if shape.offers else OriginKind.SITEMAP,
            url=SITE + shape.start,
            poll=PACE.poll,
            poll_most=2 * PACE.poll,
            compare=PACE.compare if shape.offers else None,
            allow_private_addresses=True,
        )
        gateway = Gateway(
            "between", _BASE, [origin], contact="mailto:me@example.org", options=_OPTIONS
        )
        await self._run.network.serve(machine, _PORT, gateway.application())
        await gateway.run()

    async def _relay(self, machine: Machine) -> None:
        relay = Relay(
            SITE + self._run.shape.start,
            Path("between") / "copy",
            self.url,
            follow=FollowOptions(via=Via.POLL, pace=PACE, allow_private_addresses=True),
            options=_OPTIONS,
        )
        await self._run.network.serve(machine, _PORT, relay.application())
        await relay.run()
