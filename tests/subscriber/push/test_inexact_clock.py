"""`PushSubscription` on an event loop that is not exact, as none is."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from random import Random
from typing import Any

import pytest

from rsnotify.errors import Unavailable
from rsnotify.format.datetimes import Instant
from rsnotify_subscriber.push.endpoints import Endpoint
from rsnotify_subscriber.push.push_subscription import PushSubscription
from rsnotify_subscriber.push.transport import TransportListener
from rsnotify_subscriber.terms import Via
from tests.subscriber.push.virtual import VirtualLoop

#: What passes between two looks at the clock, in seconds.
STEP = 2.0**-10


class InexactLoop(VirtualLoop):
    """Time goes on while one works, and timers fire a little early, as in whole milliseconds."""

    def __init__(self, early: float) -> None:
        super().__init__()
        self._early = early

    def time(self) -> float:
        self._passed += STEP
        return super().time()

    def call_at(self, when: float, callback: Callable[..., Any], *args: Any, **context: Any) -> Any:
        return super().call_at(when - self._early, callback, *args, **context)


class Away:
    """A hub that is away for some tries, and listens to who hears of them."""

    def __init__(self, tries: int) -> None:
        self.tries = tries
        self.is_up = asyncio.Event()

    async def receive(self, since: Instant | None, listener: TransportListener) -> None:
        self.tries -= 1
        if self.tries < 0:
            self.is_up.set()
            listener.up()
            await asyncio.Event().wait()
        raise Unavailable("hub", "it is away")


class Nobody:
    """Hears, and does nothing."""

    def up(self, hub: str | None = None) -> None: ...
    def down(self) -> None: ...
    def gap(self) -> None: ...
    def ended(self) -> None: ...
    def audience(self, listeners: int) -> None: ...
    def fragment(self, document: bytes) -> Instant | None: ...


@pytest.mark.parametrize("steps", range(16))
def test_a_lost_hub_is_tried_again_however_early_a_timer_fires(steps: int) -> None:
    async def live() -> None:
        hub = Away(10)
        way = Endpoint(Via.WEBSOCKET, "topic", ("hub",), lambda _: hub)
        keeping = asyncio.create_task(
            PushSubscription([way], Nobody(), lambda: None, Random(steps)).run()
        )
        await asyncio.wait_for(hub.is_up.wait(), 600)
        keeping.cancel()
        await asyncio.wait({keeping})

    with asyncio.Runner(loop_factory=lambda: InexactLoop(steps * STEP / 2)) as runner:
        runner.run(live())
