"""Many Sources in one process: none gets in another's way, and all stay within bounds."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Sequence
from pathlib import Path

import pytest
from aiohttp import web

from rsnotify.errors import ConfigurationError
from rsnotify_subscriber import Fleet, Limits, PushState, Received
from rsnotify_subscriber.fleet import Phase, totals
from tests.subscriber.fleet.conftest import PATIENCE, Hanging, Many, until, until_level
from tests.subscriber.hub import SmallHub, push


def workers() -> list[str]:
    return [one.name for one in threading.enumerate() if one.name.startswith("rsnotify-worker")]


async def test_all_are_followed_by_a_few_threads(many: Many) -> None:
    fleet = await many.fleet(20, Limits(workers=3))
    async with fleet:
        await until_level(fleet)
        assert many.equal()
        assert 1 <= len(workers()) <= 3
        for source in many.sources.values():
            source.put("r1", b"changed")
            source.delete("r2")
        await until(fleet, lambda all_: totals(all_).applied == 20 * 5)
        assert many.equal()
        sums = totals(fleet.status)
        assert (sums.sources, sums.wrong, sums.resources) == (20, 0, 40)
    assert workers() == []
    assert {one.phase for one in fleet.status.values()} == {Phase.ENDED}


async def test_a_pushed_change_is_applied_only_to_its_source(many: Many, hub: SmallHub) -> None:
    await many.start(3)
    source = many.sources["s1"]
    source.hubs = [hub.url]
    fleet = many.fleet_of_all()
    async with fleet:
        await until_level(fleet)
        await until(fleet, lambda all_: all_["s1"].status.push is PushState.UP)
        assert totals(fleet.status).pushed == 1
        source.put_inline("new", b"pushed")
        await push(source, hub)
        await until(fleet, lambda _: many.equal("s1"))
    assert many.equal()


async def test_a_source_that_is_away_does_not_block_the_others_and_is_followed_later(
    many: Many,
) -> None:
    fleet = await many.fleet(4, Limits(starting=1), "s2")
    async with fleet:
        await until(fleet, lambda all_: sum(one.status.level for one in all_.values()) == 3)
        await until(fleet, lambda all_: all_["s2"].error is not None)
        assert "cannot connect" in (fleet.status["s2"].error or "")
        assert totals(fleet.status).wrong == 1
        await many.sources["s2"].server.start()
        await until_level(fleet, "s2")
        assert fleet.status["s2"].error is None
        assert many.equal()


async def test_a_run_that_fails_is_retried_and_the_others_continue(
    many: Many, caplog: pytest.LogCaptureFixture
) -> None:
    await many.start(2)
    in_the_way = many.folder / "s0.state"
    in_the_way.write_text("a file where a folder has to be")
    fleet = many.fleet_of_all()
    async with fleet:
        await until(fleet, lambda all_: all_["s0"].phase is Phase.FAILED)
        await until_level(fleet, "s1")
        assert str(in_the_way) in (fleet.status["s0"].error or "")
        in_the_way.unlink()
        await until_level(fleet, "s0")
        assert fleet.status["s0"].error is None
        assert many.equal()
    told = [one for one in caplog.records if one.name == "rsnotify.subscriber.fleet"]
    assert [bool(one.exc_info) for one in told] == [False]


async def test_an_error_of_a_handler_is_reported_and_ends_no_source(
    many: Many, caplog: pytest.LogCaptureFixture
) -> None:
    class Faulty:
        def prepare(self, base: str, temporary: Path) -> None:
            raise ValueError("not like this")

        async def apply(self, changes: Sequence[Received]) -> None:
            raise AssertionError("it was never prepared")

    await many.start(2)
    fleet = Fleet()
    many.add(fleet, "s0", Faulty())
    many.add(fleet, "s1")
    async with fleet:
        await until(fleet, lambda all_: all_["s0"].phase is Phase.FAILED)
        assert fleet.status["s0"].error == "ValueError: not like this"
        await until_level(fleet, "s1")
    assert any(one.exc_info for one in caplog.records if one.levelno == logging.WARNING)


async def test_a_handler_that_gives_up_what_it_waits_for_is_called_again(many: Many) -> None:
    applied: list[str] = []

    async def unsteady(change: Received) -> None:
        if not applied:
            applied.append("")
            raise asyncio.CancelledError  # as from a task of its own that was cancelled
        applied.append(change.uri)

    await many.start(1)
    fleet = Fleet()
    many.add(fleet, "s0", unsteady)
    async with fleet:
        await until_level(fleet, "s0")
    assert len(set(applied)) == 4


async def test_only_a_few_begin_at_a_time_and_all_can_be_stopped(many: Many) -> None:
    await many.start(6)
    contacted: set[str] = set()
    enough = asyncio.Event()
    for name, source in many.sources.items():

        async def answer(request: web.Request, name: str = name) -> web.StreamResponse:
            contacted.add(name)
            if len(contacted) == 2:
                enough.set()
            await asyncio.Event().wait()  # it never answers
            raise AssertionError

        source.answers["/data/capabilitylist.xml"] = answer
    fleet = many.fleet_of_all(Limits(starting=2))
    async with asyncio.timeout(PATIENCE), fleet:
        await enough.wait()
        phases = [one.phase for one in fleet.status.values()]
        assert (phases.count(Phase.FOLLOWED), phases.count(Phase.WAITING)) == (2, 4)
        assert len(contacted) == 2
        stopping = asyncio.get_running_loop().time()
    # Neither those that do not answer hold it up, nor those that wait.
    assert asyncio.get_running_loop().time() - stopping < PATIENCE / 2
    assert {one.phase for one in fleet.status.values()} == {Phase.ENDED}


async def test_sources_come_and_go_while_the_others_are_followed(many: Many) -> None:
    await many.start(3)
    fleet = Fleet()
    many.add(fleet, "s0")
    many.add(fleet, "s1")
    async with fleet:
        await until_level(fleet)
        gets, offer = many.sources["s0"].gets, "/data/capabilitylist.xml"
        asked = gets[offer]
        many.add(fleet, "s2")
        await until_level(fleet, "s2")
        await fleet.remove("s1")
        assert set(fleet.status) == {"s0", "s2"}
        many.sources["s1"].put("r0", b"nobody is to see this")
        many.add(fleet, "s1", via="poll")  # its state and its name are free
        await until_level(fleet, "s1")
        assert many.equal()
        assert gets[offer] == asked


async def test_the_end_of_the_fleet_waits_for_removed_sources(many: Many, hanging: Hanging) -> None:
    await many.start(1)
    fleet = Fleet()
    many.add(fleet, "s0", hanging)
    async with fleet:
        await asyncio.to_thread(hanging.called.wait, PATIENCE)
        removing = asyncio.create_task(fleet.remove("s0"))
        await asyncio.sleep(0)
        removing.cancel()
        await asyncio.wait({removing})
        assert "s0" not in fleet
        threading.Timer(0.2, hanging.release.set).start()
    again = Fleet()
    many.add(again, "s0", hanging)  # so its state is free
    async with asyncio.timeout(PATIENCE):
        await again.catch_up()
    assert again.status["s0"].error is None


async def test_a_name_belongs_to_one_source(many: Many) -> None:
    fleet = await many.fleet(1)
    with pytest.raises(ConfigurationError, match="another Source is named"):
        many.add(fleet, "s0")


async def test_catching_up_ends_with_the_errors_of_failed_sources(many: Many) -> None:
    fleet = await many.fleet(3, Limits(starting=1), "s1")
    async with asyncio.timeout(PATIENCE):
        await fleet.catch_up()
    phases = [one.phase for one in fleet.status.values()]
    assert phases == [Phase.ENDED, Phase.FAILED, Phase.ENDED]
    assert "cannot connect" in (fleet.status["s1"].error or "")
    assert fleet.status["s0"].error is None
    assert many.equal("s0", "s2")


async def test_a_fleet_that_is_cancelled_leaves_no_state_locked(many: Many) -> None:
    fleet = await many.fleet(2)
    running = asyncio.create_task(fleet.run())
    await until_level(fleet)
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    assert workers() == []
    again = many.fleet_of_all()
    async with asyncio.timeout(PATIENCE):
        await again.catch_up()
    assert many.equal()


@pytest.mark.parametrize("name", Limits.__struct_fields__)
def test_no_limit_is_less_than_one(name: str) -> None:
    with pytest.raises(ConfigurationError, match=f"{name} must be at least 1"):
        Fleet(Limits(**{name: 0}))
