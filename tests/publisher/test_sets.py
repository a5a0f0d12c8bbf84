"""Several sets of resources in one Source: one Source Description, and no overlaps."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import aiohttp
import pytest
from aiohttp import web
from msgspec.structs import replace

from rsnotify.errors import ConfigurationError
from rsnotify.format.model import Capability, Document
from rsnotify.format.reader import read_document
from rsnotify_publisher import Publisher, SourceDescription, application, routes
from tests.publisher.helpers import PATIENCE, QUICK, FakeHub, serving
from tests.publisher.published import read, uris

HOST = "https://x.example/"
ABOUT = "https://x.example/about"

Make = Callable[..., Publisher]


@pytest.fixture
def make(tmp_path: Path) -> Make:
    def made(name: str, *, base_url: str | None = None, **settings: object) -> Publisher:
        given = {"options": QUICK, "described_by": f"{HOST}about-{name}", **settings}
        return Publisher(tmp_path / name, base_url or f"{HOST}{name}/", **given)

    return made


async def get(url: str) -> Document:
    async with aiohttp.ClientSession() as session, session.get(url) as answer:
        assert answer.status == 200, url
        return read_document(await answer.read())


async def published(source: SourceDescription) -> None:
    for publisher in source.sets:
        assert await publisher.await_published(PATIENCE)


def test_the_source_description_lists_every_capability_list(make: Make):
    source = SourceDescription(HOST, [make("a"), make("b")], described_by=ABOUT)
    document = source.document()
    assert document.capability == Capability.DESCRIPTION
    assert document.link("describedby") == ABOUT
    assert uris(document) == [
        f"{HOST}a/capabilitylist.xml",
        f"{HOST}b/capabilitylist.xml",
    ]
    assert {entry.capability for entry in document.resources} == {Capability.CAPABILITY_LIST}
    assert [entry.links[0].href for entry in document.resources] == [
        f"{HOST}about-a",
        f"{HOST}about-b",
    ]


async def test_one_application_serves_all_sets(make: Make):
    source = SourceDescription(HOST, [make("a"), make("b")])
    async with serving(application(source)) as url:
        await published(source)
        description = await get(f"{url}/.well-known/resourcesync")
        assert description == source.document()
        for name, publisher in zip("ab", source.sets, strict=True):
            await publisher.acreated(f"{HOST}{name}/one")
            offered = await get(f"{url}/{name}/capabilitylist.xml")
            assert offered.link("up") == f"{HOST}.well-known/resourcesync" == source.uri
            assert offered.link("describedby") == f"{HOST}about-{name}"
            assert all(entry.uri.startswith(f"{HOST}{name}/") for entry in offered.resources)
            changes = await get(f"{url}/{name}/channel.xml")
            assert [entry.uri for entry in changes.resources] == [f"{HOST}{name}/one"]


async def test_each_set_has_its_own_channel(make: Make, hub: FakeHub):
    source = SourceDescription(HOST, [make("a", hubs=[hub.url]), make("b", hubs=[hub.url])])
    async with source:
        for publisher in source.sets:
            await publisher.aupdated(publisher.source.base_url + "x")
        await hub.has(f"{HOST}a/x", f"{HOST}b/x")
    for fragment in hub.fragments:
        for entry in fragment.resources:
            assert fragment.link("up") == entry.uri[:-1] + "capabilitylist.xml"


async def test_a_source_below_a_path_is_mounted_there(make: Make):
    base = f"{HOST}data/"
    sets = [make("a", base_url=f"{base}a/"), make("b", base_url=f"{base}deep/b/")]
    source = SourceDescription(base, sets)
    beside = web.Application()
    async with serving(application(source)) as url:
        await published(source)
        assert await get(f"{url}/data/.well-known/resourcesync") == source.document()
        assert (await get(f"{url}/data/deep/b/capabilitylist.xml")).link("up") == source.uri
        # Started by the other application.
        beside.add_routes(routes(source, "/elsewhere/"))
        async with serving(beside) as other:
            assert await get(f"{other}/.well-known/resourcesync") == source.document()
            assert (await get(f"{other}/elsewhere/a/changelist.xml")).resources == ()


def test_a_single_set_has_its_own_source_description(make: Make, tmp_path: Path):
    publisher = make("a")
    with publisher:
        assert publisher.wait_published(PATIENCE)
    up = read(publisher, "capabilitylist.xml").link("up")
    assert up == f"{HOST}a/.well-known/resourcesync"
    description = read(publisher, ".well-known/resourcesync")
    (entry,) = description.resources
    assert entry.links[0].href == description.link("describedby") == f"{HOST}about-a"


def test_the_source_description_can_be_written_for_any_web_server(make: Make, tmp_path: Path):
    sets = [make("a"), make("b")]
    source = SourceDescription(HOST, sets)
    with pytest.raises(ConfigurationError, match="a/ has no documents yet; start it"):
        source.write(tmp_path / "www/.well-known/resourcesync")
    with source:
        assert all(publisher.wait_published(PATIENCE) for publisher in sets)
    source.write(tmp_path / "www/.well-known/resourcesync")
    written = (tmp_path / "www/.well-known/resourcesync").read_bytes()
    assert read_document(written) == source.document()


@pytest.mark.parametrize(
    ("one", "other"),
    [("a/", "a/"), ("a/", "a"), ("a/", "a/b/"), ("a/b/", "a/"), ("", "a/"), ("a%62/", "ab/")],
)
def test_sets_that_overlap_are_refused(make: Make, one: str, other: str):
    sets = [make("one", base_url=HOST + one), make("other", base_url=HOST + other)]
    with pytest.raises(ConfigurationError, match="overlap") as raised:
        SourceDescription(HOST, sets)
    assert "\n" not in str(raised.value)


def test_hosts_are_compared_in_normal_form(make: Make):
    same = ["https://x.example/a/", "https://X.example:443/a/b/"]
    with pytest.raises(ConfigurationError, match="overlap"):
        SourceDescription(HOST, [make(str(at), base_url=url) for at, url in enumerate(same)])


def test_sibling_sets_do_not_overlap(make: Make):
    bases = ["a/", "a-b/", "ab/", "b/a/"]
    sets = [make(str(at), base_url=HOST + base) for at, base in enumerate(bases)]
    assert len(SourceDescription(HOST, sets).document().resources) == 4


@pytest.mark.parametrize("elsewhere", ["https://y.example/a/", "http://x.example/a/"])
def test_a_set_that_is_not_below_the_source_is_refused(make: Make, elsewhere: str):
    with pytest.raises(ConfigurationError, match=r"is not below https://x\.example/"):
        SourceDescription(HOST, [make("a", base_url=elsewhere)])


def test_two_sets_with_one_state_folder_are_refused(tmp_path: Path):
    (tmp_path / "link").symlink_to(tmp_path / "state", target_is_directory=True)
    sets = [Publisher(tmp_path / "state", f"{HOST}a/"), Publisher(tmp_path / "link", f"{HOST}b/")]
    with pytest.raises(ConfigurationError, match="keep their state in"):
        SourceDescription(HOST, sets)


def test_a_running_publisher_is_refused(make: Make):
    publisher = make("a")
    with publisher, pytest.raises(ConfigurationError, match="before you start it"):
        SourceDescription(HOST, [publisher])
    SourceDescription(HOST, [publisher])


def test_all_sets_are_closed_if_one_cannot_start(make: Make, tmp_path: Path):
    (tmp_path / "b").mkdir()
    (tmp_path / "b/journal.sqlite3").write_text("no database")
    sets = [make("a", options=replace(QUICK, grace=0)), make("b")]
    with pytest.raises(Exception, match=r"journal\.sqlite3"):
        SourceDescription(HOST, sets).start()
    # A running one would be refused.
    SourceDescription(HOST, sets)


@pytest.mark.parametrize("about", ["about.html", "https://x.example/a b"])
def test_a_description_with_an_invalid_uri_is_refused(make: Make, about: str):
    with pytest.raises(ConfigurationError, match="absolute URI"):
        SourceDescription(HOST, [make("a")], described_by=about)
    with pytest.raises(ConfigurationError, match="absolute URI"):
        make("b", described_by=about)
