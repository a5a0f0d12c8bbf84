"""Conditional requests."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime

import pytest
from aiohttp import web
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from rsnotify.format.model import Capability, Document, Link, Rel, Resource
from rsnotify.selection import Selection
from rsnotify_subscriber.fetching.fetcher import DocumentCache
from tests.subscriber.destination import ANEW, Destination
from tests.subscriber.source import SmallSource, path_of


class Conditional:
    """Answers requests for content, and keeps the condition of each."""

    def __init__(self, field: str, answer: Callable[[str | None], web.Response]) -> None:
        self.conditions: list[str | None] = []
        self._field = field
        self._answer = answer

    async def __call__(self, request: web.Request) -> web.StreamResponse:
        self.conditions.append(request.headers.get(self._field))
        return self._answer(self.conditions[-1])


@pytest.fixture
def listed(source: SmallSource) -> Callable[[int], None]:
    """List a resource without a hash, as modified on a day of January."""
    source.put("a", b"content")
    source.changes.clear()

    def list_at(day: int) -> None:
        source.list_only(Resource(source.base + "a", lastmod=datetime(2026, 1, day, tzinfo=UTC)))

    return list_at


@pytest.mark.parametrize(
    ("validator", "has_hash"), [('"the same"', True), ('W/"1"', False)], ids=["hash", "weak"]
)
async def test_what_a_hash_tells_apart_or_a_weak_validator_names_is_asked_for_without_a_condition(
    validator: str, has_hash: bool, source: SmallSource, destination: Destination
) -> None:
    def answer(_: str | None) -> web.Response:
        return web.Response(body=source.contents["a"], headers={"ETag": validator})

    await destination.catch_up()
    source.answers[path_of("a")] = asked = Conditional("If-None-Match", answer)
    for number in (1, 2):
        source.put("a", b"%d" % number)
        if number == 1 or not has_hash:
            source.changes[-1] = replace(source.changes[-1], hash=None, length=None)
        await destination.catch_up()
    assert asked.conditions == [None, None]
    assert destination.equals_source()


async def test_a_validator_counts_for_the_representation_that_it_came_with(
    source: SmallSource, destination: Destination
) -> None:
    conditions = []

    async def answer(request: web.Request) -> web.StreamResponse:
        conditions.append(request.headers.get("If-Modified-Since"))
        return web.Response(
            body=request.path.encode(),
            headers={"Last-Modified": "Sun, 01 Feb 2026 00:00:00 GMT"},
        )

    turtle = Link(Rel.ALTERNATE, source.base + "a.ttl", type="text/turtle")
    source.put("a", b"")
    source.changes.clear()
    source.list_only(Resource(source.base + "a", links=(turtle,)))
    source.answers |= {path_of("a"): answer, "/data/a.ttl": answer}
    await destination.catch_up()
    await destination.catch_up(prefer="text/turtle")
    assert destination.files() == {"a": b"/data/a.ttl"}
    assert conditions == [None, None]


async def test_what_is_listed_as_modified_earlier_than_what_is_held_is_asked_for_without_one(
    source: SmallSource, destination: Destination, listed: Callable[[int], None]
) -> None:
    """A server may answer 304 to all that is no later than the date it is asked with."""
    modified = {1: "Thu, 01 Jan 2026 00:00:00 GMT", 2: "Fri, 02 Jan 2026 00:00:00 GMT"}
    for day in (2, 1):  # it is restored from a copy
        source.contents["a"] = b"of day %d" % day

        def answer(condition: str | None, day: int = day) -> web.Response:
            if condition is not None:
                return web.Response(status=304)
            headers = {"Last-Modified": modified[day]}
            return web.Response(body=b"of day %d" % day, headers=headers)

        source.answers[path_of("a")] = Conditional("If-Modified-Since", answer)
        listed(day)
        await destination.become_equal(selection=Selection() if day == 2 else ANEW)


# However many documents are kept, they take no more room than they may.


CONDITION = ("If-None-Match", '"1"')


def document(entries: int) -> Document:
    resources = tuple(Resource(f"https://a.example/{n}") for n in range(entries))
    return Document(Capability.CHANGE_LIST, resources)


@given(st.lists(st.tuples(st.integers(0, 5), st.integers(0, 12))))
def test_the_latest_documents_are_kept_within_limits(
    puts: list[tuple[int, int]],
) -> None:
    kept = DocumentCache(documents=3, entries=10)
    last: dict[str, Document] = {}
    for number, entries in puts:
        uri = str(number)
        last[uri] = document(entries)
        kept.put(uri, last[uri], CONDITION)
        found = {uri: one.document for uri in last if (one := kept.get(uri))}
        assert len(found) == len(kept) <= 3
        assert sum(len(one.resources) for one in found.values()) <= 10
        assert (uri in found) == (entries <= 10)
        assert found.items() <= last.items()


def test_a_document_that_is_used_stays_longer() -> None:
    kept = DocumentCache(documents=2, entries=100)
    kept.put("a", document(1), CONDITION)
    kept.put("b", document(1), CONDITION)
    assert kept.get("a") is not None
    kept.put("c", document(1), CONDITION)
    assert kept.get("b") is None
    assert kept.get("a") is not None


def test_a_document_without_a_validator_takes_the_place_of_the_one_before() -> None:
    kept = DocumentCache()
    kept.put("a", document(1), CONDITION)
    kept.put("a", document(2), None)
    assert kept.get("a") is None


def test_inline_content_counts_as_its_memory() -> None:
    kept = DocumentCache(documents=100, entries=1_000)
    content = Link("alternate", "data:," + "x" * 1_000_000)
    inline = Document(Capability.CHANGE_LIST, (Resource("https://a.example/", links=(content,)),))
    for number in range(50):
        kept.put(str(number), inline, CONDITION)
    assert len(kept) == 1
    kept.put("49", document(1), CONDITION)
    kept.put("50", document(999), CONDITION)
    assert len(kept) == 2
