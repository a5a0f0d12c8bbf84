"""`inspect`: the tree of what a Source offers, sound or not."""

from __future__ import annotations

import asyncio
import gzip
import re
from datetime import UTC, datetime, timedelta

import pytest
from aiohttp import web

from rsnotify.errors import ConfigurationError
from rsnotify.format.model import Capability, ChangeType, Document, Link, Rel, Resource
from rsnotify.format.writer import write_document
from rsnotify_validation import inspection as walk
from rsnotify_validation.commands import ASCII_GUIDES, Guides, age, inspection_lines
from rsnotify_validation.inspection import (
    Granularity,
    InspectedDocument,
    NamedLink,
    granularity_of,
    inspect,
)
from tests.subscriber.processes import SECONDS, outcome, running
from tests.subscriber.source import SmallSource, body, page, status

NOW = datetime(2026, 1, 1, 12, tzinfo=UTC)


def below(found: InspectedDocument) -> list[InspectedDocument]:
    """Return every document of a tree, the topmost first."""
    return [found, *(one for part in found.parts for one in below(part))]


def of(found: InspectedDocument, capability: str | None) -> InspectedDocument:
    (one,) = [one for one in below(found) if one.capability == capability]
    return one


def text_of(found: InspectedDocument, now: datetime = NOW) -> str:
    """Return the tree as text, without colors and lines."""
    text = "\n".join(inspection_lines(found, now, Guides()))
    return re.sub(r"\x1b\[[\d;]*m|^[ │├└─]+", "", text, flags=re.MULTILINE)


def offer(source: SmallSource, *entries: Resource) -> None:
    source.publish("capabilitylist.xml", Document(Capability.CAPABILITY_LIST, entries))


@pytest.mark.parametrize("name", ["", "data/", "data/capabilitylist.xml", "data/changelist.xml"])
async def test_whatever_leads_to_a_source_leads_to_its_whole_tree(
    source: SmallSource, name: str
) -> None:
    source.put("a", b"1234")
    source.put("b", b"12")
    source.rotate()
    source.put("b", b"123")
    source.delete("a")
    source.hubs = ["ws://hub.example/ws"]
    source.answers["/data/channel.xml"] = body(b"<urlset/>")
    found = await inspect(source.site + name)
    assert [one.capability for one in below(found)] == [
        "description", "capabilitylist", "resourcelist", "changelist", "changelist-archive",
        "change-notification",
    ]  # fmt: skip
    assert found.uri == source.site + ".well-known/resourcesync"
    resources = of(found, Capability.RESOURCE_LIST)
    assert (resources.entries, resources.listed_bytes, resources.profile) == (1, 3, None)
    changes = of(found, Capability.CHANGE_LIST)
    assert changes.changes == {"updated": 1, "deleted": 1}
    assert (changes.from_, changes.until, changes.profile) == (source.begins, None, "1.1")
    assert changes.granularity is Granularity.MICROSECONDS
    archive = of(found, Capability.CHANGE_LIST_ARCHIVE)
    assert archive.entries == 1
    assert archive.reaches == (source.closed[0].from_, source.begins)
    (hub,) = of(found, Capability.CHANGE_NOTIFICATION).links
    assert (hub.rel, hub.uri) == ("hub", "ws://hub.example/ws")
    assert not any(one.problem or one.warnings for one in below(found))


def test_the_tree_is_drawn_with_what_each_document_has() -> None:
    at = "2026-01-01T12:00:00.000000Z (just now)"
    change_list = InspectedDocument("http://a/2", "changelist", entries=1, from_=NOW, bytes=9)
    hub = (NamedLink("hub", "ws://b/ws"),)
    channel = InspectedDocument("http://a/3", "change-notification", links=hub)
    found = InspectedDocument("http://a/1", "capabilitylist", parts=[change_list, channel])
    for guides, drawn in (
        (Guides(), ("├─ ", "│  ", "└─ ")),
        (ASCII_GUIDES, ("|- ", "|  ", "`- ")),
    ):
        text = re.sub(r"\x1b\[[\d;]*m", "", "\n".join(inspection_lines(found, NOW, guides)))
        branch, trunk, last = drawn
        assert text.splitlines() == [
            "Capability List  http://a/1",
            f"{branch}Change List  http://a/2",
            f"{trunk}    1 change, document of 9 bytes",
            f"{trunk}    from {at}, open",
            f"{last}channel  http://a/3",
            "       hub ws://b/ws",
        ]


async def test_every_set_of_a_source_is_shown_with_what_describes_it_or_the_one_requested(
    source: SmallSource,
) -> None:
    one = Link(Rel.DESCRIBED_BY, "/about-one.html")
    listed = tuple(
        Resource(f"{source.base}{name}.xml", capability=Capability.CAPABILITY_LIST, links=links)
        for name, links in (("one", (one,)), ("two", ()))
    )
    again = (Link(Rel.DESCRIBED_BY, f"{source.site}about-one.html"),)  # in the list as well
    site = Link(Rel.DESCRIBED_BY, "http://site.example/about.html")
    description = Document(Capability.DESCRIPTION, listed, links=(site,))
    source.answers["/.well-known/resourcesync"] = body(write_document(description))
    for name in ("one", "two"):
        uri = f"{source.base}{name}-resources.xml"
        offered = Resource(uri, capability=Capability.RESOURCE_LIST)
        up = Link(Rel.UP, f"{source.site}.well-known/resourcesync")
        links = (up, *again[: name == "one"])
        source.publish(f"{name}.xml", Document(Capability.CAPABILITY_LIST, (offered,), links=links))
        up = Link(Rel.UP, f"{source.base}{name}.xml")
        listing = Document(Capability.RESOURCE_LIST, at=NOW, links=(up,))
        source.publish(f"{name}-resources.xml", listing)
    found = await inspect(source.site)
    assert [one.uri for one in found.parts] == [f"{source.base}one.xml", f"{source.base}two.xml"]
    assert [one.parts[0].uri for one in found.parts] == [
        f"{source.base}one-resources.xml", f"{source.base}two-resources.xml",
    ]  # fmt: skip
    text = text_of(found)
    assert text.count(f"describedby {source.site}about-one.html") == 1
    assert "describedby http://site.example/about.html" in text
    for url in (f"{source.base}two.xml", f"{source.base}two-resources.xml"):
        one_set = await inspect(url)
        assert one_set.uri == found.uri
        assert one_set.parts == found.parts[1:]
        assert (one_set.entries, one_set.unread) == (2, 1)


async def test_what_cannot_be_read_stands_in_the_tree_as_that(source: SmallSource) -> None:
    source.put("a", b"1")
    source.rotate()
    source.answers["/data/resourcelist.xml"] = status(404)
    source.answers["/data/changelist.xml"] = body(write_document(source.change_list())[:-9])
    source.answers["/data/changelist-archive.xml"] = body(
        b'<urlset xmlns="http://www.sitemaps.org/schemas/sitemap/0.9"><url/></urlset>'
    )
    text = text_of(await inspect(source.url))
    assert f"Resource List  {source.base}resourcelist.xml\n! the server says 404" in text
    assert f"Change List  {source.base}changelist.xml\n! it is truncated" in text
    assert "! entry 1: it has no loc (core §7)" in text


async def test_a_document_that_calls_itself_otherwise_is_warned_of(source: SmallSource) -> None:
    source.publish("resourcelist.xml", Document(Capability.CHANGE_LIST, from_=NOW))
    text = text_of(await inspect(source.url))
    assert "! its parent document calls it resourcelist" in text


async def test_two_lists_of_one_capability_are_shown_and_warned_of(source: SmallSource) -> None:
    entries = [Resource(f"{name}.xml", capability=Capability.RESOURCE_LIST) for name in "ab"]
    offer(source, *entries)
    found = await inspect(source.base + "capabilitylist.xml")
    (capability_list,) = [one for one in below(found) if one.warnings]
    assert "a.xml" in capability_list.warnings[0]
    assert "b.xml" in capability_list.warnings[0]
    assert {part.uri.rpartition("/")[2] for part in capability_list.parts} == {"a.xml", "b.xml"}


async def test_a_capability_list_that_the_description_forgets_is_shown(source: SmallSource) -> None:
    source.answers["/.well-known/resourcesync"] = status(404)
    found = await inspect(source.url)
    assert found.problem == "the server says 404"
    assert [one.uri for one in found.parts] == [source.url]


async def test_an_index_is_read_up_to_a_bound_and_says_so(
    source: SmallSource, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(walk, "MAX_PARTS", 2)
    source.per_list = 3
    for n in range(15):
        source.put(f"r{n}", b"1")
    found = await inspect(source.url)
    index = next(one for one in below(found) if one.index)
    assert (index.entries, index.unread) == (5, 3)
    assert [one.entries for one in index.parts] == [3, 3]
    text = text_of(found)
    assert "Resource List Index" in text
    assert "3 documents below not read" in text


async def test_no_more_than_a_number_of_documents_is_read(
    source: SmallSource, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(walk, "MAX_DOCUMENTS", 3)
    found = await inspect(source.url)
    assert len(below(found)) == 3
    assert of(found, Capability.CAPABILITY_LIST).unread == 2


async def test_an_index_that_names_itself_is_read_once(source: SmallSource) -> None:
    itself = Resource(source.base + "resourcelist.xml")
    source.publish("resourcelist.xml", Document(Capability.RESOURCE_LIST, (itself,), index=True))
    found = await inspect(source.base + "resourcelist.xml")
    assert len(below(found)) == 1


async def test_packages_are_counted_and_not_fetched_but_their_manifests_are_read(
    source: SmallSource,
) -> None:
    packages = tuple(
        Resource(
            f"{source.base}part{n}.zip",
            type="application/zip",
            length=4_000_000,
            links=(Link(Rel.CONTENTS, f"manifest{n}.xml"),),
        )
        for n in (1, 2)
    )
    ended = NOW + timedelta(seconds=2)
    document = Document(Capability.RESOURCE_DUMP, packages, at=NOW, completed=ended)
    dump = source.publish("resourcedump.xml", document)
    entry = Resource("http://a/1", length=9, path="/1")
    manifest = Document(Capability.RESOURCE_DUMP_MANIFEST, (entry,), at=NOW)
    source.publish("manifest1.xml", manifest)
    offer(source, Resource(dump, capability=Capability.RESOURCE_DUMP))
    found = await inspect(source.url)
    assert source.gets["/data/part1.zip"] == 0
    dumped = of(found, Capability.RESOURCE_DUMP)
    assert (dumped.entries, dumped.listed_bytes) == (2, 8_000_000)
    parts = [(one.entries, one.problem) for one in dumped.parts]
    assert parts == [(1, None), (None, "the server says 404")]
    text = text_of(found)
    assert "2 packages, 8.0 MB in total" in text
    assert "completed 2026-01-01T12:00:02.000000Z (in 2 seconds)" in text


async def test_changes_with_lastmod_alone_are_of_format_1_0(source: SmallSource) -> None:
    change = Resource("http://a/1", lastmod=NOW, change=ChangeType.CREATED)
    document = Document(Capability.CHANGE_LIST, (change,), from_=NOW, until=NOW)
    changes = source.publish("old.xml", document)
    offer(source, Resource(changes, capability=Capability.CHANGE_LIST))
    found = of(await inspect(source.url), Capability.CHANGE_LIST)
    assert (found.profile, found.granularity) == ("1.0", Granularity.SECONDS)
    text = text_of(found, NOW + timedelta(days=3))
    assert "last change 2026-01-01T12:00:00.000000Z (3 days ago)" in text


@pytest.mark.parametrize("headers", [{}, {"Content-Encoding": "gzip"}])
async def test_compressed_documents_are_read(source: SmallSource, headers: dict[str, str]) -> None:
    document = gzip.compress(write_document(Document(Capability.RESOURCE_LIST, at=NOW)))
    source.answers["/data/resourcelist.xml"] = body(document, headers=headers)
    found = of(await inspect(source.url), Capability.RESOURCE_LIST)
    assert (found.entries, found.problem) == (0, None)
    source.answers["/data/resourcelist.xml"] = body(document[:-9], headers=headers)
    found = of(await inspect(source.url), Capability.RESOURCE_LIST)
    assert found.problem is not None
    assert "its compression is damaged" in found.problem


async def test_the_archive_that_only_a_list_links_to_stands_below_that_list(
    source: SmallSource,
) -> None:
    old = source.publish("old.xml", Document(Capability.RESOURCE_LIST_ARCHIVE))
    links = (Link(Rel.ARCHIVES, "old.xml"),)
    source.publish("resourcelist.xml", Document(Capability.RESOURCE_LIST, at=NOW, links=links))
    found = of(await inspect(source.url), Capability.RESOURCE_LIST)
    assert [one.uri for one in found.parts] == [old]


async def test_a_plain_sitemap_and_a_robots_txt_with_several_are_shown(source: SmallSource) -> None:
    source.answers["/.well-known/resourcesync"] = status(404)
    source.publish("sitemap1.xml", Document(None, (Resource("http://a/1", lastmod=NOW),)))
    robots = f"Sitemap: {source.base}sitemap1.xml\nSitemap: {source.base}sitemap2.xml\n"
    source.answers["/robots.txt"] = page(robots, "text/plain")
    found = await inspect(source.site)
    assert found.uri == source.site + "robots.txt"
    assert [one.entries for one in found.parts] == [1, None]
    assert "Sitemap  " + source.base + "sitemap1.xml\n1 resource" in text_of(found)


async def test_a_capability_nobody_knows_is_shown_by_its_name(source: SmallSource) -> None:
    unknown = source.publish("future.xml", Document("timelist\x9b", (Resource("http://a/1"),)))
    offer(source, Resource(unknown, capability="timelist\x9b"))
    text = text_of(await inspect(source.url))
    assert f"timelist\ufffd  {unknown}\n1 entry" in text


async def test_what_leads_nowhere_cannot_be_inspected(source: SmallSource) -> None:
    source.answers["/.well-known/resourcesync"] = status(404)
    with pytest.raises(ConfigurationError, match="leads to no set of resources"):
        await inspect(source.site)


async def test_a_private_address_that_a_document_names_is_not_dialled(source: SmallSource) -> None:
    elsewhere = f"http://localhost:{source.server.port}/data/changelist.xml"
    offer(source, Resource(elsewhere, capability=Capability.CHANGE_LIST))
    found = of(await inspect(source.url), Capability.CHANGE_LIST)
    assert found.problem is not None
    assert "only the host of the Source's URL may have one" in found.problem
    assert "allow_private_addresses in a program" in found.problem
    found = of(await inspect(source.url, allow_private_addresses=True), Capability.CHANGE_LIST)
    assert found.problem is None


async def test_an_inspection_that_is_stopped_ends_at_once_and_without_a_word(
    source: SmallSource,
) -> None:
    asked = asyncio.Event()

    async def never(request: web.Request) -> web.StreamResponse:
        asked.set()
        await asyncio.Event().wait()
        raise AssertionError

    source.answers["/data/changelist.xml"] = never
    async with running("inspect", source.url) as process:
        async with asyncio.timeout(SECONDS):
            await asked.wait()
        process.terminate()
        assert await outcome(process) == (130, "", "")


@pytest.mark.parametrize(
    ("seconds", "said"),
    [
        (0.4, "just now"), (1, "1 second ago"), (119, "1 minute ago"), (7_200, "2 hours ago"),
        (86_400 * 40, "40 days ago"), (-60, "in 1 minute"),
    ],
)  # fmt: skip
def test_ages_are_told_in_their_largest_unit(seconds: float, said: str) -> None:
    assert age(NOW, NOW + timedelta(seconds=seconds)) == said


@pytest.mark.parametrize(
    ("instant", "granularity"),
    [
        (datetime(2026, 1, 1, tzinfo=UTC), "days"),
        (datetime(2026, 1, 1, 1, tzinfo=UTC), "seconds"),
        (datetime(2026, 1, 1, 1, 1, 1, 5_000, tzinfo=UTC), "milliseconds"),
        (datetime(2026, 1, 1, 1, 1, 1, 5_001, tzinfo=UTC), "microseconds"),
    ],
)
def test_granularity_is_that_of_the_finest_part(instant: datetime, granularity: str) -> None:
    assert granularity_of(instant) == granularity


@pytest.mark.parametrize("entry", [False, True])
async def test_the_channel_on_which_is_told_of_documents_stands_below_the_description(
    entry: bool, source: SmallSource
) -> None:
    topic, hub = source.base + "framework.xml", Link("hub", "wss://hub.example/ws")
    listed = Resource(source.url, capability="capabilitylist")
    channel = Resource(topic, capability="framework-notification", links=(hub,))
    entries = (listed, channel) if entry else (listed,)
    links = (Link("monitor-group", topic), hub)
    described = write_document(Document("description", entries, links=links))
    source.answers["/.well-known/resourcesync"] = body(described)
    found = await inspect(source.site)
    (channel_found,) = [part for part in found.parts if part.uri == topic]
    assert channel_found.capability == Capability.FRAMEWORK_NOTIFICATION
    assert [link.uri for link in channel_found.links] == [hub.href]
    assert found.links == ()


async def test_the_pages_of_a_list_are_looked_at_once(source: SmallSource) -> None:
    for n in range(3):
        link = Link(Rel.NEXT, f"{source.base}page{(n + 1) % 3}.xml")
        entry = Resource(f"{source.base}{n}")
        listed = Document(Capability.RESOURCE_LIST, (entry,), at=NOW, links=(link,))
        source.publish(f"page{n}.xml", listed)
    offer(source, Resource(source.base + "page0.xml", capability=Capability.RESOURCE_LIST))
    found = await inspect(source.url)
    pages = [one for one in below(found) if one.capability == Capability.RESOURCE_LIST]
    assert [one.entries for one in pages] == [1, 1, 1]
    assert len(pages[0].parts) == 2
    assert "leads back to" in text_of(found)
