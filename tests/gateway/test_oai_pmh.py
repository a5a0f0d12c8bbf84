from __future__ import annotations

import re
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack
from datetime import UTC, datetime, timedelta
from itertools import count
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web
from hypothesis import given
from hypothesis import strategies as st

from rsnotify.errors import (
    DocumentError,
    FetchError,
    InvalidDocument,
    MalformedDocument,
    TooLarge,
    Unavailable,
)
from rsnotify_gateway.adapters import oai_pmh
from rsnotify_gateway.adapters.oai_pmh import (
    OaiAdapter,
    OaiError,
    OaiHarvest,
    OaiParser,
    OaiRecord,
    OaiResponse,
)
from tests.gateway.checking import Checking, origin
from tests.gateway.repositories import Items, RepositoryServer, oai_repo, pyoai

IDENTIFIED = {"uri": "https://repository.example/{identifier}"}

ALWAYS = {"compare": 1e-6}

Start = Callable[..., Any]


def uri(name: str) -> str:
    return f"https://repository.example/oai:{name}"


@pytest.fixture
async def start(tmp_path: Path) -> AsyncIterator[Start]:
    async with AsyncExitStack() as stack:

        async def start(
            make: Callable[..., Any] = pyoai,
            deleted: str = "persistent",
            *,
            names: str = "",
            **settings: Any,
        ) -> tuple[RepositoryServer, Checking]:
            server = await stack.enter_async_context(RepositoryServer(Items(deleted), make))
            for name in names:
                server.items.put(name)
            given = origin("oai-pmh", server.url, **{**IDENTIFIED, **settings})
            checking = await stack.enter_async_context(Checking(tmp_path / "state", given))
            return server, checking

        yield start


@pytest.mark.parametrize("deleted", ["persistent", "transient"])
async def test_a_harvest_sees_creations_updates_and_deletions(start: Start, deleted: str):
    server, checking = await start(deleted=deleted)
    names = [f"record{number}" for number in range(10)]
    for name in names:
        server.items.put(name)
    assert await checking.check() == {uri(name): "created" for name in names}
    server.items.put("record3", "another title")
    server.items.put("new")
    server.items.delete("record4")
    assert await checking.check() == {
        uri("record3"): "updated",
        uri("new"): "created",
        uri("record4"): "deleted",
    }
    assert await checking.check() == {}
    assert server.verbs["resumed"] > 0
    assert server.verbs["Identify"] == 1


async def test_records_are_named_by_the_request_that_returns_them(start: Start):
    server, checking = await start(uri=None)
    server.items.put("a&b c")
    (named,) = await checking.check()
    assert named == (
        f"{server.url}?verb=GetRecord&metadataPrefix=oai_dc&identifier=oai%3Aa%26b%20c"
    )


LOCAL = {"uri": "https://repository.example/records/{local}/"}
HARVEST_LOCAL = OaiHarvest(**LOCAL, **ALWAYS)


async def test_records_are_named_by_the_local_part_of_their_identifiers(start: Start):
    server, checking = await start(**LOCAL)
    server.items.put("archive.example:1721.1/4: x")
    server.items.put("plain")
    assert await checking.check() == {
        "https://repository.example/records/1721.1/4:%20x/": "created",
        "https://repository.example/records/oai:plain/": "created",
    }


async def test_deletions_are_confirmed_by_the_whole_identifier(start: Start):
    server, checking = await start(pyoai, "no", **ALWAYS, **LOCAL)
    for name in ("one.example:a", "one.example:b", "two.example:c", "two.example:d", "e", "f"):
        server.items.put(name)
    await checking.check()
    requested = []

    def hide(arguments: dict[str, str]) -> None:
        if arguments["verb"] == "GetRecord":
            requested.append(arguments["identifier"])
            server.items.items.update(hidden)

    hidden = {"oai:one.example:b": server.items.items.pop("oai:one.example:b")}
    for gone in ("two.example:d", "f"):
        server.items.purge(gone)
    server.before = hide
    assert await checking.check() == {
        "https://repository.example/records/d/": "deleted",
        "https://repository.example/records/oai:f/": "deleted",
    }
    assert {"oai:one.example:d", "oai:two.example:d", "oai:f"} <= {*requested}


async def test_identifiers_are_formed_as_before_by_another_process(start: Start):
    server, checking = await start(pyoai, "no", **ALWAYS, **LOCAL)
    server.items.put("one.example:a")
    server.items.put("two.example:b")
    await checking.check()
    hidden = server.items.items.pop("oai:one.example:a")

    def show(arguments: dict[str, str]) -> None:
        if arguments["verb"] == "GetRecord":
            server.items.items["oai:one.example:a"] = hidden

    server.before = show
    checking.watch.adapter = OaiAdapter(server.url, *checking.gateway._clients, HARVEST_LOCAL)
    assert await checking.check() == {}
    assert "https://repository.example/records/a/" in checking.resources()


@pytest.mark.parametrize("make", [pyoai, oai_repo])
async def test_an_empty_repository_has_no_changes(start: Start, make: Any):
    _, checking = await start(make)
    assert await checking.check() == {}
    assert checking.watch.last_check is not None


async def test_two_changes_within_a_second_are_both_seen(start: Start):
    server, checking = await start()
    server.items.now = datetime(2026, 11, 2, 10)
    server.items.put("a", "first")
    assert await checking.check() == {uri("a"): "created"}
    server.items.put("a", "second")
    checking_again = await checking.check()
    assert checking_again == {}, "the datestamp is not within the overlap"
    server.items.now = None
    server.items.put("a", "third")
    assert await checking.check() == {uri("a"): "updated"}
    server.items.items["oai:a"].title = "fourth"
    assert await checking.check() == {uri("a"): "updated"}


async def test_a_repository_whose_clock_was_set_back_is_harvested_as_a_whole(start: Start):
    server, checking = await start()
    await checking.check()

    def set_back(arguments: dict[str, str]) -> web.Response:
        date = f"<responseDate>{an_hour_ago:%Y-%m-%dT%H:%M:%SZ}</responseDate>".encode()
        body = re.sub(b"<responseDate>.*?</responseDate>", date, server.process(arguments))
        return web.Response(body=body, content_type="text/xml")

    server.before = set_back
    server.items.now = an_hour_ago = datetime.now(UTC) - timedelta(hours=1)
    server.items.put("a")
    assert await checking.check() == {uri("a"): "created"}


async def test_two_changes_on_a_day_are_both_seen_with_the_granularity_of_days(start: Start):
    server, checking = await start(oai_repo, "no")
    server.items.granularity = "YYYY-MM-DD"
    server.items.now = datetime.now(UTC).replace(hour=0, minute=0, second=0)
    server.items.put("a", "first")
    assert await checking.check() == {uri("a"): "created"}
    server.items.put("a", "second")
    assert await checking.check() == {uri("a"): "updated"}
    assert checking.watch.adapter.terms().granularity == "day"


@pytest.mark.parametrize(
    ("make", "deleted"), [(oai_repo, "no"), (pyoai, "transient"), (pyoai, "persistent")]
)
async def test_a_comparison_finds_deletions_that_the_repository_does_not_show(
    start: Start, make: Any, deleted: str
):
    server, checking = await start(make, deleted, **ALWAYS, names="abcdefgh")
    await checking.check()
    server.items.purge("b")
    server.items.purge("h")
    assert await checking.check() == {uri("b"): "deleted", uri("h"): "deleted"}
    assert "every" in checking.limits


async def test_a_comparison_finds_a_record_that_became_visible_later_than_it_states(start: Start):
    server, checking = await start(**ALWAYS)
    server.items.put("a")
    await checking.check()
    assert "later" not in checking.limits
    server.items.now = datetime(2020, 1, 1)
    server.items.put("b")
    assert await checking.check() == {uri("b"): "created"}
    assert "more than the overlap, 60 seconds, after their datestamp" in checking.limits
    harvest = OaiHarvest(**IDENTIFIED, **ALWAYS)
    checking.watch.adapter = OaiAdapter(server.url, *checking.gateway._clients, harvest)
    await checking.check()
    assert "more than the overlap, 60 seconds, after their datestamp" in checking.limits


async def test_records_that_get_other_uris_did_not_become_visible_later(start: Start):
    server, checking = await start(**ALWAYS)
    server.items.now = datetime(2020, 1, 1)
    server.items.put("one.example:a")
    await checking.check()
    checking.watch.adapter = OaiAdapter(server.url, *checking.gateway._clients, HARVEST_LOCAL)
    assert len(await checking.check()) == 2
    assert "later" not in checking.limits


async def test_a_repository_that_lists_nothing_deletes_nothing(start: Start):
    server, checking = await start(oai_repo, "no", **ALWAYS)
    server.items.put("a", sets=["maps"])
    await checking.check()
    index, server.items.items = server.items.items, {}  # as while an index is made again
    with pytest.raises(Unavailable, match="lists no records"):
        await checking.check()
    assert set(checking.resources()) == {uri("a")}
    server.items.items = index
    assert await checking.check() == {}


async def test_a_set_can_become_empty(start: Start):
    server, checking = await start(oai_repo, "no", set="maps", **ALWAYS)
    server.items.put("a", sets=["maps"])
    server.items.put("b", sets=["texts"])
    await checking.check()
    server.items.put("a", sets=["texts"])
    assert await checking.check() == {uri("a"): "deleted"}


async def test_a_record_that_a_list_only_skips_is_not_deleted(start: Start):
    server, checking = await start(pyoai, "no", **ALWAYS, names="abcdefgh")
    await checking.check()

    def shift(arguments: dict[str, str]) -> None:
        if "resumptionToken" in arguments:
            server.items.items.pop("oai:a", None)  # so the list goes on with e, and skips d

    server.before = shift
    assert await checking.check() == {}
    assert uri("d") in checking.resources()
    server.before = lambda arguments: None
    assert await checking.check() == {uri("a"): "deleted"}


async def test_without_a_comparison_unseen_deletions_are_not_claimed(start: Start):
    server, checking = await start(oai_repo, "no")
    server.items.put("a")
    server.items.put("b")
    await checking.check()
    server.items.purge("a")
    assert await checking.check() == {}


async def test_a_repository_that_refuses_all_its_tokens_is_reported(start: Start):
    server, checking = await start(oai_repo, "no", names="abcdefgh")
    titles = iter(range(1000))

    def change(arguments: dict[str, str]) -> None:
        if "resumptionToken" in arguments:
            server.items.put("z", f"version {next(titles)}")

    server.before = change
    with pytest.raises(Unavailable, match="resumption tokens"):
        await checking.watch.check()
    assert checking.watch.last_check is None


async def test_a_token_that_always_fails_is_given_up(start: Start, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(oai_pmh, "_MAX_TRIES", 3)
    server, checking = await start(pyoai, names="abcdefgh")
    lost: list[str] = []

    def lose(arguments: dict[str, str]) -> web.Response | None:
        token = arguments.get("resumptionToken")
        if token is not None and not lost:
            lost.append(token)
        return (
            web.Response(status=500) if token in lost and server.verbs["ListRecords"] < 2 else None
        )

    server.before = lose
    for _ in range(2):
        with pytest.raises(Unavailable, match="500"):
            await checking.watch.check()
    assert server.verbs["ListRecords"] == 1
    await checking.watch.check()
    assert set(checking.resources()) == {uri(name) for name in "abcdefgh"}


@pytest.mark.parametrize("status", [200, 400, 404, 410, 422])
async def test_an_error_of_the_protocol_may_have_a_status_of_http(start: Start, status: int):
    server, checking = await start(oai_repo, "no", **ALWAYS)
    server.error_status = status
    assert await checking.check() == {}  # noRecordsMatch
    for name in "abcdefgh":
        server.items.put(name)

    def change_once(arguments: dict[str, str]) -> None:
        if "resumptionToken" in arguments:
            server.before = lambda arguments: None
            server.items.put("a", "changed meanwhile")

    server.before = change_once
    server.verbs.clear()
    assert await checking.watch.check() == 9  # badResumptionToken
    assert server.verbs["ListRecords"] == 2, "the harvest begins again"
    assert set(checking.resources()) == {uri(name) for name in "abcdefgh"}
    server.items.purge("b")
    await checking.watch.check()  # idDoesNotExist
    assert set(checking.resources()) == {uri(name) for name in "acdefgh"}


@pytest.mark.parametrize("status", [400, 404, 410, 422])
@pytest.mark.parametrize("begin", ["<html>", "", "<OAI-PMH xmlns='http://www.openarchives.org/O"])
async def test_another_response_with_such_a_status_fails_the_check(
    start: Start, status: int, begin: str
):
    server, checking = await start(pyoai, "no", **ALWAYS)
    server.items.put("a")
    await checking.check()
    server.before = lambda arguments: web.Response(status=status, text=begin)
    with pytest.raises(FetchError, match=f"the server says {status}"):
        await checking.check()
    server.before = lambda arguments: web.Response(status=status, body=page("", "").body)
    with pytest.raises(FetchError, match=f"the server says {status}"):
        await checking.check()
    assert set(checking.resources()) == {uri("a")}


async def test_an_interrupted_harvest_continues_with_its_token(start: Start):
    server, checking = await start(delay=0.0, names="abcdefgh")

    def interrupt(arguments: dict[str, str]) -> web.Response | None:
        if "resumptionToken" in arguments and server.verbs["resumed"] == 2:
            return web.Response(status=503)
        return None

    server.before = interrupt
    with pytest.raises(Unavailable):
        await checking.watch.check()
    assert checking.changes() == {uri(name): "created" for name in "abcdef"}
    assert checking.watch.last_check is None
    requests = []
    server.before = requests.append
    server.items.put("a", "changed before the next check")
    changes = await checking.check()
    assert "resumptionToken" in requests[1]
    # The list that was continued is of before this check, and cannot have this change.
    assert changes == {uri("a"): "updated", uri("g"): "created", uri("h"): "created"}


async def test_an_outage_with_retry_after_is_respected(start: Start):
    server, checking = await start()
    server.before = lambda arguments: web.Response(status=503, headers={"Retry-After": "120"})
    with pytest.raises(Unavailable) as caught:
        await checking.check()
    assert caught.value.retry_after == 120
    requests = server.verbs.total()
    with pytest.raises(Unavailable, match="does not accept requests now"):
        await checking.check()
    assert server.verbs.total() == requests


async def test_only_the_records_of_a_set_are_harvested(start: Start):
    server, checking = await start(pyoai, "no", set="maps", **ALWAYS)
    server.items.put("a", sets=["maps"])
    server.items.put("b", sets=["texts"])
    server.items.put("c", sets=["maps"])
    assert await checking.check() == {uri("a"): "created", uri("c"): "created"}
    server.items.put("a", sets=["texts"])
    assert await checking.check() == {uri("a"): "deleted"}


async def test_another_error_of_the_repository_is_reported_in_its_words(start: Start):
    _, checking = await start(oai_repo, "no", prefix="marc21")
    with pytest.raises(Unavailable, match="cannotDisseminateFormat: The given metadataPrefix"):
        await checking.check()


@pytest.mark.parametrize(
    "body",
    [b"<html/>", b"<!DOCTYPE x []><x/>", b'<OAI-PMH xmlns="http://www.openarchives.org/OAI/2.0/">'],
    ids=["HTML", "DOCTYPE", "truncated"],
)
async def test_a_response_that_is_no_oai_pmh_fails_the_check(start: Start, body: bytes):
    server, checking = await start()
    server.before = lambda arguments: web.Response(body=body)
    with pytest.raises(DocumentError):
        await checking.check()


async def test_what_deletions_a_repository_shows_is_stated(start: Start):
    _, persistent = await start()
    await persistent.check()
    assert persistent.limits == "All deletions are detected."
    _, compared = await start(compare=3600, set="maps")
    await compared.check()
    assert compared.limits.startswith("Deletions are detected while the repository lists them, or ")
    assert compared.limits.endswith(
        "the set maps are detected by comparing the whole list every 3600 seconds."
    )


def page(names: str, token: str, date: str = "") -> web.Response:
    """Return a page with records named by letters, and a token."""
    date = date or f"{datetime.now(UTC):%Y-%m-%dT%H:%M:%SZ}"
    records = "".join(
        f"<record><header><identifier>oai:{name}</identifier><datestamp>2026-11-02T10:00:00Z"
        "</datestamp></header><metadata/></record>"
        for name in names
    )
    return web.Response(
        body=f'<OAI-PMH xmlns="http://www.openarchives.org/OAI/2.0/"><responseDate>{date}'
        f"</responseDate><request>u</request><ListRecords>{records}<resumptionToken>{token}"
        "</resumptionToken></ListRecords></OAI-PMH>".encode()
    )


@pytest.mark.parametrize(
    ("answer", "requests", "problem"),
    [
        (lambda n: page("a", "A"), 2, "repeats an earlier resumption token"),
        (lambda n: page("ab"[n % 2], "AB"[n % 2]), 3, "repeats an earlier resumption token"),
        (lambda n: page("abcdef"[n % 6], "ABC"[n % 3]), 4, "repeats an earlier resumption token"),
        (lambda n: page("ab"[n % 2], f"T{n}"), 12, "has 10 pages that are empty or repeat"),
        (lambda n: page("", f"T{n}"), 11, "has 10 pages that are empty or repeat earlier pages"),
        (lambda n: page(chr(97 + n), f"T{n}"), 20, "has more than 20 pages"),
    ],
    ids=["one token", "two tokens", "three tokens", "two pages", "empty pages", "new pages"],
)
async def test_a_list_without_end_is_a_problem_and_the_next_check_begins_again(
    start: Start,
    monkeypatch: pytest.MonkeyPatch,
    answer: Callable[[int], web.Response],
    requests: int,
    problem: str,
):
    monkeypatch.setattr(oai_pmh, "_MAX_REPEATED", 10)
    monkeypatch.setattr(oai_pmh, "_MAX_PAGES", 20)
    server, checking = await start()
    numbers = count()

    def answer_list(arguments: dict[str, str]) -> web.Response | None:
        return answer(next(numbers)) if arguments["verb"] == "ListRecords" else None

    server.before = answer_list
    for _ in range(2):
        server.verbs.clear()
        with pytest.raises(Unavailable, match=problem):
            await checking.watch.check()
        assert server.verbs["resumed"] == requests - 1
        assert server.verbs["ListRecords"] == 1
    assert checking.watch.last_check is None
    server.before = lambda arguments: None
    server.items.put("last")
    await checking.watch.check()
    assert uri("last") in checking.resources()


async def test_a_restart_does_not_make_a_list_endless(
    start: Start, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(oai_pmh, "_MAX_PAGES", 20)
    server, checking = await start()
    numbers = count()

    def answer(arguments: dict[str, str]) -> web.Response | None:
        number = next(numbers)
        if number % 8 == 7:
            return web.Response(status=500)
        return page(chr(97 + number), f"T{number}") if number else None

    server.before = answer
    problems = []
    for _ in range(4):
        with pytest.raises(Unavailable) as caught:
            await checking.watch.check()
        problems.append(str(caught.value))
    assert [("has more than 20 pages" in one) for one in problems] == [False, False, False, True]


@pytest.mark.parametrize("date", ["0001-01-01", "0001-01-01T00:00:00Z", "1970-01-01", "2126-11-02"])
async def test_a_response_date_that_cannot_be_the_present_is_an_error(start: Start, date: str):
    server, checking = await start()
    server.before = lambda arguments: page("a", "", date)
    with pytest.raises(InvalidDocument, match="is not the current time"):
        await checking.check()
    server.before = lambda arguments: None
    server.items.put("b")
    assert await checking.check() == {uri("b"): "created"}


async def test_an_earliest_datestamp_in_the_future_hides_no_change(start: Start):
    server, checking = await start()
    server.items.put("a")
    await checking.check()
    checking.watch.adapter._identity["earliestDatestamp"] = "2126-01-01T00:00:00Z"  # type: ignore[attr-defined]
    for name in "bc":
        server.items.put(name)
        assert await checking.check() == {uri(name): "created"}


DATE = "<responseDate>2026-11-02T10:00:00Z</responseDate>"


def response(body: str) -> bytes:
    namespace = 'xmlns="http://www.openarchives.org/OAI/2.0/"'
    return f"<OAI-PMH {namespace}>{DATE}<request>u</request>{body}</OAI-PMH>".encode()


def record(metadata: str = "<m>text</m>", header: str = "") -> str:
    return (
        f"<record><header{header}><identifier>oai:a</identifier>"
        "<datestamp>2026-11-01</datestamp><setSpec>maps</setSpec><setSpec>old</setSpec></header>"
        f"<metadata>{metadata}</metadata><about><x><identifier>no</identifier></x></about></record>"
    )


def parsed(data: bytes) -> OaiResponse:
    parser = OaiParser()
    parser.feed(data)
    return parser.close()


def only(data: bytes) -> OaiRecord:
    (found,) = parsed(data).records
    return found


def test_a_record_has_its_header_and_a_digest_of_its_metadata():
    found = only(response(f"<ListRecords>{record()}</ListRecords>"))
    assert (found.identifier, found.datestamp) == ("oai:a", "2026-11-01")
    assert found.sets == ("maps", "old")
    assert not found.deleted
    assert found.digest


@pytest.mark.parametrize(
    "other", ["<m>text </m>", "<n>text</n>", "<m a='1'>text</m>", "<m/>text", "<m>t<i/>ext</m>"]
)
def test_any_difference_of_the_metadata_changes_the_digest(other: str):
    first, second = (
        only(response(f"<ListRecords>{record(metadata)}</ListRecords>"))
        for metadata in ("<m>text</m>", other)
    )
    assert first.digest != second.digest


@given(st.lists(st.integers(1, 40), min_size=1))
def test_the_digest_does_not_depend_on_how_the_response_arrives(sizes: list[int]):
    data = response("<ListRecords>" + record("<m b='1'>täxt</m>") + "</ListRecords>")
    parser, start, number = OaiParser(), 0, 0
    while start < len(data):
        size = sizes[number % len(sizes)]
        parser.feed(data[start : start + size])
        start, number = start + size, number + 1
    assert parser.close() == parsed(data)


def test_headers_of_list_identifiers_are_records():
    fields = "<identifier>oai:a</identifier><datestamp>2026</datestamp>"
    header = f"<header status='deleted'>{fields}</header>"
    found = only(response(f"<ListIdentifiers>{header}</ListIdentifiers>"))
    assert found.deleted


@pytest.mark.parametrize(
    ("body", "name", "value"),
    [
        (
            "<ListRecords><resumptionToken cursor='0'> next </resumptionToken></ListRecords>",
            *("token", "next"),
        ),
        (f"<ListRecords>{record()}<resumptionToken/></ListRecords>", "token", ""),
        (f"<ListRecords>{record()}</ListRecords>", "token", None),
        (
            '<error code="noRecordsMatch">None</error><error code="badVerb"/>',
            *("errors", (OaiError("noRecordsMatch", "None"), OaiError("badVerb", ""))),
        ),
        (
            "<Identify><granularity>YYYY-MM-DD</granularity></Identify>",
            *("fields", {"granularity": "YYYY-MM-DD"}),
        ),
    ],
)
def test_a_response_is_read(body: str, name: str, value: object):
    assert getattr(parsed(response(body)), name) == value


@pytest.mark.parametrize(
    ("data", "error"),
    [
        (response("<ListRecords>")[:-20], MalformedDocument),
        (b'<!DOCTYPE a [<!ENTITY b "c">]>' + response(""), MalformedDocument),
        (response("").replace(DATE.encode(), b""), InvalidDocument),
        (response("<ListRecords><record><header/></record></ListRecords>"), InvalidDocument),
        (
            response(f"<ListRecords>{record().replace('2026', 'now')}</ListRecords>"),
            InvalidDocument,
        ),
        (response(f"<error>{'x' * 10_000}</error>"), TooLarge),
        (response("<a>" * 300 + "</a>" * 300), TooLarge),
        (b"<urlset/>", DocumentError),
    ],
)
def test_what_cannot_be_accepted_is_refused(data: bytes, error: type[DocumentError]):
    with pytest.raises(error):
        parsed(data)
