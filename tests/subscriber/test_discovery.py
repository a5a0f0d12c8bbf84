from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from msgspec.structs import replace

from rsnotify.errors import ConfigurationError, DocumentError, NotFound, SeveralSets, Unavailable
from rsnotify.format.model import Document, Link, Resource
from rsnotify.format.offer import Offer
from rsnotify.format.writer import write_document
from rsnotify_subscriber.discovery.descriptions import DescriptionReader
from rsnotify_subscriber.discovery.discovery import (
    OfferDiscovery,
    base_of,
    discover,
    find_top_document,
)
from rsnotify_subscriber.fetching.fetcher import Fetcher
from rsnotify_subscriber.fetching.sessions import Sessions
from tests.subscriber.source import Answer, SmallSource, body, page, redirect, status

WELL_KNOWN = "/.well-known/resourcesync"


@pytest.fixture
async def fetcher(source: SmallSource, tmp_path: Path) -> AsyncIterator[Fetcher]:
    source.put("a", b"1")
    async with Sessions(source.url) as sessions:
        yield Fetcher(sessions, tmp_path)


@pytest.fixture
def offers(source: SmallSource, fetcher: Fetcher) -> OfferDiscovery:
    """Discover from the Capability List."""
    return OfferDiscovery(DescriptionReader(fetcher), source.url)


@pytest.fixture
def offers_of_site(source: SmallSource, fetcher: Fetcher) -> OfferDiscovery:
    return OfferDiscovery(DescriptionReader(fetcher), source.site)


@pytest.mark.parametrize(
    "name",
    [
        "", "data/", ".well-known/resourcesync", "data/capabilitylist.xml", "data/changelist.xml",
        "data/resourcelist.xml", "data/anything/below.html",
    ],
)  # fmt: skip
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
    source.describe(source.url, below="data/")
    source.answers[WELL_KNOWN] = status(500)
    assert (await discover(fetcher, source.base)).capability_list == source.url


LINK = '<html><head><link rel="resourcesync" href="data/capabilitylist.xml"></head></html>'


@pytest.mark.parametrize(
    ("path", "answer"),
    [
        ("", page("hello", headers={"Link": '</data/capabilitylist.xml>; rel="resourcesync"'})),
        ("", page(LINK)),
        ("robots.txt", page("User-agent: *\nsitemap: /data/resourcelist.xml\n", "text/plain")),
    ],
    ids=["Link header", "link element", "sitemap of robots.txt"],
)
async def test_a_page_of_the_site_leads_there(
    path: str, answer: Answer, source: SmallSource, fetcher: Fetcher
) -> None:
    source.answers["/" + path] = answer
    source.answers[WELL_KNOWN] = status(404)
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


async def test_a_list_that_its_capability_list_forgot_is_taken_into_the_offer_and_stays_there(
    source: SmallSource, fetcher: Fetcher
) -> None:
    listed, named = source.capability_list(), source.base + "resourcelist.xml"
    without = tuple(one for one in listed.resources if one.capability != "resourcelist")
    source.publish("capabilitylist.xml", replace(listed, resources=without))
    offers = OfferDiscovery(DescriptionReader(fetcher), named)
    offer = await offers.find()
    assert offer.resource_list == named
    assert offer.change_list == source.base + "changelist.xml"
    assert (await offers.revalidate(offer)).resource_list == named


async def test_several_sets_of_resources_are_listed_so_that_one_can_be_named(
    source: SmallSource, fetcher: Fetcher
) -> None:
    sets = [f"{source.site}{name}/capabilitylist.xml" for name in ("books", "maps")]
    source.describe(*sets)
    with pytest.raises(ConfigurationError) as caught:
        await discover(fetcher, source.site)
    assert all(f"\n  {uri}" in str(caught.value) for uri in sets)
    assert "use the URL of one of them instead" in str(caught.value)
    assert await find_top_document(fetcher, source.site) == source.site + WELL_KNOWN[1:]


async def test_a_site_without_resourcesync_is_told_what_was_tried(
    source: SmallSource, fetcher: Fetcher
) -> None:
    source.answers[WELL_KNOWN] = status(404)
    source.answers["/"] = page("<html>hello</html>")
    with pytest.raises(ConfigurationError) as caught:
        await discover(fetcher, source.site)
    assert WELL_KNOWN in str(caught.value)
    assert "/robots.txt" in str(caught.value)


@pytest.mark.parametrize("path", ["/.well-known/resourcesync", "/robots.txt"])
async def test_a_place_that_is_not_there_just_now_may_lead_somewhere_later(
    path: str, source: SmallSource, fetcher: Fetcher
) -> None:
    source.answers[WELL_KNOWN] = status(404)
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


@pytest.mark.parametrize("site", ["", "data/"])
@pytest.mark.parametrize(
    ("answer", "is_described"),
    [
        (status(401), False),
        (status(403), False),
        (status(405), False),
        (status(500), True),  # a folder that fails may have a description of its own
        (page("?", headers={"Content-Encoding": "br"}), False),
        (lambda request: redirect(request.path)(request), False),
    ],
    ids=["401", "403", "405", "500", "strange encoding", "redirects without end"],
)
async def test_a_well_known_uri_is_tried_whatever_the_site_itself_answers(
    answer: Answer, is_described: bool, site: str, source: SmallSource, fetcher: Fetcher
) -> None:
    if is_described:
        source.describe(source.url, below=site)
    source.answers["/" + site] = answer
    assert (await discover(fetcher, source.site + site)).capability_list == source.url


@pytest.mark.parametrize(
    ("name", "answers", "told"),
    [
        ("maps/", {"/maps/": status(500)}, "says 500"),  # its host describes other folders
        (
            "maps/capabilitylist.xml",
            {"/maps/capabilitylist.xml": status(403)},
            r"maps/capabilitylist\.xml: the server says 403",
        ),
        (
            "",
            {WELL_KNOWN: status(404), "/": status(403)},
            r"403.*well-known/resourcesync.*404.*robots\.txt",  # all that was tried
        ),
        ("data/changelist.xml", {"/data/capabilitylist.xml": status(503)}, r"capabilitylist\.xml"),
    ],
    ids=["a folder that fails", "a refused document", "a refusing site", "a link up"],
)
async def test_what_cannot_be_had_just_now_is_not_looked_for_elsewhere(
    name: str, answers: dict[str, Answer], told: str, source: SmallSource, fetcher: Fetcher
) -> None:
    source.answers |= answers
    with pytest.raises(Unavailable, match=told):
        await discover(fetcher, source.site + name)


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


@pytest.mark.parametrize("listed", [False, True], ids=["by links", "by an entry"])
async def test_the_channel_of_documents_is_found_in_the_source_description(
    listed: bool, source: SmallSource, fetcher: Fetcher
) -> None:
    topic, hub = source.base + "framework.xml", Link("hub", "wss://hub.example/ws")
    if listed:
        channel = Resource(topic, capability="framework-notification", links=(hub,))
        entries = (Resource(source.url, capability="capabilitylist"), channel)
        described = Document("description", entries)
        source.answers[WELL_KNOWN] = body(write_document(described))
    else:
        source.describe(source.url, links=(Link("monitor-group", topic), hub))
    offer = await discover(fetcher, source.site)
    assert offer.framework == topic
    assert offer.framework_hubs == ("wss://hub.example/ws",)


async def test_it_is_found_from_a_capability_list_too(
    source: SmallSource, offers: OfferDiscovery
) -> None:
    topic = source.base + "framework.xml"
    source.describe(source.url, links=[Link("monitor-group", topic), Link("hub", "ws://a/")])
    found = await offers.find()
    assert found.framework == topic
    assert await offers.revalidate(found) == found


@pytest.mark.parametrize("answer", [status(404), status(500), body(b"<urlset"), body(b"<no/>")])
async def test_a_source_description_that_never_listed_the_set_may_be_missing(
    answer: Answer, source: SmallSource, offers: OfferDiscovery
) -> None:
    source.answers[WELL_KNOWN] = answer
    known = replace(await offers.find(), framework="http://a/framework.xml")
    assert await offers.revalidate(known) == known


@pytest.mark.parametrize("answer", [status(500), body(b"<urlset")])
async def test_a_source_description_that_listed_the_set_and_cannot_be_read_leaves_the_offer_open(
    answer: Answer, source: SmallSource, offers: OfferDiscovery
) -> None:
    known = await offers.find()
    assert known.listed
    source.answers[WELL_KNOWN] = answer
    with pytest.raises((Unavailable, DocumentError), match="well-known"):
        await offers.revalidate(known)


def elsewhere(source: SmallSource) -> str:
    """Offer the same set by another Capability List, and leave the first one where it is."""
    return source.publish("second.xml", source.capability_list())


async def test_a_set_that_its_source_description_lists_elsewhere_is_followed_there(
    source: SmallSource, offers_of_site: OfferDiscovery
) -> None:
    known = await offers_of_site.find()
    second = elsewhere(source)
    source.describe(second)
    assert (await offers_of_site.revalidate(known)).capability_list == second


async def test_of_several_other_sets_the_user_has_to_name_one(
    source: SmallSource, offers_of_site: OfferDiscovery
) -> None:
    known = await offers_of_site.find()
    second = elsewhere(source)
    source.describe(source.url, second)
    assert (await offers_of_site.revalidate(known)).capability_list == source.url
    source.describe(second, source.base + "third.xml")
    with pytest.raises(SeveralSets, match=r"third\.xml"):
        await offers_of_site.revalidate(known)


async def test_a_set_that_was_never_listed_is_not_taken_for_the_one_that_is(
    source: SmallSource, offers: OfferDiscovery
) -> None:
    source.describe(elsewhere(source))
    known = await offers.find()
    assert known.capability_list == source.url
    assert await offers.revalidate(known) == known


async def test_a_capability_list_that_offers_a_list_of_another_set_is_not_followed(
    source: SmallSource, fetcher: Fetcher
) -> None:
    other = Document("changelist", (Resource(source.site + "other/a"),))
    up = (Link("up", source.url),)
    source.answers["/other/changelist.xml"] = body(write_document(replace(other, links=up)))
    with pytest.raises(ConfigurationError, match=r"lists .*data/changelist\.xml instead"):
        await discover(fetcher, source.site + "other/changelist.xml")


@pytest.mark.parametrize(("code", "moves"), [(301, True), (308, True), (302, False), (307, False)])
async def test_a_capability_list_that_moved_for_good_is_read_where_it_is_then(
    code: int, moves: bool, source: SmallSource, offers: OfferDiscovery
) -> None:
    known = await offers.find()
    second = elsewhere(source)
    source.answers["/data/capabilitylist.xml"] = redirect(second, code)
    now = await offers.revalidate(known)
    assert now.capability_list == (second if moves else source.url)
    assert now.listed  # by its old URI
    source.answers["/data/capabilitylist.xml"] = redirect(source.base + "nowhere", 301)
    if moves:
        assert await offers.revalidate(now) == now
    else:
        with pytest.raises(NotFound):
            await offers.revalidate(now)


async def test_a_url_and_a_source_description_that_moved_for_good_are_not_needed_any_more(
    source: SmallSource, fetcher: Fetcher
) -> None:
    old, descriptions = source.site + "old/description", DescriptionReader(fetcher)
    source.answers["/old/description"] = redirect(source.site + WELL_KNOWN[1:], 301)
    offers = OfferDiscovery(descriptions, old)
    known = await offers.find()
    source.answers["/old/description"] = status(410)
    assert await offers.revalidate(known) == known
    source.answers["/data/capabilitylist.xml"] = status(404)
    second = elsewhere(source)
    source.describe(second)
    later = OfferDiscovery(DescriptionReader(fetcher, descriptions.memory), old)
    assert (await later.revalidate(known)).capability_list == second


async def test_a_permanent_redirect_to_a_page_is_no_move(
    source: SmallSource, offers: OfferDiscovery
) -> None:
    known = await offers.find()
    source.answers["/login"] = page("<html>log in</html>")
    source.answers["/data/capabilitylist.xml"] = redirect(source.site + "login", 301)
    with pytest.raises(DocumentError):
        await offers.revalidate(known)
    del source.answers["/data/capabilitylist.xml"]
    assert await offers.revalidate(known) == known


async def test_relative_references_begin_where_a_redirect_led(
    source: SmallSource, fetcher: Fetcher
) -> None:
    listed = Resource("changelist.xml", capability="changelist")
    source.answers["/deep/list.xml"] = body(write_document(Document("capabilitylist", (listed,))))
    source.answers["/short"] = redirect(source.site + "deep/list.xml")
    offer = await discover(fetcher, source.site + "short")
    assert offer.change_list == source.site + "deep/changelist.xml"
    assert offer.capability_list == source.site + "short"


async def test_a_copy_in_a_cache_that_is_older_than_what_was_seen_is_refused(
    source: SmallSource, offers: OfferDiscovery
) -> None:
    known = await offers.find()
    old = replace(source.capability_list(), resources=())
    headers = {"Age": "4000", "Date": "Mon, 05 Jan 2026 00:00:00 GMT"}
    source.publish("capabilitylist.xml", old, headers=headers)
    with pytest.raises(Unavailable, match="a cache returned a version of 2026-01-05"):
        await offers.revalidate(known)


async def test_a_capability_list_that_is_gone_is_requested_once_in_a_search(
    source: SmallSource, offers: OfferDiscovery
) -> None:
    known = await offers.find()
    for path in ("/data/capabilitylist.xml", WELL_KNOWN):
        source.answers[path] = status(404)
    source.gets.clear()
    with pytest.raises(ConfigurationError):
        await offers.revalidate(known)
    assert source.gets["/data/capabilitylist.xml"] == 1
