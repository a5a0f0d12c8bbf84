"""The channel for notices of the Source's own documents, from the Source to the hub."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from pathlib import Path
from time import monotonic_ns

import aiohttp
import pytest
from msgspec.structs import replace

from rsnotify.format.model import Capability, ChangeType, Document, Link, Rel, Resource
from rsnotify.format.reader import read_document
from rsnotify_publisher import Options, Publisher, SourceDescription, parse_hub
from tests.publisher.helpers import (
    BASE,
    PATIENCE,
    QUICK,
    FakeHub,
    chain_of,
    eventually,
    quick_publisher,
    serving_documents,
    update,
)
from tests.publisher.published import read

TOPIC = BASE + "resourcesync/framework.xml"
DESCRIPTION = BASE + ".well-known/resourcesync"
HUB = "https://hub.example/websub"
CALM = replace(QUICK, resource_list_every=900)
ROTATING = replace(CALM, rotate="10 changes")


def notices_of(hub: FakeHub) -> list[Resource]:
    return [entry for notice in hub.notices for entry in notice.resources]


def documents(hub: FakeHub) -> list[str]:
    return [entry.uri.removeprefix(BASE) for entry in notices_of(hub)]


async def wait_for_notices(hub: FakeHub, *names: str) -> None:
    await hub.until(lambda: set(names) <= set(documents(hub)))


async def wait_until_stored(publisher: Publisher) -> None:
    """Wait until a Publisher has stored that its hub has every notice."""
    (hub,) = publisher.source.hubs

    def is_stored() -> bool:
        with publisher.source.open_journal() as journal:
            return journal.notice_cursor(hub.uri) == journal.last_notice()

    await asyncio.to_thread(eventually, is_stored)


def described(folder: Path, *hubs: str, **options: object) -> Document:
    chosen = replace(Options(), **options)
    return Publisher(folder, BASE, hubs=hubs, options=chosen).source.documents.description()


def links(document: Document | Resource) -> list[tuple[str, str]]:
    return [(link.rel, link.href) for link in document.links]


CHANNEL = [(Rel.MONITOR_GROUP, TOPIC), (Rel.HUB, HUB)]


def test_the_source_description_links_to_the_channel(tmp_path: Path):
    document = described(tmp_path, HUB)
    assert links(document) == CHANNEL
    assert [entry.capability for entry in document.resources] == [Capability.CAPABILITY_LIST]


def test_the_channel_is_listed_among_the_sets_only_if_enabled(tmp_path: Path):
    document = described(tmp_path, HUB, framework_url=True)
    assert links(document) == CHANNEL
    entry = document.resources[-1]
    assert (entry.uri, entry.capability) == (TOPIC, Capability.FRAMEWORK_NOTIFICATION)
    assert entry.links == (Link(Rel.HUB, HUB),)


@pytest.mark.parametrize(
    ("hubs", "framework"),
    [((), True), (("mqtts://broker.example/one/topic",), True), ((HUB,), False)],
)
def test_there_is_no_channel_if_no_hub_supports_it_or_it_is_disabled(
    tmp_path: Path, hubs: tuple[str, ...], framework: bool
):
    document = described(tmp_path, *hubs, framework_url=True, framework=framework)
    assert links(document) == []
    assert len(document.resources) == 1


def test_a_broker_has_a_separate_topic_for_the_channel(tmp_path: Path):
    publisher = Publisher(tmp_path, BASE, hubs=["mqtts://broker.example"])
    channel = publisher.source.documents.framework
    assert channel.hubs[0].startswith("mqtts://broker.example/rsnotify/")
    assert channel.hubs != publisher.source.documents.hubs


def test_each_of_several_sets_has_a_channel(tmp_path: Path):
    names = ("one", "two")
    sets = [Publisher(tmp_path / name, f"{BASE}{name}/", hubs=[HUB]) for name in names]
    document = SourceDescription(BASE, sets).document()
    assert links(document) == []
    for name, entry in zip(names, document.resources, strict=True):
        topic = f"{BASE}{name}/resourcesync/framework.xml"
        assert links(entry) == [(Rel.MONITOR_GROUP, topic), (Rel.HUB, HUB)]


@pytest.mark.parametrize("transport", ["", "websub"])
async def test_a_hub_receives_notices_of_the_first_documents(
    tmp_path: Path, hub: FakeHub, transport: str
):
    async with Publisher(tmp_path, BASE, hubs=[hub.url + transport], options=CALM):
        await wait_for_notices(
            hub, ".well-known/resourcesync", "capabilitylist.xml", "resourcelist.xml"
        )
    for entry in notices_of(hub):
        assert entry.change is ChangeType.CREATED
    kinds = {entry.uri.removeprefix(BASE): entry.capability for entry in notices_of(hub)}
    assert kinds["resourcelist.xml"] == Capability.RESOURCE_LIST
    for notice in hub.notices:
        assert notice.capability == Capability.FRAMEWORK_NOTIFICATION
        assert notice.link(Rel.UP) == DESCRIPTION
    chain_of(hub.notices)


async def test_a_notice_of_a_resource_list_has_its_instant(tmp_path: Path, hub: FakeHub):
    async with quick_publisher(tmp_path, hub.url) as publisher:
        await wait_for_notices(hub, "resourcelist.xml")
        change = await publisher.aupdated(BASE + "a")
        await hub.until(lambda: documents(hub).count("resourcelist.xml") > 1)
    last = [entry for entry in notices_of(hub) if entry.capability == Capability.RESOURCE_LIST][-1]
    assert last.change is ChangeType.UPDATED
    assert last.at >= change.datetime


async def test_a_notice_of_a_closed_change_list_has_its_interval(tmp_path: Path, hub: FakeHub):
    publisher = Publisher(tmp_path, BASE, hubs=[hub.url], options=ROTATING)
    async with publisher:
        for number in range(12):
            await publisher.aupdated(f"{BASE}{number}")
        await wait_for_notices(hub, "changelist.xml", "changelist-archive.xml")
        await hub.has(*(f"{BASE}{number}" for number in range(12)))
    (closed, *_) = [
        entry for entry in notices_of(hub) if entry.capability == Capability.CHANGE_LIST
    ]
    written = read(publisher, closed.uri)
    assert closed.change is ChangeType.CREATED
    assert (closed.from_, closed.until) == (written.from_, written.until)
    reopened = next(entry for entry in notices_of(hub) if entry.uri == BASE + "changelist.xml")
    assert reopened.from_ == closed.until
    assert set(hub.uris()) == {f"{BASE}{number}" for number in range(12)}, "and nothing but that"


async def test_dumps_have_notices(tmp_path: Path, hub: FakeHub):
    options = replace(ROTATING, resource_dump_every=0.2, change_dump=True)
    publisher = Publisher(
        tmp_path, BASE, hubs=[hub.url], options=options, content=lambda uri: uri.encode()
    )
    async with publisher:
        await wait_for_notices(hub, "resourcedump.xml", "changedump.xml")
        for number in range(12):
            await publisher.aupdated(f"{BASE}{number}")
        await hub.until(lambda: documents(hub).count("changedump.xml") > 1)
        await hub.until(lambda: documents(hub).count("resourcedump.xml") > 1)
    dumps = [entry for entry in notices_of(hub) if entry.capability == Capability.RESOURCE_DUMP]
    assert [dump.change for dump in dumps[:2]] == [ChangeType.CREATED, ChangeType.UPDATED]
    # Again if the first Capability List was written before the dumps.
    assert documents(hub).count("capabilitylist.xml") in (1, 2)
    offered = read(publisher, "capabilitylist.xml")
    assert {Capability.RESOURCE_DUMP, Capability.CHANGE_DUMP} <= {
        entry.capability for entry in offered.resources
    }


async def test_unsent_notices_are_sent_by_the_next_run(tmp_path: Path, hub: FakeHub):
    hubs = [hub.url]
    async with Publisher(tmp_path, BASE, hubs=hubs, options=CALM):
        await wait_for_notices(hub, "resourcelist.xml")
    await hub.stop()
    hub.notices.clear()
    away = replace(ROTATING, grace=0)
    async with Publisher(tmp_path, BASE, hubs=hubs, options=away) as publisher:
        await publisher.arecord(map(update, range(12)))
        assert await publisher.await_published(PATIENCE)
    await hub.start()
    async with Publisher(tmp_path, BASE, hubs=hubs, options=CALM):
        await wait_for_notices(hub, "changelist.xml", "changelist-archive.xml")
    chain_of(hub.notices)


async def test_sent_notices_are_not_sent_again_by_the_next_run(tmp_path: Path, hub: FakeHub):
    for _ in range(2):
        async with Publisher(tmp_path, BASE, hubs=[hub.url], options=CALM) as publisher:
            await wait_for_notices(hub, "resourcelist.xml")
            assert await publisher.await_published(PATIENCE)
            with publisher.source.open_journal() as journal:
                last = journal.notices(0)[-1].datetime
            await hub.until(lambda last=last: hub.notices[-1].until == last)
            await wait_until_stored(publisher)
    assert documents(hub).count("capabilitylist.xml") == 1
    assert documents(hub).count(".well-known/resourcesync") == 1


async def test_a_new_hub_changes_the_capability_list_and_causes_a_notice(
    tmp_path: Path, hub: FakeHub
):
    async with Publisher(tmp_path, BASE, hubs=[hub.url], options=CALM) as publisher:
        await wait_for_notices(hub, "resourcelist.xml")
        await wait_until_stored(publisher)
    more = [hub.url, parse_hub("http://127.0.0.1:9/websub")]
    async with Publisher(tmp_path, BASE, hubs=more, options=CALM):
        await hub.until(lambda: documents(hub).count("capabilitylist.xml") == 2)
    assert notices_of(hub)[-1].change is ChangeType.UPDATED


async def test_heartbeats_of_notices_are_rare(tmp_path: Path, hub: FakeHub):
    options = replace(CALM, heartbeat=0.02)
    async with Publisher(
        tmp_path, BASE, hubs=[hub.url], options=options, clock=lambda: monotonic_ns() // 1_000
    ):
        await wait_for_notices(hub, "resourcelist.xml")
        await hub.until(lambda: not hub.notices[-1].resources)
    quiet = next(notice for notice in hub.notices if not notice.resources)
    assert quiet.until - quiet.from_ >= timedelta(seconds=30 * options.heartbeat)
    chain_of(hub.notices)


async def test_the_channel_is_served_and_links_to_its_hubs(tmp_path: Path, hub: FakeHub):
    publisher = Publisher(tmp_path, BASE, hubs=[hub.url], options=CALM)
    async with serving_documents(publisher) as url, aiohttp.ClientSession() as session:
        await wait_for_notices(hub, "resourcelist.xml")
        await publisher.aupdated(BASE + "a")
        async with session.get(f"{url}/{TOPIC.removeprefix(BASE)}") as response:
            document = read_document(await response.read())
            found = response.links
    assert str(found["self"]["url"]) == TOPIC
    assert str(found["hub"]["url"]) in (hub.url + "websub", hub.url.replace("http", "ws") + "ws")
    assert document.capability == Capability.FRAMEWORK_NOTIFICATION
    assert document.link(Rel.SELF) == TOPIC
    for entry in document.resources:
        assert document.from_ < entry.datetime <= document.until


async def test_a_hub_that_refuses_only_notices_still_receives_changes(
    tmp_path: Path, hub: FakeHub, caplog: pytest.LogCaptureFixture
):
    hub.refuse_notices = True
    options = replace(CALM, heartbeat=0.05)
    async with Publisher(tmp_path, BASE, hubs=[hub.url + "websub"], options=options) as publisher:
        await publisher.aupdated(BASE + "a")
        await hub.has(BASE + "a")
        await hub.until(lambda: hub.refused > 2)
    (warning,) = [record for record in caplog.records if record.levelname == "WARNING"]
    assert "notices of new documents wait" in warning.getMessage()
