from __future__ import annotations

import json
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from rsnotify.errors import DocumentError, InvalidDocument, TooLarge
from rsnotify_gateway.adapters import ldes
from tests.gateway.checking import Checking, origin
from tests.gateway.generators import EventStream, at, numbered
from tests.gateway.origin_server import SITE, Site

A, B, C, D = (SITE + name for name in "abcd")


@pytest.fixture
def stream(site: Site) -> EventStream:
    return EventStream(site)


@pytest.fixture
async def checking(stream: EventStream, tmp_path: Path) -> AsyncIterator[Checking]:
    async with Checking(tmp_path, origin("ldes", stream.url())) as checking:
        yield checking


async def test_each_member_is_a_version_of_its_resource(stream: EventStream, checking: Checking):
    stream.play("a", "b", "a")
    assert await checking.check() == {A: "created", B: "created"}
    assert checking.resources()[A].lastmod == at(2)
    stream.play("b", "-a", start=3)
    assert await checking.check() == {A: "deleted", B: "updated"}
    stream.put("a", at(5))
    assert await checking.check() == {A: "created"}
    assert await checking.check() == {}
    assert "Deletions are detected as members" in checking.limits


async def test_immutable_pages_are_read_once(site: Site, stream: EventStream, checking: Checking):
    stream.play(*numbered(23))
    assert len(await checking.check()) == 23
    stream.put("a", at(30))
    assert await checking.check() == {A: "created"}
    assert [site.requests[stream.path(number)] for number in range(5)] == [1, 1, 1, 1, 2]


async def test_an_unchanged_page_costs_no_content(
    site: Site, stream: EventStream, checking: Checking
):
    stream.put("a", at(0))
    await checking.check()
    await checking.check()
    assert site.requests[stream.path(0)] == 2
    assert site.sent[stream.path(0)] == 1


async def test_versions_count_by_their_datetimes_whatever_the_order_of_the_pages(
    site: Site, stream: EventStream, checking: Checking, tmp_path: Path
):
    stream.put("a", at(9))
    stream.delete("b", at(9))
    stream.put("c", at(9))
    stream.put("r3", at(9))
    stream.put("r4", at(9))
    stream.put("a", at(1))
    stream.put("b", at(1))
    stream.delete("c", at(1))
    changes = await checking.check()
    assert set(changes) == {SITE + name for name in ("a", "c", "r3", "r4")}
    assert checking.resources()[A].lastmod == at(9)


async def test_an_old_version_on_another_page_does_not_undo_a_deletion(
    stream: EventStream, checking: Checking
):
    stream.play("a", "-a", "b", start=1)
    assert await checking.check() == {B: "created"}
    for number in range(4, 10):
        stream.put(f"r{number}", at(number))
    stream.put("a", at(1))  # as after the stream was divided into other pages
    assert A not in await checking.check()
    stream.put("a", at(20))
    assert await checking.check() == {A: "created"}
    stream.put("a", at(1))
    assert await checking.check() == {}


async def test_a_page_that_lost_members_deletes_nothing(stream: EventStream, checking: Checking):
    stream.play("a", "b")
    await checking.check()
    stream.members.pop(0)
    stream.write()
    assert await checking.check() == {}
    assert "Members that leave the stream are not detected." in checking.limits


async def test_pages_that_lead_in_a_circle_are_read_once(
    site: Site, stream: EventStream, checking: Checking
):
    stream.play(*numbered(12))
    site.pages[stream.path(2)] += (
        f"<{stream.url('2')}> tree:relation [ a tree:Relation ; tree:node <{stream.url('0')}> ] ."
    ).encode()
    assert len(await checking.check()) == 12
    assert {site.requests[stream.path(number)] for number in range(3)} == {1}


async def test_json_ld_is_read(site: Site, stream: EventStream, checking: Checking):
    document = {
        "@context": {
            "ldes": "https://w3id.org/ldes#",
            "tree": "https://w3id.org/tree#",
            "dct": "http://purl.org/dc/terms/",
            "member": {"@id": "tree:member"},
            "created": {"@id": "dct:created"},
            "isVersionOf": {"@id": "dct:isVersionOf", "@type": "@id"},
        },
        "@id": stream.url() + "#stream",
        "@type": "ldes:EventStream",
        "ldes:timestampPath": {"@id": "dct:created"},
        "ldes:versionOfPath": {"@id": "dct:isVersionOf"},
        "member": [{"@id": A + "#1", "created": "2020-11-01T00:00:00Z", "isVersionOf": A}],
    }
    site.pages[stream.path(0)] = json.dumps(document).encode()
    site.headers[stream.path(0)] = {"Content-Type": "application/ld+json; charset=utf-8"}
    assert await checking.check() == {A: "created"}
    assert checking.resources()[A].lastmod == at(0)


async def test_a_stream_leads_to_one_of_its_views(
    site: Site, stream: EventStream, checking: Checking
):
    stream.put("a", at(0))
    page = site.pages[stream.path(0)]
    site.pages["/ldes/view"] = page.replace(b"tree:view", b"tree:other")
    site.headers["/ldes/view"] = {"Content-Type": "text/turtle"}
    site.pages[stream.path(0)] = (
        "@prefix tree: <https://w3id.org/tree#> . @prefix ldes: <https://w3id.org/ldes#> ."
        f"<{stream.url()}> a ldes:EventStream ; tree:view <view>, <view-by-place> ."
    ).encode()
    assert await checking.check() == {A: "created"}
    assert site.requests["/ldes/view-by-place"] == 0


async def test_a_member_without_a_version_is_a_resource_itself(
    stream: EventStream, checking: Checking
):
    stream.statements = stream.statements.replace("ldes:versionOfPath dct:isVersionOf ;", "")
    stream.put("a", at(0))
    assert await checking.check() == {A + "#v0": "created"}


async def test_members_without_a_uri_are_counted(stream: EventStream, checking: Checking):
    stream.statements += f"<{stream.url()}#stream> tree:member [ dct:created '2026' ] .\n"
    stream.write()
    assert await checking.check() == {}
    assert "Skipped members without a valid URI: 1." in checking.limits


async def test_a_path_of_several_predicates_is_followed(stream: EventStream, checking: Checking):
    stream.statements = stream.statements.replace(
        "timestampPath dct:created", "timestampPath ( dct:temporal dct:created )"
    )
    stream.members.append(
        f"<{A}#1> dct:isVersionOf <{A}> ; dct:temporal [ dct:created '2020-11-01T00:00:07Z' ] ."
    )
    stream.write()
    assert await checking.check() == {A: "created"}
    assert checking.resources()[A].lastmod == at(7)


async def test_a_path_that_is_not_supported_is_refused(stream: EventStream, checking: Checking):
    stream.statements = stream.statements.replace(
        "timestampPath dct:created", "timestampPath [ <http://www.w3.org/ns/shacl#inversePath> 1 ]"
    )
    stream.write()
    with pytest.raises(InvalidDocument, match="the path in its timestampPath is not supported"):
        await checking.check()


async def test_a_truncated_page_fails_the_check_and_is_read_later(
    site: Site, stream: EventStream, checking: Checking
):
    stream.play(*numbered(8))
    whole = site.pages[stream.path(1)]
    site.pages[stream.path(1)] = whole[:-15]
    with pytest.raises(DocumentError, match="not well-formed RDF"):
        await checking.check()
    site.pages[stream.path(1)] = whole
    await checking.check()
    assert len(checking.resources()) == 8


@pytest.mark.parametrize("media_type", ["text/html", "application/json; charset=utf-8"])
async def test_what_is_no_rdf_is_refused(
    site: Site, stream: EventStream, checking: Checking, media_type: str
):
    site.pages[stream.path(0)] = b"<html>"
    site.headers[stream.path(0)] = {"Content-Type": media_type}
    with pytest.raises(DocumentError, match=r"not a supported RDF|not well-formed RDF"):
        await checking.check()


def test_a_page_of_more_triples_than_fit_into_memory_is_refused(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(ldes, "_MAX_TRIPLES", 100)
    lists = b"<> <urn:a> " + b"(" * 1_000  # each is a triple of one byte
    with pytest.raises(TooLarge, match="more than 100 triples"):
        ldes.parse_page(lists, "text/turtle", SITE, ldes.StreamTerms())


async def test_a_check_that_was_interrupted_continues_where_it_was(
    site: Site, stream: EventStream, checking: Checking, tmp_path: Path
):
    for number in range(5 * 120):
        stream.put(f"r{number % 7}", at(number))
    del site.pages[stream.path(110)]
    with pytest.raises(Exception, match="404"):
        await checking.check()
    stream.write()
    requests = site.requests.copy()
    async with Checking(tmp_path, origin("ldes", stream.url())) as again:
        await again.watch.check()
        assert {str(one.lastmod) for one in again.resources().values()} == {
            str(at(number)) for number in range(593, 600)
        }
    new = site.requests - requests
    assert sum(new.values()) < 40


@pytest.mark.slow
async def test_ten_thousand_pages_are_read_once(
    site: Site, stream: EventStream, checking: Checking
):
    for number in range(50_000):
        stream.put(f"r{number}", at(number), write=False)
    stream.write()
    assert len(await checking.check()) == 50_000
    sent = sum(site.requests.values())
    assert await checking.check() == {}
    assert sum(site.requests.values()) == sent + 1


async def test_a_stream_without_end_is_a_problem(
    site: Site, checking: Checking, stream: EventStream, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(ldes, "_MAX_PAGES", 20)

    def write(path: str) -> None:
        number = int(path.rpartition("/")[2])
        tree = "https://w3id.org/tree#"
        following = f"<> <{tree}relation> [ <{tree}node> <{number + 1}> ] ."
        site.pages[path] = following.encode()
        site.headers[path] = {"Content-Type": "text/turtle"}

    site.before = lambda path: write(path) if path.startswith("/ldes") else None
    for _ in range(2):
        with pytest.raises(TooLarge, match="more than 20 pages"):
            await checking.check()
    assert site.requests.total() < 50


@pytest.mark.parametrize(
    ("begin", "end", "media_type"),
    [(b'<a> <b> "', b'" .', "text/turtle"), (b'{"a":"', b'"}', "application/ld+json")],
)
def test_a_term_that_is_too_long_is_refused(begin: bytes, end: bytes, media_type: str):
    page = begin + b"x" * (1 << 24) + end
    with pytest.raises(TooLarge, match="more than 16 MiB"):
        ldes.parse_page(page, media_type, SITE, ldes.StreamTerms())
