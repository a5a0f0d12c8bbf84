from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import msgspec
import pytest
from aiohttp import web
from msgspec.structs import replace

from rsnotify.errors import ConfigurationError, DocumentError, NotFound, SeveralSets, Unavailable
from rsnotify.format.model import Document, Link, Resource
from rsnotify.format.offer import Offer
from rsnotify.format.writer import write_document
from rsnotify_subscriber.discovery.descriptions import DescriptionReader
from rsnotify_subscriber.discovery.discovery import OfferDiscovery, base_of, discover
from rsnotify_subscriber.fetching.fetcher import Fetcher
from rsnotify_subscriber.fetching.sessions import Sessions
from rsnotify_subscriber.storage.identity import DescriptionMemory
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


@pytest.mark.parametrize("broken", [status(404), body(b"<no/>")])
async def test_a_link_up_that_is_broken_does_no_harm(
    broken: Answer, source: SmallSource, fetcher: Fetcher
) -> None:
    source.answers["/data/capabilitylist.xml"] = broken
    uri = source.base + "changelist.xml"
    assert await discover(fetcher, uri) == Offer(change_list=uri)


async def test_a_link_up_that_cannot_be_followed_just_now_is_waited_for(
    source: SmallSource, fetcher: Fetcher
) -> None:
    source.answers["/data/capabilitylist.xml"] = status(503)
    with pytest.raises(Unavailable, match=r"data/capabilitylist\.xml"):
        await discover(fetcher, source.base + "changelist.xml")


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


@pytest.mark.parametrize("code", [401, 403, 405, 500])
@pytest.mark.parametrize("site", ["", "data/"])
async def test_a_well_known_uri_is_tried_whatever_the_site_itself_answers(
    code: int, site: str, source: SmallSource, fetcher: Fetcher
) -> None:
    if code == 500:  # a folder that fails may have its own
        source.answers[f"/{site}.well-known/resourcesync"] = described(source.url)
    source.answers["/" + site] = status(code)
    assert (await discover(fetcher, source.site + site)).capability_list == source.url


async def test_a_well_known_uri_is_tried_where_the_site_comes_in_a_strange_encoding(
    source: SmallSource, fetcher: Fetcher
) -> None:
    source.answers["/"] = page("?", **{"Content-Encoding": "br"})
    assert (await discover(fetcher, source.site)).capability_list == source.url


async def test_a_well_known_uri_is_tried_where_the_site_redirects_without_end(
    source: SmallSource, fetcher: Fetcher
) -> None:
    source.answers["/"] = redirected(302, source.site)
    assert (await discover(fetcher, source.site)).capability_list == source.url


async def test_a_folder_that_fails_is_not_taken_for_what_its_host_describes(
    source: SmallSource, fetcher: Fetcher
) -> None:
    source.answers["/maps/"] = status(500)
    with pytest.raises(Unavailable, match="says 500"):
        await discover(fetcher, source.site + "maps/")


async def test_a_document_that_is_refused_is_not_looked_for_elsewhere(
    source: SmallSource, fetcher: Fetcher
) -> None:
    source.answers["/maps/capabilitylist.xml"] = status(403)
    with pytest.raises(Unavailable, match=r"maps/capabilitylist\.xml: the server says 403"):
        await discover(fetcher, source.site + "maps/capabilitylist.xml")


async def test_a_site_that_refuses_and_describes_nothing_is_told_with_all_that_was_tried(
    source: SmallSource, fetcher: Fetcher
) -> None:
    source.answers["/.well-known/resourcesync"] = status(404)
    source.answers["/"] = status(403)
    with pytest.raises(Unavailable, match=r"403.*well-known/resourcesync.*404.*robots\.txt"):
        await discover(fetcher, source.site)


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


async def test_it_is_found_from_a_capability_list_too(
    source: SmallSource, fetcher: Fetcher
) -> None:
    source.answers["/.well-known/resourcesync"] = body(
        write_document(framework(source, entry=False))
    )
    offers = OfferDiscovery(DescriptionReader(fetcher), source.url)
    found = await offers.find()
    assert found.framework == source.base + "framework.xml"
    assert await offers.revalidate(found) == found


@pytest.mark.parametrize("answer", [status(404), status(500), body(b"<urlset"), body(b"<no/>")])
async def test_a_source_description_that_never_listed_the_set_may_be_missing(
    answer: Answer, source: SmallSource, fetcher: Fetcher
) -> None:
    source.answers["/.well-known/resourcesync"] = answer
    offers = OfferDiscovery(DescriptionReader(fetcher), source.url)
    known = replace(await offers.find(), framework="http://a/framework.xml")
    assert await offers.revalidate(known) == known


@pytest.mark.parametrize("answer", [status(500), body(b"<urlset")])
async def test_a_source_description_that_listed_the_set_and_cannot_be_read_leaves_the_offer_open(
    answer: Answer, source: SmallSource, fetcher: Fetcher
) -> None:
    offers = OfferDiscovery(DescriptionReader(fetcher), source.url)
    known = await offers.find()
    assert known.listed
    source.answers["/.well-known/resourcesync"] = answer
    with pytest.raises((Unavailable, DocumentError), match="well-known"):
        await offers.revalidate(known)


def described(*uris: str) -> Answer:
    """Answer with a Source Description of these Capability Lists."""
    listed = tuple(Resource(uri, capability="capabilitylist") for uri in uris)
    return body(write_document(Document("description", listed)))


def elsewhere(source: SmallSource) -> str:
    """Offer the same set by another Capability List, and leave the first one where it is."""
    source.answers["/data/second.xml"] = body(write_document(source._capability_list()))
    return source.base + "second.xml"


async def test_a_set_that_its_source_description_lists_elsewhere_is_followed_there(
    source: SmallSource, fetcher: Fetcher
) -> None:
    offers = OfferDiscovery(DescriptionReader(fetcher), source.site)
    known = await offers.find()
    second = elsewhere(source)
    source.answers["/.well-known/resourcesync"] = described(second)
    assert (await offers.revalidate(known)).capability_list == second


async def test_of_several_other_sets_the_user_has_to_name_one(
    source: SmallSource, fetcher: Fetcher
) -> None:
    offers = OfferDiscovery(DescriptionReader(fetcher), source.site)
    known = await offers.find()
    second = elsewhere(source)
    source.answers["/.well-known/resourcesync"] = described(source.url, second)
    assert (await offers.revalidate(known)).capability_list == source.url
    source.answers["/.well-known/resourcesync"] = described(second, source.base + "third.xml")
    with pytest.raises(SeveralSets, match=r"third\.xml"):
        await offers.revalidate(known)


async def test_a_set_that_was_never_listed_is_not_taken_for_the_one_that_is(
    source: SmallSource, fetcher: Fetcher
) -> None:
    source.answers["/.well-known/resourcesync"] = described(elsewhere(source))
    offers = OfferDiscovery(DescriptionReader(fetcher), source.url)
    known = await offers.find()
    assert known.capability_list == source.url
    assert await offers.revalidate(known) == known


async def test_the_list_that_the_user_named_stays_offered(
    source: SmallSource, fetcher: Fetcher
) -> None:
    listed = source._capability_list()
    without = tuple(one for one in listed.resources if one.capability != "resourcelist")
    source.answers["/data/capabilitylist.xml"] = body(
        write_document(replace(listed, resources=without))
    )
    offers = OfferDiscovery(DescriptionReader(fetcher), source.base + "resourcelist.xml")
    known = await offers.find()
    assert (await offers.revalidate(known)).resource_list == source.base + "resourcelist.xml"


async def test_a_capability_list_that_offers_a_list_of_another_set_is_not_followed(
    source: SmallSource, fetcher: Fetcher
) -> None:
    other = Document("changelist", (Resource(source.site + "other/a"),))
    up = (Link("up", source.url),)
    source.answers["/other/changelist.xml"] = body(write_document(replace(other, links=up)))
    with pytest.raises(ConfigurationError, match=r"lists .*data/changelist\.xml instead"):
        await discover(fetcher, source.site + "other/changelist.xml")


def redirected(code: int, uri: str) -> Answer:
    return status(code, headers={"Location": uri})


@pytest.mark.parametrize(("code", "moves"), [(301, True), (308, True), (302, False), (307, False)])
async def test_a_capability_list_that_moved_for_good_is_read_where_it_is_then(
    code: int, moves: bool, source: SmallSource, fetcher: Fetcher
) -> None:
    offers = OfferDiscovery(DescriptionReader(fetcher), source.url)
    known = await offers.find()
    second = elsewhere(source)
    source.answers["/data/capabilitylist.xml"] = redirected(code, second)
    now = await offers.revalidate(known)
    assert now.capability_list == (second if moves else source.url)
    assert now.listed  # by its old URI
    source.answers["/data/capabilitylist.xml"] = redirected(301, source.base + "nowhere")
    if moves:
        assert await offers.revalidate(now) == now
    else:
        with pytest.raises(NotFound):
            await offers.revalidate(now)


async def test_a_url_and_a_source_description_that_moved_for_good_are_not_needed_any_more(
    source: SmallSource, fetcher: Fetcher
) -> None:
    source.answers["/old/description"] = redirected(301, source.site + ".well-known/resourcesync")
    descriptions = DescriptionReader(fetcher)
    offers = OfferDiscovery(descriptions, source.site + "old/description")
    known = await offers.find()
    source.answers["/old/description"] = status(410)
    assert await offers.revalidate(known) == known
    source.answers["/data/capabilitylist.xml"] = status(404)
    second = elsewhere(source)
    source.answers["/.well-known/resourcesync"] = described(second)
    later = OfferDiscovery(
        DescriptionReader(fetcher, descriptions.memory), source.site + "old/description"
    )
    assert (await later.revalidate(known)).capability_list == second


async def test_a_permanent_redirect_to_a_page_is_no_move(
    source: SmallSource, fetcher: Fetcher
) -> None:
    offers = OfferDiscovery(DescriptionReader(fetcher), source.url)
    known = await offers.find()
    source.answers["/login"] = page("<html>log in</html>")
    source.answers["/data/capabilitylist.xml"] = redirected(301, source.site + "login")
    with pytest.raises(DocumentError):
        await offers.revalidate(known)
    del source.answers["/data/capabilitylist.xml"]
    assert await offers.revalidate(known) == known


async def test_relative_references_begin_where_a_redirect_led(
    source: SmallSource, fetcher: Fetcher
) -> None:
    listed = Resource("changelist.xml", capability="changelist")
    source.answers["/deep/list.xml"] = body(write_document(Document("capabilitylist", (listed,))))
    source.answers["/short"] = redirected(302, source.site + "deep/list.xml")
    offer = await discover(fetcher, source.site + "short")
    assert offer.change_list == source.site + "deep/changelist.xml"
    assert offer.capability_list == source.site + "short"


async def test_an_unchanged_offer_costs_two_conditional_requests_in_a_later_run(
    source: SmallSource, tmp_path: Path
) -> None:
    asked: list[str | None] = []

    def tagged(answer: Answer) -> Answer:
        async def reply(request: web.Request) -> web.StreamResponse:
            asked.append(request.headers.get("If-None-Match"))
            if request.headers.get("If-None-Match") == '"1"':
                return web.Response(status=304, headers={"ETag": '"1"'})
            response = await answer(request)
            response.headers.update(
                {"ETag": '"1"', "Last-Modified": "Mon, 05 Jan 2026 00:00:00 GMT"}
            )
            return response

        return reply

    source.answers["/data/capabilitylist.xml"] = tagged(source.own)
    source.answers["/.well-known/resourcesync"] = tagged(source.own)
    async with Sessions(source.url) as sessions:
        first = OfferDiscovery(DescriptionReader(Fetcher(sessions, tmp_path)), source.site)
        known = await first.find()
        source.gets.clear()
        asked.clear()
        memory = msgspec.json.decode(msgspec.json.encode(first.memory), type=DescriptionMemory)
        later = OfferDiscovery(DescriptionReader(Fetcher(sessions, tmp_path), memory), source.site)
        assert await later.revalidate(known) == known
    assert asked == ['"1"', '"1"']
    assert source.gets.total() == 2


async def test_a_copy_in_a_cache_that_is_older_than_what_was_seen_is_refused(
    source: SmallSource, fetcher: Fetcher
) -> None:
    offers = OfferDiscovery(DescriptionReader(fetcher), source.url)
    known = await offers.find()
    old = replace(source._capability_list(), resources=())
    headers = {"Age": "4000", "Date": "Mon, 05 Jan 2026 00:00:00 GMT"}
    source.answers["/data/capabilitylist.xml"] = body(write_document(old), headers=headers)
    with pytest.raises(Unavailable, match="a cache answers with a copy of 2026-01-05"):
        await offers.revalidate(known)


async def test_a_capability_list_that_is_gone_is_requested_once_in_a_search(
    source: SmallSource, fetcher: Fetcher
) -> None:
    known = await discover(fetcher, source.url)
    for path in ("/data/capabilitylist.xml", "/.well-known/resourcesync"):
        source.answers[path] = status(404)
    source.gets.clear()
    with pytest.raises(ConfigurationError):
        await OfferDiscovery(DescriptionReader(fetcher), source.url).revalidate(known)
    assert source.gets["/data/capabilitylist.xml"] == 1
