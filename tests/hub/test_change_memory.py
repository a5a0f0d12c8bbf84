"""The hub as change memory: `GET /topics`, and a log as Change Lists."""

from __future__ import annotations

from itertools import pairwise
from typing import Any
from urllib.parse import quote

import pytest
from hypothesis import given
from hypothesis import strategies as st
from resync.change_list import ChangeList

from rsnotify.format.datetimes import Instant, format_datetime
from rsnotify.format.model import Document, Rel
from rsnotify.format.reader import read_document
from rsnotify_hub.change_memory import UnknownChanges, make_page
from rsnotify_hub.fragments import read_fragment
from rsnotify_validation import validate
from tests.hub.helpers import START, TOPIC, Client, Clock, RunHub, at, chain, fragment

#: Changes at each of the seconds 1 to 20.
FOURS = [fragment(second, *range(second + 1, second + 5)) for second in range(0, 20, 4)]
UP = "https://source.example/data/capabilitylist.xml"


class Memory:
    """Return the change memory of one topic, as a Destination reads it."""

    def __init__(self, hub: Client, topic: str = TOPIC) -> None:
        self.hub = hub
        self.topic = topic

    async def ask(self, since: str | None = None, **more: Any) -> tuple[int, str]:
        query = f"topics?topic={quote(self.topic, safe='')}"
        if since is not None:
            query += f"&since={since}"
        return await self.hub.get(query + "".join(f"&{name}={more[name]}" for name in more))

    async def page(self, since: Instant | None = None, **more: Any) -> Document:
        text = None if since is None else format_datetime(since)
        status, body = await self.ask(text, **more)
        assert status == 200, body
        return read_document(body.encode())

    async def walk(self, since: Instant | None = None, **more: Any) -> list[Document]:
        pages = [await self.page(since, **more)]
        while following := pages[-1].link(Rel.NEXT):
            assert following.startswith(self.hub.url + "topics?")
            status, body = await self.hub.get(following.removeprefix(self.hub.url))
            assert status == 200, body
            pages.append(read_document(body.encode()))
        return pages


@pytest.fixture
def memory(hub: Client) -> Memory:
    return Memory(hub)


def seconds(*pages: Document) -> list[float]:
    return [
        (entry.changed_at - START).total_seconds()
        for page in pages
        for entry in page.resources
        if entry.changed_at is not None
    ]


async def test_pages_join_and_the_last_is_empty_until_something_changes(memory: Memory):
    await memory.hub.accepted(*FOURS)
    pages = await memory.walk(at(0), limit=3)
    assert seconds(*pages) == list(range(1, 21))
    assert all(len(page.resources) == 3 for page in pages[:6])
    assert all(one.until == following.from_ for one, following in pairwise(pages))
    last = pages[-1]
    assert (last.from_, last.until, last.resources) == (at(20), None, ())
    assert last.link("up") == UP
    await memory.hub.accepted(fragment(20, 21))
    assert seconds(await memory.page(at(20))) == [21]


async def test_a_heartbeat_extends_the_last_page(memory: Memory):
    await memory.hub.accepted(fragment(0, 1), fragment(1, until=50))
    page = await memory.page(at(0))
    assert (page.until, seconds(page)) == (at(50), [1])
    assert (await memory.page(at(20))).until == at(50)


async def test_changes_before_the_log_are_gone_with_an_explanation(memory: Memory):
    await memory.hub.accepted(fragment(7, 8))
    status, text = await memory.ask(format_datetime(at(3)))
    assert status == 410
    assert (
        f"{format_datetime(at(3))} and {format_datetime(at(7))}; get them from the Source" in text
    )
    again = text.rpartition(" ")[2].strip()
    assert (await memory.hub.get(again.removeprefix(memory.hub.url)))[0] == 200


async def test_a_page_ends_at_a_gap_in_the_log(memory: Memory):
    await memory.hub.accepted(fragment(0, 1), fragment(1, 2), fragment(5, 6))
    page = await memory.page(at(0))
    assert (page.until, seconds(page)) == (at(2), [1, 2])
    following = page.link(Rel.NEXT)
    status, text = await memory.hub.get(following.removeprefix(memory.hub.url))
    assert (status, format_datetime(at(5)) in text) == (410, True)
    assert seconds(await memory.page(at(5))) == [6]


async def test_a_trimmed_log_names_its_begin(run_hub: RunHub):
    async with run_hub(log_bytes=len(fragment(10, 11)) * 3) as hub:
        memory = Memory(hub)
        await hub.accepted(*chain(10, 20))
        assert (await memory.ask(format_datetime(at(10))))[0] == 410
        assert seconds(*await memory.walk()) == [18, 19, 20]


async def test_accepted_fragments_are_returned_whatever_the_present_limits(run_hub: RunHub):
    links = b'<rs:ln rel="x" href="https://a.example/"/>' * 1500
    async with run_hub(max_links=2000) as hub:
        memory = Memory(hub)
        await hub.accepted(*(body.replace(b"</url>", links + b"</url>") for body in chain(2)))
        status, page = await memory.ask(format_datetime(at(0)))
        assert (status, page.count("rs:ln")) == (200, 2 * 1500 + 2)
        assert (await memory.ask(format_datetime(at(2))))[0] == 200


async def test_an_emptied_log_is_at_its_end(run_hub: RunHub, clock: Clock):
    async with run_hub() as hub:
        await hub.accepted(fragment(0, 1))
    clock.advance(days=9)
    async with run_hub() as hub:
        await hub.accepted(fragment(5, 6))
        clock.advance(days=9)
        memory = Memory(hub)
        await hub.accepted(fragment(6, 7))
        assert (await memory.ask(format_datetime(at(5))))[0] == 410
        assert seconds(*await memory.walk()) == [7]


async def test_every_page_is_valid_and_read_by_resync(memory: Memory):
    await memory.hub.accepted(*FOURS)
    await memory.hub.accepted(fragment(20, until=30))
    uris = []
    for page in await memory.walk(at(0), limit=3):
        _, body = await memory.ask(format_datetime(page.from_ or at(0)), limit=3)
        assert validate(body.encode()) == []
        read = ChangeList()
        read.parse(str_data=body)
        uris += [change.uri for change in read]
    assert uris == [f"https://source.example/data/{second}" for second in range(1, 21)]


async def test_an_unchanged_page_is_not_sent_again(memory: Memory):
    await memory.hub.accepted(fragment(0, 1))
    url = f"{memory.hub.url}topics?topic={quote(TOPIC, safe='')}&since=2026"
    async with memory.hub.session.get(url) as answer:
        tag = answer.headers["ETag"]
        assert answer.headers["Cache-Control"] == "no-cache"
        assert answer.content_type == "application/xml"
    async with memory.hub.session.get(url, headers={"If-None-Match": tag}) as answer:
        assert (answer.status, answer.headers["ETag"]) == (304, tag)
    await memory.hub.accepted(fragment(1, 2))
    async with memory.hub.session.get(url, headers={"If-None-Match": tag}) as answer:
        assert answer.status == 200


async def test_an_unknown_topic_is_not_found(memory: Memory):
    assert (await memory.ask())[0] == 404
    await memory.hub.publish(b"<p>", Content_Type="text/html")
    status, text = await memory.ask()
    assert (status, "not about changes" in text) == (404, True)


@pytest.mark.parametrize(
    ("question", "named"),
    [
        ({"since": "yesterday"}, "since"),
        ({"since": ""}, "since"),
        ({"limit": 0}, "limit"),
        ({"limit": "many"}, "limit"),
        ({"limit": "9" * 5000}, "limit"),
    ],
)
async def test_an_invalid_query_is_answered_with_one_sentence(
    memory: Memory, question: dict[str, Any], named: str
):
    await memory.hub.accepted(fragment(0, 1))
    status, text = await memory.ask(**question)
    assert (status, text.startswith(named), text.count("\n")) == (400, True, 1)


async def test_every_w3c_datetime_is_understood(memory: Memory):
    await memory.hub.accepted(fragment(0, 1))
    for since in ("2100", "2100-01-01", "2100-01-01T00:00:00+01:00", "2100-01-01T00:00Z"):
        for spelled in (since, quote(since)):
            status, body = await memory.ask(spelled)
            assert (status, seconds(read_document(body.encode()))) == (200, [])


async def test_topics_are_listed_newest_first_in_pages(hub: Client, clock: Clock):
    for number in range(5):
        clock.advance(seconds=1)
        await hub.accepted(fragment(0, 1), topic=f"{TOPIC}?{number}")
    await hub.publish(b"<p>", topic="https://blog.example/", Content_Type="text/html")
    found: list[dict[str, Any]] = []
    url: str | None = "topics?limit=2"
    while url is not None:
        async with hub.session.get(hub.url + url) as answer:
            page = await answer.json()
        assert len(page["topics"]) == 2
        found += page["topics"]
        url = page["next"] and page["next"].removeprefix(hub.url)
    assert [row["topic"] for row in found] == [
        "https://blog.example/",
        *(f"{TOPIC}?{number}" for number in reversed(range(5))),
    ]
    assert (found[0]["whole"], found[0]["changes"]) == (True, None)
    assert found[1]["begins"] == format_datetime(at(0))
    assert found[1]["through"] == format_datetime(at(1))
    assert found[1]["received"] == format_datetime(clock())
    status, body = await hub.get(found[1]["changes"].removeprefix(hub.url))
    assert (status, seconds(read_document(body.encode()))) == (200, [1])


async def test_an_invalid_cursor_of_the_list_is_refused(hub: Client):
    assert (await hub.get("topics?after=nowhere"))[0] == 400


#: The instants of a history, in whole seconds, some of them more than once.
HISTORY = st.lists(st.integers(1, 40), min_size=1, max_size=30).map(sorted)


@given(data=st.data(), history=HISTORY, limit=st.integers(1, 9))
def test_pages_contain_the_whole_history_however_it_was_fragmented(
    data: st.DataObject, history: list[int], limit: int
):
    """Fragments have random boundaries, overlap, are repeated and in any order."""
    cuts = data.draw(st.lists(st.integers(0, 40), max_size=8).map(lambda c: sorted({0, *c, 40})))
    back = data.draw(st.integers(0, 5))
    bodies = [
        fragment(
            max(0, from_ - back),
            *(second for second in history if max(0, from_ - back) < second <= until),
            until=until,
        )
        for from_, until in pairwise(cuts)
    ]
    fragments = [read_fragment(body) for body in data.draw(st.permutations(bodies))]
    since, told = at(data.draw(st.integers(0, 40))), []
    expected = sorted({second for second in history if at(second) > since})
    while True:
        later = [each for each in fragments if each.until > since]
        if not later:
            break
        page = make_page(later, since=since, limit=limit)
        assert page.until > page.since == since
        told += [entry.changed_at for entry in page.entries]
        since = page.until
    assert told == [at(second) for second in expected]


@given(history=HISTORY, hole=st.integers(1, 39), limit=st.integers(1, 9))
def test_no_page_extends_across_a_gap(history: list[int], hole: int, limit: int):
    ends = [(0, hole), (hole + 0.5, 41)]
    fragments = [
        read_fragment(
            fragment(from_, *(s for s in sorted(set(history)) if from_ < s <= until), until=until)
        )
        for from_, until in ends
    ]
    since = at(0)
    while since < at(hole):
        since = make_page(fragments, since=since, limit=limit).until
        assert since <= at(hole)
    with pytest.raises(UnknownChanges) as error:
        make_page(fragments[1:], since=since, limit=limit)
    assert error.value.begins == at(hole + 0.5)


def test_a_later_change_of_an_already_published_second_is_included():
    early = read_fragment(fragment(0, 5))
    late = read_fragment(fragment(5, 5, 6).replace(b"data/5<", b"data/other<"))
    page = make_page([early, late], since=at(0), limit=10)
    assert [entry.uri.rpartition("/")[2] for entry in page.entries] == ["5", "other", "6"]
    page = make_page([late], since=at(5), limit=1)
    assert [entry.uri.rpartition("/")[2] for entry in page.entries] == ["other", "6"]
    assert page.until == at(6)


def test_changes_of_one_instant_are_on_one_page():
    body = fragment(0, 1, 2, 2, 2, 3)
    for place in (b"a", b"b", b"c"):
        body = body.replace(b"data/2<", b"data/" + place + b"<", 1)
    whole = read_fragment(body)
    pages = []
    since = at(0)
    while since < at(3):
        page = make_page([whole], since=since, limit=2)
        pages.append(len(page.entries))
        since = page.until
    assert pages == [1, 3, 1]


def test_an_entry_without_a_datetime_gets_the_inferred_one():
    whole = read_fragment(
        fragment(0, 1, 2).replace(b' datetime="2026-01-01T00:00:02.000000Z"', b"")
    )
    page = make_page([whole], since=at(0), limit=10)
    assert [entry.changed_at for entry in page.entries] == [at(1), at(1)]
