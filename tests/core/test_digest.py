"""The digest of a set of resources: as docs/audit.md has it, in any order, by any history."""

from __future__ import annotations

import json
import re
from hashlib import sha256
from pathlib import Path
from random import Random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rsnotify.errors import InvalidDocument
from rsnotify.format.hashes import (
    AUDIT_NS,
    FORMS,
    SetDigest,
    SetSum,
    agree,
    content_hash,
    set_digest,
    term,
)
from rsnotify.format.model import Capability, Document
from rsnotify.format.reader import read_document
from rsnotify.format.writer import write_document
from tests.examples_count import examples

DOCS = Path(__file__).resolve().parents[2] / "docs"
PAGE = (DOCS / "audit.md").read_text("utf-8")
VECTORS = json.loads((DOCS / "audit-vectors.json").read_text("utf-8"))
URIS = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), min_size=1)
HASHES = st.one_of(
    st.none(),
    st.just("md5:" + "0" * 32),
    st.integers(0, 5).map(lambda number: f"sha-256:{number:064x}"),
)
SETS = st.dictionaries(URIS, HASHES, max_size=20)


def sum_of(resources: dict[str, str | None]) -> SetSum:
    total = SetSum()
    total.add(resources.items())
    return total


@pytest.mark.parametrize("vector", VECTORS["resources"], ids=lambda vector: vector["about"])
def test_a_resource_counts_as_the_number_of_the_vectors(vector: dict[str, str]) -> None:
    counted = content_hash(f"sha-256:{vector['sha-256']}")
    assert counted is not None
    assert f"{vector['uri']}\0{counted}".encode().hex() == vector["bytes"]
    assert f"{term(vector['uri'], counted):032x}" == vector["number"]


@pytest.mark.parametrize("vector", VECTORS["attributes"], ids=lambda vector: vector["hash"][:24])
def test_a_hash_attribute_is_read_as_in_the_vectors(vector: dict[str, str | None]) -> None:
    assert content_hash(vector["hash"]) == vector["counts_as"]


@pytest.mark.parametrize(
    ("first", "second", "outcome"),
    [
        ("md5:aa sha-256:bb", "md5:aa sha-256:bb", True),
        ("md5:aa sha-256:bb", "md5:aa sha-256:cc", False),
        ("md5:aa sha-256:bb", "sha-256:bb sha-512:cc", True),
        ("SHA-256:AB", "sha256:ab", True),
        ("sha256:ab", "SHA-256:AB", True),
        ("sha-256:aa", "sha-256:qg==", None),
        ("sha-256:aa sha-256:qg==", "sha-256:bb", False),
        ("md5: sha-256:aa", "md5: sha-256:aa", True),
        ("md5:aa", "sha-256:aa", None),
        ("md5:aa", None, None),
        (None, "md5:aa", None),
        ("", "", None),
    ],
)
def test_hashes_agree_if_all_of_their_common_algorithms_do(
    first: str | None, second: str | None, outcome: bool | None
) -> None:
    assert agree(first, second) is outcome


def test_a_history_has_the_digests_of_the_vectors() -> None:
    total, held = SetSum(), dict[str, str | None]()
    for step in VECTORS["history"]:
        uri = step["uri"]
        if uri in held:
            total.remove([(uri, held.pop(uri))])
        if step["change"] != "deleted":
            held[uri] = step.get("hash")
            total.add([(uri, held[uri])])
        said = total.digest()
        assert total.count == step["count"]
        assert (said.digest if said else None) == step["digest"]


def test_a_thousand_resources_have_the_digest_of_the_vectors() -> None:
    contents = {f"https://source.example/data/{n}": str(n).encode() for n in range(1_000)}
    total = sum_of({uri: f"sha-256:{sha256(one).hexdigest()}" for uri, one in contents.items()})
    vector = VECTORS["thousand"]
    assert total.digest() == SetDigest(vector["count"], vector["digest"])


@pytest.mark.parametrize("vector", VECTORS["documents"], ids=lambda vector: vector["about"])
def test_a_document_has_the_digest_of_the_test_vectors(vector: dict) -> None:
    document = read_document(vector["xml"].encode())
    if vector.get("refused"):
        with pytest.raises(InvalidDocument, match="audit"):
            set_digest(document)
    else:
        said = vector["says"]
        assert set_digest(document) == (SetDigest(**said) if said else None)


def test_the_program_on_the_page_computes_the_vectors() -> None:
    (program,) = re.findall(r"^```python\n(.*?)^```", PAGE, re.DOTALL | re.MULTILINE)
    names: dict[str, Any] = {}
    exec(program, names)
    for vector in VECTORS["resources"]:
        assert f"{names['number'](vector['uri'], vector['sha-256']):032x}" == vector["number"]
    total = names["Sum"]()
    for step in VECTORS["history"]:
        digest = step.get("hash", "").removeprefix("sha-256:")
        if digest or step["change"] == "deleted":
            total.change(step["uri"], digest or None)
        if step["digest"] is not None:
            written = f'audit:count="{step["count"]}" audit:hash="sha-256" '
            assert total.attributes() == f'{written}audit:digest="{step["digest"]}"'


def test_the_page_documents_the_written_attributes() -> None:
    assert f"`{AUDIT_NS}`" in PAGE
    for name in FORMS:
        assert f"| `{name}` |" in PAGE


@settings(max_examples=examples(50))
@given(SETS, SETS, st.randoms())
def test_every_sequence_of_changes_between_two_sets_gives_the_same_sum(
    before: dict[str, str | None], after: dict[str, str | None], random: Random
) -> None:
    total = sum_of(before)
    steps = [(total.remove, one) for one in before.items()]
    steps += [(total.add, one) for one in after.items()]
    random.shuffle(steps)
    for work, one in steps:
        work([one])
    assert str(total) == str(sum_of(after))


@settings(max_examples=examples(50))
@given(SETS, SETS)
def test_two_sets_have_one_digest_only_if_they_are_the_same(
    one: dict[str, str | None], other: dict[str, str | None]
) -> None:
    ours, theirs = sum_of(one).digest(), sum_of(other).digest()
    if ours is None or theirs is None:
        assert None in map(content_hash, (*one.values(), *other.values()))
    else:
        assert (ours == theirs) is (one == other)


@settings(max_examples=examples(50))
@given(SETS)
def test_a_sum_that_was_kept_goes_on_as_before(resources: dict[str, str | None]) -> None:
    total = SetSum.parse(str(sum_of(resources)))
    again = total.copy()
    again.remove(resources.items())
    assert (str(again), str(total)) == (str(SetSum()), str(sum_of(resources)))


@settings(max_examples=examples(50))
@given(SETS)
def test_a_digest_written_into_a_document_is_read_back(resources: dict[str, str | None]) -> None:
    said = sum_of(resources).digest()
    attributes = said.attributes if said else ()
    document = Document(Capability.CHANGE_NOTIFICATION, attributes=attributes)
    assert set_digest(read_document(write_document(document))) == said
