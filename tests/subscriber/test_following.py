from __future__ import annotations

import logging
import shutil
import threading
from collections.abc import AsyncIterator, Iterator, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web
from msgspec.structs import replace

from rsnotify.errors import ConfigurationError, StorageError, Unavailable
from rsnotify.format.datetimes import MICROSECOND
from rsnotify_subscriber import FolderMirror, PushState, Subscriber, Via, default_state
from tests.subscriber.destination import PATIENCE, Destination
from tests.subscriber.hub import SmallHub, push
from tests.subscriber.source import Answer, SmallSource, body, first, path_of, status

LIST = "/data/changelist.xml"


pytestmark = pytest.mark.usefixtures("some_content")


@pytest.fixture
async def pushed(
    source: SmallSource, hub: SmallHub, destination: Destination, some_content: None
) -> AsyncIterator[Subscriber]:
    source.hubs = [hub.url]
    async with destination.following() as subscriber:
        yield subscriber


def age_ms(source: SmallSource) -> float:
    return (datetime.now(UTC) - source.last) / timedelta(milliseconds=1)


async def test_a_pushed_change_is_applied_without_a_poll(
    source: SmallSource, hub: SmallHub, destination: Destination, pushed: Subscriber
) -> None:
    source.answers[LIST] = status(503)
    source.put("new", b"pushed")
    await push(source, hub)
    await destination.until(lambda: pushed.status.applied == 6)
    lag = pushed.status.lag_ms  # of the last second, if there is any
    assert lag is None or 0 < lag <= age_ms(source)
    assert pushed.status.resources == 6
    assert destination.equals_source()


async def test_pushed_changes_are_applied_while_the_files_of_the_copy_are_compared(
    source: SmallSource,
    hub: SmallHub,
    destination: Destination,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    await destination.catch_up()
    (destination.folder / "r1").write_bytes(b"changed here")
    compared = threading.Event()
    find_files = FolderMirror.find_files

    def find_files_later(mirror: FolderMirror, uris: Sequence[str]) -> Iterator[Any]:
        if threading.current_thread().name.startswith("rsnotify-check"):
            assert compared.wait(PATIENCE)
        return find_files(mirror, uris)

    monkeypatch.setattr(FolderMirror, "find_files", find_files_later)
    source.hubs = [hub.url]
    async with destination.subscriber() as subscriber:
        await destination.until(lambda: subscriber.status.push is PushState.UP)
        source.put("new", b"pushed")
        source.put("r2", b"pushed too")
        await push(source, hub, count=2)
        await destination.until(lambda: subscriber.status.applied == 2)
        assert destination.files()["new"] == b"pushed"
        assert "have not been compared" in str(subscriber.status.doubts)
        compared.set()
        await destination.until(lambda: subscriber.status.level)
        assert destination.equals_source()
        assert (subscriber.status.damaged, subscriber.status.foreign) == (1, 0)


async def test_a_file_that_a_restored_state_lacks_is_no_longer_foreign_once_it_is_fetched(
    source: SmallSource, destination: Destination
) -> None:
    await destination.catch_up()
    state = Path(default_state(destination.folder))
    backup = shutil.copytree(state, destination.folder.parent / "backup")
    source.put("new", b"after the backup")
    await destination.catch_up()
    shutil.rmtree(state)
    backup.rename(state)
    (destination.folder / "stranger").write_bytes(b"of nobody")
    await destination.catch_up()
    assert destination.files()["new"] == b"after the backup"
    reported = destination.current.status
    assert [Path(one).name for one in reported.foreign_files] == ["stranger"]
    assert reported.foreign == 1


@pytest.mark.usefixtures("pushed")
async def test_inline_content_is_used_instead_of_a_get(
    source: SmallSource, hub: SmallHub, destination: Destination
) -> None:
    source.put_inline("new", b"it travels inside")
    await push(source, hub)
    await destination.until_equal()
    assert source.gets[path_of("new")] == 0


@pytest.mark.usefixtures("pushed")
async def test_inline_content_that_does_not_verify_is_fetched(
    source: SmallSource, hub: SmallHub, destination: Destination
) -> None:
    change = source.put("new", b"true")
    lie = source.put_inline("other", b"lies").links  # of the same length
    del source.changes[-1], source.contents["other"]
    source.changes[-1] = replace(change, links=lie)
    await push(source, hub)
    await destination.until_equal()
    assert source.gets[path_of("new")] == 1


@pytest.mark.usefixtures("pushed")
@pytest.mark.parametrize("archived", [0, 3], ids=["Change List", "archive"])
async def test_a_lost_fragment_is_made_up_for_from_the_lists(
    source: SmallSource, hub: SmallHub, destination: Destination, archived: int
) -> None:
    for n in range(archived):
        source.put("lost", b"%d" % n)
        source.put(f"lost{n}", b"x")
        source.rotate()
    source.put("before", b"1")
    source.put("seen", b"2")
    await push(source, hub)
    await destination.until_equal()
    assert not archived or source.gets["/data/changelist-archive.xml"] >= 1


async def test_the_lists_are_polled_while_the_hub_is_down(
    source: SmallSource,
    hub: SmallHub,
    destination: Destination,
    pushed: Subscriber,
    caplog: pytest.LogCaptureFixture,
) -> None:
    await hub.stop()
    await destination.until(lambda: pushed.status.push is PushState.DOWN)
    assert f"polling the lists: {hub.url}: the connection was lost" in caplog.text
    source.put("meanwhile", b"polled")
    await destination.until_equal()
    await hub.server.start()
    await destination.until(lambda: pushed.status.push is PushState.UP)
    source.answers[LIST] = status(503)
    source.put("afterwards", b"pushed")
    await push(source, hub)
    await destination.until_equal()


async def test_a_hub_replays_missed_changes_after_a_reconnection(
    source: SmallSource, hub: SmallHub, destination: Destination
) -> None:
    source.hubs = [hub.url]
    async with destination.following():
        source.put("seen", b"1")
        await push(source, hub)
        await destination.until_equal()
    source.put("missed", b"2")
    await push(source, hub)
    source.answers[LIST] = status(503)
    async with destination.subscriber():
        await destination.until_equal()
    assert hub.subscriptions[-1]["since"] is not None


@pytest.mark.usefixtures("pushed")
@pytest.mark.parametrize(
    "fragment",
    [
        b"<urlset",
        b"<!DOCTYPE urlset []><urlset/>",
        b"<feed xmlns='http://www.w3.org/2005/Atom'/>",
        b"junk",
        b'{"type":"new-in-a-later-version"}',
        b'<urlset xmlns="http://www.sitemaps.org/schemas/sitemap/0.9"><url/></urlset>',
    ],
)
async def test_a_fragment_that_cannot_be_read_leads_to_the_change_list(
    fragment: bytes, source: SmallSource, hub: SmallHub, destination: Destination
) -> None:
    source.put("new", b"1")
    await hub.publish(fragment, source.last, source.last)
    await destination.until_equal()


async def test_a_heartbeat_moves_t_and_t_is_stored(
    source: SmallSource, hub: SmallHub, destination: Destination
) -> None:
    source.hubs = [hub.url]
    async with destination.following() as subscriber:
        until = datetime.now(UTC) + timedelta(seconds=5)  # later than all that lists tell
        await hub.publish(source.fragment([], source.last, until), source.last, until)
        await destination.until(lambda: subscriber.status.through == until)
    async with destination.subscriber(via=Via.POLL) as subscriber:
        await destination.until(lambda: subscriber.status.level)
        assert subscriber.status.through == until


async def test_a_subscriber_can_follow_by_polling_alone_and_connects_to_no_hub(
    source: SmallSource, hub: SmallHub, destination: Destination
) -> None:
    source.hubs = [hub.url]
    async with destination.following(via=Via.POLL):
        source.put("r0", b"updated")
        source.delete("r1")
        source.put("new", b"created")
        await destination.until_equal()
    assert hub.subscriptions == []


async def test_a_failing_get_stops_t_and_no_other_resource(
    source: SmallSource, destination: Destination
) -> None:
    async with destination.following() as subscriber:
        source.put("bad", b"1")
        before_failing = source.last - MICROSECOND
        source.answers[path_of("bad")] = status(500)
        source.put("good", b"2")
        await destination.until(lambda: "good" in destination.files())
        assert subscriber.status.through == before_failing
        assert not subscriber.status.level
    del source.answers[path_of("bad")]
    async with destination.following():
        await destination.until_equal()


async def truncated(request: web.Request) -> web.StreamResponse:
    response = web.StreamResponse(headers={"Content-Length": "13"})
    await response.prepare(request)
    await response.write(b"half of")
    assert request.transport is not None
    request.transport.abort()
    return response


@pytest.mark.parametrize(
    ("times", "answer"), [(2, body(b"wrong content")), (1, truncated)], ids=["wrong", "truncated"]
)
async def test_content_that_does_not_verify_is_requested_again(
    times: int, answer: Answer, source: SmallSource, destination: Destination
) -> None:
    await destination.catch_up()
    source.put("new", b"right content")
    source.answers[path_of("new")] = first(times, answer, source.own)
    await destination.become_equal()
    assert source.gets[path_of("new")] == times + 1


async def test_a_resource_that_is_gone_at_the_get_is_reported_until_a_list_deletes_it(
    source: SmallSource, destination: Destination
) -> None:
    await destination.catch_up()
    source.put("fleeting", b"1")
    del source.contents["fleeting"]
    with pytest.raises(Unavailable, match="fleeting"):
        await destination.catch_up()
    assert destination.equals_source()
    source.contents["fleeting"] = b"1"
    source.delete("fleeting")
    await destination.catch_up()
    assert destination.current.status.level
    assert destination.equals_source()


async def test_a_subscriber_waits_for_a_source_that_is_not_up_yet(
    source: SmallSource, destination: Destination
) -> None:
    await source.server.stop()
    async with destination.subscriber() as subscriber:
        assert not subscriber.status.level
        await source.server.start()
        await destination.until_equal()


@pytest.mark.parametrize("name", ["state", "state/incoming"])
async def test_a_state_that_cannot_be_stored_is_reported_in_one_sentence(
    name: str, destination: Destination, tmp_path: Path
) -> None:
    obstacle = tmp_path / name
    obstacle.parent.mkdir(exist_ok=True)
    obstacle.touch()
    with pytest.raises(StorageError, match=r"state.*: a file with this name already exists$"):
        await destination.catch_up(state=tmp_path / "state")


async def test_a_source_that_does_not_answer_is_reported_plainly(
    source: SmallSource, destination: Destination
) -> None:
    await source.server.stop()
    with pytest.raises(Unavailable, match=r"port .*: connection refused; check the port"):
        await destination.catch_up()


async def test_a_copy_whose_source_is_away_is_reported_as_it_was_left(
    source: SmallSource, destination: Destination
) -> None:
    async with destination.following() as subscriber:
        left = subscriber.status
    await source.server.stop()
    later = destination.subscriber()
    with pytest.raises(Unavailable):
        await later.catch_up()
    assert later.status.resources == left.resources == 5
    assert (later.status.through, later.status.compared) == (left.through, left.compared)
    assert not later.status.level


async def test_a_list_that_stays_away_is_warned_of_once(
    source: SmallSource, destination: Destination, caplog: pytest.LogCaptureFixture
) -> None:
    async with destination.following():
        source.answers[LIST] = status(503)
        await source.requested(LIST, source.gets[LIST] + 4)
    warnings = [each.getMessage() for each in caplog.records if each.levelno >= logging.WARNING]
    assert sum("the Change List could not be used" in each for each in warnings) == 1


async def test_what_a_source_offers_is_read_again_soon_after_that_failed(
    source: SmallSource, destination: Destination
) -> None:
    async with destination.following() as subscriber:
        source.answers["/data/capabilitylist.xml"] = first(1, status(500), source.own)
        source.answers[LIST] = first(1, status(404), source.own)  # so the offer is read
        await destination.until(lambda: "could not be checked" in "".join(subscriber.status.doubts))
        await destination.until(lambda: subscriber.status.level)


@pytest.mark.parametrize("refused_before", [False, True])
async def test_a_hub_that_the_source_offers_since_the_last_run_is_used(
    source: SmallSource, hub: SmallHub, destination: Destination, *, refused_before: bool
) -> None:
    await destination.catch_up()
    if refused_before:
        with pytest.raises(ConfigurationError, match="offers no hub that supports WebSocket"):
            await destination.subscriber(via=Via.WEBSOCKET).run()
    source.hubs = [hub.url]
    async with destination.subscriber(via=Via.WEBSOCKET) as subscriber:
        await destination.until(lambda: subscriber.status.push is PushState.UP)


async def test_a_hub_is_looked_for_once_the_source_is_up(
    source: SmallSource, hub: SmallHub, destination: Destination
) -> None:
    await destination.catch_up()
    source.hubs = [hub.url]
    source.answers["/data/capabilitylist.xml"] = status(503)
    async with destination.subscriber(via=Via.WEBSOCKET) as subscriber:
        await destination.until(lambda: subscriber.status.error is not None)
        del source.answers["/data/capabilitylist.xml"]
        await destination.until(lambda: subscriber.status.push is PushState.UP)
