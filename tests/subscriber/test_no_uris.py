"""What looks like a URI and is none, wherever a Source may write it."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from msgspec.structs import replace

from rsnotify.errors import FetchError, RsnotifyError
from rsnotify.format.model import Capability, ChangeType, Document, Link, Rel, Resource
from rsnotify_subscriber import audit
from rsnotify_subscriber.fetching.fetcher import Fetcher
from rsnotify_subscriber.fetching.sessions import Sessions
from rsnotify_validation.inspection import inspect
from rsnotify_validation.target_validation import validate_target
from tests.examples_count import part
from tests.subscriber.destination import Destination
from tests.subscriber.source import SmallSource, body, path_of, status

NO_URIS = [
    "http://[", "http://a.example:port/", "http://a.example:99999/", "http://\u2025/",
    "http://xn--/", f"http://{'a' * 70}.example/", "//[", "mailto:a@b",
]  # fmt: skip
OFFERED = [
    Capability.RESOURCE_LIST,
    Capability.CHANGE_LIST,
    Capability.RESOURCE_DUMP,
    Capability.CHANGE_DUMP,
    Capability.CHANGE_LIST_ARCHIVE,
    Capability.CHANGE_NOTIFICATION,
]
no_uris = pytest.mark.parametrize("uri", NO_URIS)


@pytest.fixture
async def fetcher(source: SmallSource, tmp_path: Path) -> AsyncIterator[Fetcher]:
    async with Sessions(source.url, allow_private_addresses=True) as sessions:
        yield Fetcher(sessions, tmp_path)


@no_uris
async def test_to_fetch_it_fails_as_any_fetch_may(uri: str, fetcher: Fetcher) -> None:
    with pytest.raises(FetchError):
        await fetcher.document(uri)


@no_uris
async def test_a_redirect_there_fails_as_any_fetch_may(
    uri: str, source: SmallSource, fetcher: Fetcher
) -> None:
    source.answers[path_of("a")] = status(302, headers={"Location": uri})
    with pytest.raises(FetchError):
        await fetcher.document(source.base + "a")


async def test_resources_there_keep_no_other_from_being_followed(
    source: SmallSource, destination: Destination
) -> None:
    await destination.catch_up()
    at = source.put("a", b"1").datetime
    source.changes += [Resource(uri, change=ChangeType.CREATED, datetime=at) for uri in NO_URIS]
    with pytest.raises(RsnotifyError, match="several attempts failed"):
        await destination.catch_up()
    assert destination.files() == {"a": b"1"}


@pytest.mark.parametrize("rel", ["duplicate", "alternate", "patch", "memento", "timegate"])
async def test_links_of_entries_there_are_passed_over(
    rel: str, source: SmallSource, destination: Destination
) -> None:
    for content in (b"0", b"1"):
        for number, uri in enumerate(NO_URIS):
            links = (Link(rel, uri, type="application/json-patch+json", pri=1),)
            source.put(f"r{number}", content, links=links if content == b"1" else ())
        await destination.become_equal(exact=True)


@pytest.mark.parametrize(
    ("capability", "uri"),
    [(one, uri) for number, one in enumerate(OFFERED) for uri in part(NO_URIS, number, 3)],
)
async def test_a_document_that_is_said_to_be_there_is_done_without(
    capability: str, uri: str, source: SmallSource, destination: Destination
) -> None:
    source.put("a", b"1")
    entry = Resource(uri, capability=capability, links=(Link(Rel.HUB, uri),))
    offer = source.capability_list()
    kept = tuple(one for one in offer.resources if one.capability != capability)
    offer = replace(offer, resources=(entry, *kept), links=(Link(Rel.UP, uri),))
    source.publish("capabilitylist.xml", offer)
    if capability in (Capability.RESOURCE_LIST, Capability.CHANGE_LIST):
        with pytest.raises(RsnotifyError):
            await destination.catch_up()
    else:
        await destination.become_equal()


@no_uris
async def test_a_way_to_an_archive_there_ends_in_the_whole_set(
    uri: str, source: SmallSource, destination: Destination
) -> None:
    await destination.catch_up()
    source.put("a", b"1")
    source.rotate()
    source.put("b", b"2")
    for name in ("changelist.xml", "changelist-archive.xml"):
        document = source.document(name)
        assert document is not None
        spoilt = replace(document, links=(Link(Rel.ARCHIVES, uri), Link(Rel.UP, uri)))
        if name != "changelist.xml":
            members = tuple(replace(one, uri=uri) for one in document.resources)
            spoilt = replace(document, resources=members)
        source.publish(f"{name}", spoilt)
    await destination.become_equal()


@no_uris
async def test_who_looks_into_the_source_is_told(uri: str, source: SmallSource) -> None:
    listed = Resource(uri, capability=Capability.RESOURCE_LIST, links=(Link("describedby", uri),))
    spoilt = Document(
        Capability.CAPABILITY_LIST,
        (listed,),
        links=(Link(Rel.UP, uri), Link(Rel.ARCHIVES, uri), Link(Rel.INDEX, uri)),
    )
    source.publish("capabilitylist.xml", spoilt)
    found = await inspect(source.url)
    assert found.problem is not None
    assert not (await validate_target(source.url, deep=True)).valid


async def test_an_audit_tells_what_cannot_be_compared(
    source: SmallSource, destination: Destination
) -> None:
    await destination.catch_up()
    listed = Document(Capability.RESOURCE_LIST, tuple(map(Resource, NO_URIS)), at=source.last)
    source.publish("resourcelist.xml", listed)
    assert not (await audit(source.url, destination.folder, pause=0)).in_step


@pytest.mark.parametrize(
    ("uri", "header"),
    [(uri, one) for n, uri in enumerate(NO_URIS) for one in part(("Link", "Location"), n, 2)],
)
async def test_a_site_that_leads_there_leads_nowhere(
    header: str, uri: str, source: SmallSource, destination: Destination
) -> None:
    value = uri if header == "Location" else f'<{uri}>; rel="resourcesync"'
    code = 302 if header == "Location" else 200
    html = f'<html><link rel="resourcesync" href="{uri}"></html>'
    source.answers["/"] = status(code, headers={header: value}, text=html, content_type="text/html")
    source.answers["/.well-known/resourcesync"] = status(404)
    source.answers["/robots.txt"] = body(f"Sitemap: {uri}\n".encode())
    with pytest.raises(RsnotifyError):
        await destination.catch_up(source.site)
