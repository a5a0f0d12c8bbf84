from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from aiohttp import web
from msgspec.structs import replace

from rsnotify.errors import ConfigurationError, DocumentError, NotFound, Unavailable
from rsnotify.model import Document, Link, Resource
from rsnotify.offer import Offer
from rsnotify.writing import write_document
from rsnotify_subscriber.discovery import base_of, discover, rediscover
from rsnotify_subscriber.fetching.fetcher import Fetcher
from rsnotify_subscriber.fetching.sessions import Sessions
from tests.subscriber.source import Answer, SmallSource, body, status


@pytest.fixture
async def fetcher(source: SmallSource, tmp_path: Path) -> AsyncIterator[Fetcher]:
    source.put("a", b"1")
    async with Sessions(source.url) as sessions:
        yield Fetcher(sessions, tmp_path)


def page(text: str, **headers: str) -> Answer:
    async def answer(request: web.Request) -> web.StreamResponse:
        return web.Response(text=text, content_type="text/html", headers=headers)

    return answer


@pytest.mark.parametrize(
    "name",
    [
        "",
        "data/",
        ".well-known/resourcesync",
        "data/capabilitylist.xml",
        "data/changelist.xml",
        "data/resourcelist.xml",
        "data/anything/below.html",
    ],
)
async def test_every_way_in_leads_to_the_same_offer(
    name: str, source: SmallSource, fetcher: Fetcher
) -> None:
    offer = await discover(fetcher, source.site + name)
    assert offer.capability_list == source.url
    assert offer.resource_list == source.base + "resourcelist.xml"
    assert offer.change_list == source.base + "changelist.xml"
    assert base_of(offer) == source.base


async def test_a_well_known_uri_below_the_path_comes_before_that_of_the_host(
    source: SmallSource, fetcher: Fetcher
) -> None:
    here = Document("description", (Resource(source.url, capability="capabilitylist"),))
    source.answers["/data/.well-known/resourcesync"] = body(write_document(here))
    source.answers["/.well-known/resourcesync"] = status(500)
    assert (await discover(fetcher, source.base)).capability_list == source.url


async def test_a_link_header_leads_there(source: SmallSource, fetcher: Fetcher) -> None:
    link = '</data/capabilitylist.xml>; rel="resourcesync"'
    source.answers["/home"] = page("hello", Link=link)
    source.answers["/.well-known/resourcesync"] = status(404)
    assert (await discover(fetcher, source.site + "home")).capability_list == source.url


async def test_a_link_element_leads_there(source: SmallSource, fetcher: Fetcher) -> None:
    source.answers["/home"] = page(
        '<html><head><link rel="resourcesync" href="data/capabilitylist.xml"></head></html>'
    )
    source.answers["/.well-known/resourcesync"] = status(404)
    assert (await discover(fetcher, source.site + "home")).capability_list == source.url


async def test_a_sitemap_of_robots_txt_leads_there(source: SmallSource, fetcher: Fetcher) -> None:
    text = f"User-agent: *\nsitemap: {source.base}resourcelist.xml\n"

    async def robots(request: web.Request) -> web.StreamResponse:
        return web.Response(text=text, content_type="text/plain")

    source.answers["/robots.txt"] = robots
    source.answers["/.well-known/resourcesync"] = status(404)
    assert (await discover(fetcher, source.site)).capability_list == source.url


async def test_a_plain_sitemap_is_a_resource_list(source: SmallSource, fetcher: Fetcher) -> None:
    sitemap = Document(None, (Resource(source.base + "a"),))
    source.answers["/sitemap.xml"] = body(write_document(sitemap))
    uri = source.site + "sitemap.xml"
    assert await discover(fetcher, uri) == Offer(resource_list=uri)


@pytest.mark.parametrize("broken", [status(404), status(500), body(b"<no/>")])
async def test_a_link_up_that_is_broken_does_no_harm(
    broken: Answer, source: SmallSource, fetcher: Fetcher
) -> None:
    source.answers["/data/capabilitylist.xml"] = broken
    uri = source.base + "changelist.xml"
    assert await discover(fetcher, uri) == Offer(change_list=uri)


async def test_a_list_that_its_capability_list_forgot_is_taken_into_the_offer(
    source: SmallSource, fetcher: Fetcher
) -> None:
    listed = source._capability_list()
    without = tuple(one for one in listed.resources if one.capability != "resourcelist")
    source.answers["/data/capabilitylist.xml"] = body(
        write_document(replace(listed, resources=without))
    )
    offer = await discover(fetcher, source.base + "resourcelist.xml")
    assert offer.resource_list == source.base + "resourcelist.xml"
    assert offer.change_list == source.base + "changelist.xml"


async def test_several_sets_of_resources_are_listed_so_that_one_can_be_named(
    source: SmallSource, fetcher: Fetcher
) -> None:
    sets = tuple(
        Resource(f"{source.site}{name}/capabilitylist.xml", capability="capabilitylist")
        for name in ("books", "maps")
    )
    source.answers["/.well-known/resourcesync"] = body(
        write_document(Document("description", sets))
    )
    with pytest.raises(ConfigurationError) as caught:
        await discover(fetcher, source.site)
    assert f"{source.site}books/capabilitylist.xml" in str(caught.value)
    assert f"{source.site}maps/capabilitylist.xml" in str(caught.value)


async def test_a_site_without_resourcesync_is_told_what_was_tried(
    source: SmallSource, fetcher: Fetcher
) -> None:
    source.answers["/.well-known/resourcesync"] = status(404)
    source.answers["/"] = page("<html>hello</html>")
    with pytest.raises(ConfigurationError) as caught:
        await discover(fetcher, source.site)
    assert "/.well-known/resourcesync" in str(caught.value)
    assert "/robots.txt" in str(caught.value)


@pytest.mark.parametrize("path", ["/.well-known/resourcesync", "/robots.txt"])
async def test_a_place_that_is_not_there_just_now_may_lead_somewhere_later(
    path: str, source: SmallSource, fetcher: Fetcher
) -> None:
    source.answers["/.well-known/resourcesync"] = status(404)
    source.answers[path] = status(503)
    with pytest.raises(Unavailable, match=path):
        await discover(fetcher, source.site)


async def test_a_source_that_is_down_is_not_taken_for_one_without_resourcesync(
    source: SmallSource, fetcher: Fetcher
) -> None:
    source.answers["/"] = status(503, headers={"Retry-After": "7"})
    with pytest.raises(Unavailable) as caught:
        await discover(fetcher, source.site)
    assert caught.value.retry_after == 7


@pytest.mark.parametrize(
    ("answer", "error"),
    [(status(404), NotFound), (status(500), Unavailable), (body(b"<urlset"), DocumentError)],
)
async def test_a_capability_list_that_cannot_be_had_is_named(
    answer: Answer, error: type[Exception], source: SmallSource, fetcher: Fetcher
) -> None:
    source.answers["/data/capabilitylist.xml"] = answer
    with pytest.raises(error, match=r"data/capabilitylist\.xml"):
        await discover(fetcher, source.site)


def framework(source: SmallSource, *, entry: bool) -> Document:
    """Describe a Source that tells of its documents, by a link or as the specification has it."""
    topic, hub = source.base + "framework.xml", Link("hub", "wss://hub.example/ws")
    listed = Resource(source.url, capability="capabilitylist")
    if entry:
        channel = Resource(topic, capability="framework-notification", links=(hub,))
        return Document("description", (listed, channel))
    return Document("description", (listed,), links=(Link("monitor-group", topic), hub))


@pytest.mark.parametrize("entry", [False, True])
async def test_where_is_told_of_documents_is_found_in_the_source_description(
    entry: bool, source: SmallSource, fetcher: Fetcher
) -> None:
    described = write_document(framework(source, entry=entry))
    source.answers["/.well-known/resourcesync"] = body(described)
    offer = await discover(fetcher, source.site)
    assert offer.framework == source.base + "framework.xml"
    assert offer.framework_hubs == ("wss://hub.example/ws",)


async def test_it_is_looked_for_above_by_who_wants_to_know(
    source: SmallSource, fetcher: Fetcher
) -> None:
    source.answers["/.well-known/resourcesync"] = body(
        write_document(framework(source, entry=False))
    )
    known = await discover(fetcher, source.url)
    assert known.framework is None
    assert (await rediscover(fetcher, source.url, known)).framework is None
    found = await rediscover(fetcher, source.url, known, framework=True)
    assert found.framework == source.base + "framework.xml"
    assert (await rediscover(fetcher, source.url, found)) == found


@pytest.mark.parametrize("answer", [status(404), status(500), body(b"<urlset"), body(b"<no/>")])
async def test_a_source_description_that_cannot_be_had_changes_nothing(
    answer: Answer, source: SmallSource, fetcher: Fetcher
) -> None:
    known = replace(await discover(fetcher, source.url), framework="http://a/framework.xml")
    source.answers["/.well-known/resourcesync"] = answer
    assert await rediscover(fetcher, source.url, known, framework=True) == known
