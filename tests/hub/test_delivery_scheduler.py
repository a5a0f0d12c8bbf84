"""Requests in two lanes: whatever some do, the others get their turn."""

from __future__ import annotations

import asyncio

import pytest

from rsnotify_hub.websub.delivery.answers import Answer
from rsnotify_hub.websub.delivery.fair_queue import Capacity
from rsnotify_hub.websub.delivery.scheduler import DeliveryScheduler
from rsnotify_hub.websub.delivery.turn import DeliverySlot
from tests.hub.helpers import PATIENCE

OK = Answer(204, "answers 204")


class Requests:
    """Requests that answer at once, or never."""

    def __init__(self, turns: DeliveryScheduler) -> None:
        self.turns = turns
        self.answers: dict[str, Answer] = {}
        self.under_way = 0
        self.most = 0
        self._changed = asyncio.Event()

    def take(self, name: str, host: str, *, hangs: bool, slow: bool = False) -> DeliverySlot:
        async def request() -> Answer:
            self.under_way += 1
            self.most = max(self.most, self.under_way)
            try:
                if hangs:
                    await asyncio.Event().wait()
                return OK
            finally:
                self.under_way -= 1

        async def work(turn: DeliverySlot) -> None:
            self.answers[name] = await turn.within(request())
            self._changed.set()

        return self.turns.take(host, work, slow=slow)

    async def answer(self, name: str) -> Answer:
        async with asyncio.timeout(PATIENCE):
            while name not in self.answers:
                self._changed.clear()
                await self._changed.wait()
        return self.answers[name]


async def test_a_request_that_takes_too_long_is_ended():
    requests = Requests(DeliveryScheduler(0.01))
    requests.take("slow", "a", hangs=True)
    assert await requests.answer("slow") == Answer(None, "takes too long")


async def test_those_that_hang_make_room_for_others():
    requests = Requests(
        DeliveryScheduler(1000, quick=Capacity(3, 3), slow=Capacity(2, 2), patience=0.02)
    )
    for number in range(9):
        requests.take(f"hangs {number}", f"bad{number}", hangs=True)
    requests.take("good", "good", hangs=False)
    assert await requests.answer("good") == OK
    assert requests.most <= 5
    assert requests.under_way >= 2, "those in the slow lane still have their time"
    cut_off = [answer for name, answer in requests.answers.items() if name != "good"]
    assert set(cut_off) == {Answer(None, "takes too long")}
    await requests.turns.close(0)


async def test_one_host_that_hangs_takes_no_place_of_the_others():
    requests = Requests(
        DeliveryScheduler(1000, quick=Capacity(4, 2), slow=Capacity(2, 2), patience=1000)
    )
    for number in range(100):
        requests.take(f"hangs {number}", "bad", hangs=True)
    for number in range(10):
        requests.take(f"good {number}", "good", hangs=False)
        assert await requests.answer(f"good {number}") == OK
    assert requests.turns.waiting() == 98
    await requests.turns.close(0)


async def test_what_failed_before_takes_no_place_of_what_did_not():
    requests = Requests(
        DeliveryScheduler(1000, quick=Capacity(1, 1), slow=Capacity(1, 1), patience=1000)
    )
    for number in range(10):
        requests.take(f"hangs {number}", f"bad{number}", hangs=True, slow=True)
    requests.take("good", "good", hangs=False)
    assert await requests.answer("good") == OK
    await requests.turns.close(0)


async def test_while_nobody_waits_nobody_is_hurried():
    requests = Requests(
        DeliveryScheduler(1000, quick=Capacity(2, 2), slow=Capacity(1, 1), patience=0)
    )
    requests.take("hangs", "bad", hangs=True)
    requests.take("good", "good", hangs=False)
    await requests.answer("good")
    assert "hangs" not in requests.answers
    await requests.turns.close(0)


async def test_a_turn_that_is_cancelled_leaves_its_place():
    requests = Requests(
        DeliveryScheduler(1000, quick=Capacity(1, 1), slow=Capacity(1, 1), patience=1000)
    )
    first = requests.take("hangs", "bad", hangs=True)
    waits = requests.take("waits", "bad", hangs=False)
    requests.take("good", "good", hangs=False)
    requests.turns.cancel(waits)
    requests.turns.cancel(first)
    assert await requests.answer("good") == OK
    assert set(requests.answers) == {"good"}


async def test_what_is_under_way_may_end_when_all_is_closed():
    turns, gate = DeliveryScheduler(1000), asyncio.Event()
    ended = []

    async def work(turn: DeliverySlot) -> None:
        await gate.wait()
        ended.append(turn.host)

    turns.take("a", work)
    await asyncio.sleep(0)  # it begins
    closing = asyncio.create_task(turns.close(PATIENCE))
    await asyncio.sleep(0)  # it waits
    turns.take("b", work)  # too late
    gate.set()
    await closing
    assert ended == ["a"]


async def test_nobody_is_hurried_because_the_hub_itself_was_slow(monkeypatch: pytest.MonkeyPatch):
    loop = asyncio.get_running_loop()
    now = loop.time()
    monkeypatch.setattr(loop, "time", lambda: now)  # stands still but for what comes
    requests = Requests(
        DeliveryScheduler(1000, quick=Capacity(1, 1), slow=Capacity(1, 0), patience=0.2)
    )
    requests.take("hangs", "bad", hangs=True)
    requests.take("waits", "good", hangs=False)
    await asyncio.sleep(0)  # it begins
    now += 0.5  # past the check that was due
    for _ in range(10):
        await asyncio.sleep(0)
    assert requests.answers == {}
    now += 0.2
    assert await requests.answer("waits") == OK, "the next check is in time"
    assert set(requests.answers) == {"hangs", "waits"}
