"""A relay follows one Source and is another, with the provenance of its resources."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from rsnotify.errors import ConfigurationError, StorageError
from rsnotify.format.model import ChangeType, Link, Resource
from rsnotify.selection import Selection
from rsnotify_hub.application import serve
from rsnotify_hub.config.loading import load_configuration
from rsnotify_publisher import Publisher
from rsnotify_relay import Relay
from rsnotify_subscriber import FollowOptions, PushState, Via, audit
from tests.publisher.helpers import FakeHub
from tests.relay.running import OPTIONS, Running, catch_up, files
from tests.subscriber.destination import PACE, PATIENCE
from tests.subscriber.source import SmallSource, body, path_of, sha256, status
from tests.subscriber.websub.desk import open_desk

BOTH_CREATED = [("created", "b.txt"), ("created", "maps/a")]
Start = Callable[..., Awaitable[Running]]


@pytest.fixture(autouse=True)
def some_content(source: SmallSource) -> None:
    source.put("maps/a", b"<a> <b> <c> .", type="text/turtle")
    source.put("b.txt", b"b")


@pytest.fixture
async def relay(source: SmallSource, start: Start, some_content: None) -> Running:
    """A relay of the Source, which is level."""
    relay = await start(source.url)
    await relay.until_level()
    return relay


def told(changes: Sequence[Resource]) -> list[tuple[str, str]]:
    return [(str(one.change), one.uri.partition("/r/")[2]) for one in changes]


async def test_a_destination_of_the_relay_gets_an_equal_copy(
    source: SmallSource, relay: Running, tmp_path: Path
) -> None:
    await catch_up(relay.url, tmp_path / "destination")
    assert files(tmp_path / "destination") == files(relay.folder)
    assert files(tmp_path / "destination")["maps/a"] == b"<a> <b> <c> ."
    source.put("maps/a", b"new")
    source.delete("b.txt")
    source.put("more", b"more")
    await relay.until_equal(source)
    await relay.until_level()
    await catch_up(relay.url, tmp_path / "destination")
    assert files(tmp_path / "destination") == source.contents
    assert (await audit(source.url, relay.folder, pause=0.1)).in_step is True
    assert (await audit(relay.url, tmp_path / "destination", pause=0.1)).in_step is True


async def test_changes_are_published_with_the_type_they_have_for_the_copy(
    source: SmallSource, relay: Running
) -> None:
    source.put("maps/a", b"new", type="text/turtle")
    await relay.until(lambda: files(relay.folder)["maps/a"] == b"new")
    source.delete("maps/a")
    await relay.until(lambda: "maps/a" not in files(relay.folder))
    await relay.until_level()
    changes = told(await relay.published())
    assert sorted(changes[:2]) == BOTH_CREATED
    assert changes[2:] == [("updated", "maps/a"), ("deleted", "maps/a")]


async def test_media_types_and_digests_are_those_of_upstream(
    source: SmallSource, relay: Running
) -> None:
    assert await relay.get("maps/a") == (200, "text/turtle", b"<a> <b> <c> .")
    assert (await relay.get("b.txt"))[:2] == (200, "text/plain")
    entry = next(one for one in await relay.published() if one.uri.endswith("maps/a"))
    assert (entry.type, entry.length) == ("text/turtle", 13)
    assert entry.hash == sha256(b"<a> <b> <c> .")


async def test_the_preferred_representation_is_published(source: SmallSource, start: Start) -> None:
    relay = await start(source.url, prefer="text/turtle")
    await relay.until_level()
    source.answers[path_of("b.ttl")] = body(b"<b> <b> <b> .", "text/turtle")
    link = Link("alternate", source.base + "b.ttl", type="text/turtle")
    source.put("b.txt", b"b in words", type="text/plain", links=(link,))
    await relay.until(lambda: files(relay.folder).get("b.txt") == b"<b> <b> <b> .")
    await relay.until_level()
    assert await relay.get("b.txt") == (200, "text/turtle", b"<b> <b> <b> .")


async def test_only_published_resources_are_served(source: SmallSource, relay: Running) -> None:
    (relay.folder / "stray").write_bytes(b"x")
    assert (await relay.get("stray"))[0] == 404
    assert (await relay.get("..%2Fcopy.rsnotify%2Fstate.sqlite"))[0] == 404


async def test_a_chain_of_relays_keeps_the_link_to_the_original(
    source: SmallSource, start: Start, tmp_path: Path
) -> None:
    first = await start(source.url, "first")
    second = await start(first.url, "second")
    await second.until_equal(source)
    source.put("maps/a", b"new", type="text/turtle")
    await second.until_equal(source)
    await second.until_level()
    one, other = [
        {one.uri.removeprefix(relay.url): one for one in await relay.published()}
        for relay in (first, second)
    ]
    assert one["maps/a"].links == other["maps/a"].links
    (via,) = other["maps/a"].links
    assert (via.rel, via.href) == ("via", source.base + "maps/a")
    assert (via.hash, via.length, via.type) == (sha256(b"new"), 3, "text/turtle")
    assert via.modified == source.described["maps/a"].datetime
    source.delete("maps/a")
    await second.until_equal(source)
    await second.until_level()
    gone = (await second.published())[-1]
    assert (gone.change, gone.links[0].href) == (ChangeType.DELETED, source.base + "maps/a")
    await catch_up(second.url, tmp_path / "destination")
    assert files(tmp_path / "destination") == source.contents


async def test_resources_elsewhere_and_with_names_of_documents_are_relayed_too(
    source: SmallSource, start: Start, tmp_path: Path
) -> None:
    source.answers["/elsewhere"] = body(b"e")
    source.answers[path_of("capabilitylist.xml")] = status(404)
    entry = source.put("resourcesync/x", b"x")
    source.changes.append(
        Resource(source.site + "elsewhere", change=entry.change, datetime=entry.datetime)
    )
    relay = await start(source.base + "changelist.xml")
    await relay.until_level()
    host = source.site.removeprefix("http://")
    for name, content in {"elsewhere": b"e", "data/resourcesync/x": b"x"}.items():
        assert (await relay.get(f"@@http/{host}{name}"))[::2] == (200, content)
    await catch_up(relay.url, tmp_path / "destination")
    assert set(files(tmp_path / "destination").values()) == {b"e", b"x", b"b", b"<a> <b> <c> ."}


async def test_changes_are_pushed_to_the_hub_of_the_relay_with_content_inline(
    source: SmallSource, start: Start, hub: FakeHub
) -> None:
    relay = await start(source.url, hubs=[hub.url])
    await relay.until_level()
    source.put("pushed", b"now")
    await hub.has(relay.url + "pushed")
    told = [entry for fragment in hub.fragments for entry in fragment.resources]
    (entry,) = [entry for entry in told if entry.uri == relay.url + "pushed"]
    assert Link("duplicate", "data:application/octet-stream;base64,bm93") in entry.links


async def test_changes_that_could_not_be_recorded_are_recorded_later(
    source: SmallSource, start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    record, failures = Publisher.arecord, []

    async def fail_at_first(publisher: Publisher, changes: Any) -> Any:
        if len(failures) < 4:
            failures.append(changes)
            raise StorageError("the disk is full")
        return await record(publisher, changes)

    monkeypatch.setattr(Publisher, "arecord", fail_at_first)
    relay = await start(source.url)
    await relay.until_level()
    assert len(failures) == 4
    assert sorted(told(await relay.published())) == BOTH_CREATED


async def test_a_crash_between_mirror_and_record_loses_no_change(
    source: SmallSource, start: Start, relay: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    reached = asyncio.Event()

    async def never(publisher: Publisher, changes: Any) -> Any:
        reached.set()
        await asyncio.Event().wait()

    with monkeypatch.context() as patched:
        patched.setattr(Publisher, "arecord", never)
        source.put("maps/a", b"new")
        source.delete("b.txt")
        async with asyncio.timeout(PATIENCE):
            await reached.wait()
        await relay.kill()
    again = await start(source.url, port=relay.port)
    await again.until_equal(source)
    await again.until_level()
    last = {one.uri.removeprefix(again.url): one.change for one in await again.published()}
    assert last == {"maps/a": ChangeType.UPDATED, "b.txt": ChangeType.DELETED}


async def test_a_restart_publishes_nothing_that_has_not_changed(
    source: SmallSource, start: Start, relay: Running
) -> None:
    before = await relay.published()
    await relay.stop()
    again = await start(source.url, port=relay.port)
    await again.until_level()
    assert await again.published() == before


async def test_the_copy_is_served_and_packed_while_the_source_is_down(
    source: SmallSource, start: Start, relay: Running, caplog: pytest.LogCaptureFixture
) -> None:
    await relay.stop()
    await source.server.stop()
    options = replace(OPTIONS, resource_dump_every=60)
    again = await start(source.url, port=relay.port, options=options)
    async with asyncio.timeout(PATIENCE):
        while (await again.get("resourcedump.xml"))[0] != 200:  # noqa: ASYNC110 - no event
            await asyncio.sleep(0.02)
    assert (await again.get("b.txt"))[2] == source.contents["b.txt"]
    assert not [record for record in caplog.records if record.name == "rsnotify.publisher"]


async def test_a_state_in_the_copy_is_refused_before_anything_is_served(tmp_path: Path) -> None:
    served = asyncio.Event()

    async def serve() -> None:
        served.set()

    copy = tmp_path / "copy"
    relay = Relay("http://127.0.0.1:1/", copy, "http://r.example/", state=copy / "state")
    with pytest.raises(ConfigurationError, match="inside the mirror"):
        async with asyncio.timeout(PATIENCE):
            await relay.run(serve)
    assert not served.is_set()


async def test_a_mirror_that_was_only_followed_is_published_whole(
    source: SmallSource, start: Start, tmp_path: Path
) -> None:
    source.put("gone", b"x")
    await catch_up(source.url, tmp_path / "copy")
    source.delete("gone")
    relay = await start(source.url)
    await relay.until_level()
    assert sorted(told(await relay.published())) == BOTH_CREATED
    assert "gone" not in files(relay.folder)


async def test_resources_that_are_no_longer_selected_are_published_as_deleted(
    source: SmallSource, start: Start
) -> None:
    relay = await start(source.url, selection=Selection(types=("text/turtle",)))
    await relay.until_level()
    assert told(await relay.published()) == [("created", "maps/a")]
    source.put("maps/a", b"<p>", type="text/html")
    await relay.until(lambda: not files(relay.folder))
    await relay.until_level()
    assert told(await relay.published())[1:] == [("deleted", "maps/a")]


async def test_a_relay_does_not_follow_itself(source: SmallSource, tmp_path: Path) -> None:
    itself = Relay(source.url, tmp_path / "copy", source.base)
    with pytest.raises(ConfigurationError, match="cannot follow itself"):
        await itself.run()


async def test_a_typo_in_a_selection_does_not_empty_the_copy() -> None:
    with pytest.raises(ConfigurationError, match="'turtle' is not a media type"):
        FollowOptions(selection=Selection(types=("turtle",)))


# By WebSub, with callbacks at its own server.


async def test_hubs_reach_a_relay_below_its_base_url(
    source: SmallSource, start: Callable[..., Awaitable[Running]], tmp_path: Path
) -> None:
    source.put("a", b"a")
    settings = {"port": 0, "data": str(tmp_path / "hub"), "allow_private_addresses": True}
    rare = replace(PACE, poll=600, poll_with_push=600)
    async with serve(load_configuration(None, **settings)) as hub, open_desk() as desk:
        source.hubs = [hub + "websub"]
        relay = await start(source.url, via=Via.WEBSUB, pace=rare)
        await relay.until(lambda: relay.relay.subscriber.status.push is PushState.UP)
        await relay.until_equal(source)
        await desk.subscriptions_at(hub, 1)
        source.answers["/data/changelist.xml"] = status(503)
        before = source.last
        change = source.put_inline("b", b"pushed")
        fragment = source.fragment([change], before)
        await desk.publish_at(hub, source.base + "channel.xml", fragment, "application/xml")
        await relay.until_equal(source)
        assert (await relay.get("b"))[2] == b"pushed"
