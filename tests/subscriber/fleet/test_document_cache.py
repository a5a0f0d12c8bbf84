"""However many documents are kept, they take no more room than they may."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from rsnotify.format.model import Capability, Document, Link, Resource
from rsnotify_subscriber.fetching.fetcher import DocumentCache

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
