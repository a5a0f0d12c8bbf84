"""Requests in two queues: whatever some callbacks do, the others are served."""

from __future__ import annotations

import asyncio
from typing import Any
from unittest.mock import AsyncMock, Mock

import pytest

from rsnotify.sync.retry import Retry
from rsnotify_hub.websub.callback_requests import Answer
from rsnotify_hub.websub.intent_requests import IntentRequests
from rsnotify_hub.websub.request_scheduler import Capacity, RequestScheduler, RequestSlot
from tests.waiting import PATIENCE, until

OK = Answer(204, "returned 204")
TIMED_OUT = Answer(None, "timed out")


class Requests:
    """Requests that answer at once, or never."""

    def __init__(
        self,
        quick: Capacity = Capacity(1, 1),  # noqa: B008  (it is frozen)
        slow: Capacity = Capacity(1, 1),  # noqa: B008
        *,
        seconds: float = 1000,
        quick_seconds: float = 1000,
    ) -> None:
        self.scheduler = RequestScheduler(
            seconds, quick=quick, slow=slow, quick_seconds=quick_seconds
        )
        self.answers: dict[str, Answer] = {}
        self.running = 0
        self.most = 0
        self._changed = asyncio.Event()

    def submit(self, name: str, host: str, *, hangs: bool, slow: bool = False) -> RequestSlot:
        async def request() -> Answer:
            self.running += 1
            self.most = max(self.most, self.running)
            try:
                if hangs:
                    await asyncio.Event().wait()
                return OK
            finally:
                self.running -= 1

        async def work(slot: RequestSlot) -> None:
            self.answers[name] = await slot.limit(request())
            self._changed.set()

        def start(slot: RequestSlot) -> None:
            self.scheduler.run(slot, work(slot))

        return self.scheduler.submit(host, start, slow=slow)

    async def answer(self, name: str) -> Answer:
        async with asyncio.timeout(PATIENCE):
            while name not in self.answers:
                self._changed.clear()
                await self._changed.wait()
        return self.answers[name]


async def test_a_request_that_takes_too_long_is_ended():
    requests = Requests(seconds=0.01)
    requests.submit("slow", "a", hangs=True)
    assert await requests.answer("slow") == TIMED_OUT


async def test_requests_that_hang_make_room_for_others():
    requests = Requests(Capacity(3, 3), Capacity(2, 2), quick_seconds=0.02)
    for number in range(9):
        requests.submit(f"hangs {number}", f"bad{number}", hangs=True)
    requests.submit("good", "good", hangs=False)
    assert await requests.answer("good") == OK
    assert requests.most <= 5
    assert requests.running >= 2, "requests in the slow queue keep their time limit"
    cut_off = [answer for name, answer in requests.answers.items() if name != "good"]
    assert set(cut_off) == {TIMED_OUT}
    await requests.scheduler.close(0)


async def test_a_host_that_hangs_does_not_use_up_the_capacity_of_others():
    requests = Requests(Capacity(4, 2), Capacity(2, 2))
    for number in range(100):
        requests.submit(f"hangs {number}", "bad", hangs=True)
    for number in range(10):
        requests.submit(f"good {number}", "good", hangs=False)
        assert await requests.answer(f"good {number}") == OK
    assert requests.scheduler.waiting() == 98
    await requests.scheduler.close(0)


async def test_retries_do_not_use_up_the_capacity_of_first_attempts():
    requests = Requests()
    for number in range(10):
        requests.submit(f"hangs {number}", f"bad{number}", hangs=True, slow=True)
    requests.submit("good", "good", hangs=False)
    assert await requests.answer("good") == OK
    assert requests.scheduler.waiting() == 9
    await requests.scheduler.close(0)


async def test_no_request_is_cut_short_while_none_waits():
    requests = Requests(Capacity(2, 2), quick_seconds=0)
    requests.submit("hangs", "bad", hangs=True)
    requests.submit("good", "good", hangs=False)
    await requests.answer("good")
    assert "hangs" not in requests.answers
    await requests.scheduler.close(0)


async def test_a_request_that_is_cancelled_frees_its_capacity():
    requests = Requests()
    first = requests.submit("hangs", "bad", hangs=True)
    waits = requests.submit("waits", "bad", hangs=False)
    requests.submit("good", "good", hangs=False)
    requests.scheduler.cancel(waits)
    requests.scheduler.cancel(first)
    assert await requests.answer("good") == OK
    assert set(requests.answers) == {"good"}


@pytest.mark.parametrize("fault", [None, ValueError("a fault")])
async def test_a_request_that_ends_frees_its_capacity_and_a_fault_is_logged(
    caplog: pytest.LogCaptureFixture, fault: Exception | None
):
    scheduler = RequestScheduler(1000)

    async def work() -> None:
        if fault is not None:
            raise fault

    slot = scheduler.submit("a", lambda slot: scheduler.run(slot, work()))
    await until(lambda: not slot.queue.running())
    assert ("internal error: a request" in caplog.text) is (fault is not None)


async def test_running_requests_may_end_when_the_scheduler_closes():
    scheduler, authorizer = RequestScheduler(1000), asyncio.Event()
    ended = []

    async def work(slot: RequestSlot) -> None:
        await authorizer.wait()
        ended.append(slot.host)

    def start(slot: RequestSlot) -> None:
        scheduler.run(slot, work(slot))

    scheduler.submit("a", start)
    await asyncio.sleep(0)  # it begins
    closing = asyncio.create_task(scheduler.close(PATIENCE))
    await asyncio.sleep(0)  # it waits
    scheduler.submit("b", start)  # too late
    authorizer.set()
    await closing
    assert ended == ["a"]


async def test_only_the_first_attempt_to_verify_uses_the_quick_queue(
    monkeypatch: pytest.MonkeyPatch,
):
    submit, slow = RequestScheduler.submit, []

    def noted(*args: Any, **options: Any) -> RequestSlot:
        slow.append(options["slow"])
        return submit(*args, **options)

    monkeypatch.setattr(RequestScheduler, "submit", noted)
    unreachable = Answer(None, "is unreachable", reached=False)
    requests = Mock(get=AsyncMock(return_value=unreachable))
    intents = IntentRequests(requests, Retry(0.001), 1000)
    assert await intents.get("http://a.example/", limit=0) == unreachable
    assert slow == [False, True, True]
    await intents.close()


async def test_only_a_request_that_has_run_for_long_makes_room_for_others(
    monkeypatch: pytest.MonkeyPatch,
):
    now = 1000.0
    monkeypatch.setattr(asyncio.get_running_loop(), "time", lambda: now)
    requests = Requests(Capacity(2, 2), Capacity(1, 0), quick_seconds=0.25)
    requests.submit("hangs", "a", hangs=True)
    cancelled = requests.submit("cancelled", "b", hangs=True)
    requests.submit("later", "c", hangs=True)
    requests.submit("good", "d", hangs=False)
    await asyncio.sleep(0)  # two begin
    now += 0.125
    requests.scheduler.cancel(cancelled)
    for _ in range(10):
        await asyncio.sleep(0)  # "later" begins
    now += 0.125
    assert await requests.answer("good") == OK
    assert requests.answers == {"hangs": TIMED_OUT, "good": OK}
    await requests.scheduler.close(0)


async def test_each_request_without_a_task_ends_when_its_own_time_is_up(
    monkeypatch: pytest.MonkeyPatch,
):
    loop = asyncio.get_running_loop()
    began = now = loop.time()
    monkeypatch.setattr(loop, "time", lambda: now)  # stands still but for what follows
    scheduler = RequestScheduler(10)
    ended: list[tuple[str, float, str]] = []

    def submit(name: str) -> RequestSlot:
        def done(outcome: object) -> None:
            ended.append((name, now - began, str(outcome)))
            scheduler.release(slot)

        slot = scheduler.submit("a", lambda slot: slot.watch(Mock(), done))
        return slot

    answered = [submit(name) for name in ("a", "b", "c", "d")][1]
    assert answered.is_watched
    answered.complete(ValueError("answered"))
    for _ in range(15):
        now += 1
        if now - began == 2:
            submit("later")
        for _ in range(3):
            await asyncio.sleep(0)
    assert ended == [
        ("b", 0, "answered"),
        *((name, 10, "timed out") for name in ("a", "c", "d")),
        ("later", 12, "timed out"),
    ]
    assert answered.queue.running() == []


@pytest.mark.parametrize(("late", "is_cut"), [(0.125, True), (0.126, False)])
async def test_no_request_is_cut_short_because_the_hub_itself_was_slow(
    monkeypatch: pytest.MonkeyPatch, late: float, is_cut: bool
):
    loop = asyncio.get_running_loop()
    now = 1000.0
    monkeypatch.setattr(loop, "time", lambda: now)  # stands still but for what follows
    requests = Requests(slow=Capacity(1, 0), quick_seconds=0.25)
    requests.submit("hangs", "bad", hangs=True)
    requests.submit("waits", "good", hangs=False)
    await asyncio.sleep(0)  # it begins
    now += 0.25 + late  # past the check that was due
    for _ in range(10):
        await asyncio.sleep(0)
    assert ("hangs" in requests.answers) is is_cut
    now += 0.25
    assert await requests.answer("waits") == OK, "the next check is in time"
    assert set(requests.answers) == {"hangs", "waits"}
