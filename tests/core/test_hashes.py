"""How content is verified against the hash and length that a document announced."""

from __future__ import annotations

import hashlib
from contextlib import nullcontext

import pytest

from rsnotify.errors import ContentMismatch, InvalidDocument
from rsnotify.format.hashes import (
    COUNT,
    DIGEST,
    HASH,
    Digester,
    SetSum,
    are_included,
    matches,
    set_digest,
    verified_hashes,
    verifies,
)
from rsnotify.format.model import Document, Resource

CONTENT = b"abc"
DIGITS = hashlib.sha256(CONTENT).hexdigest()
SHA256, MD5 = f"sha-256:{DIGITS}", f"md5:{hashlib.md5(CONTENT).hexdigest()}"
WRONG, UNKNOWN = f"sha-256:{'0' * 64}", "crc:1"


@pytest.mark.parametrize(
    ("announced", "length", "expected"),
    [
        (SHA256, None, SHA256),
        (f"sha-256:{DIGITS.upper()}", 3, SHA256),
        (SHA256, 4, None),
        (WRONG, 3, None),
        (MD5, 3, f"{SHA256} {MD5}"),
        (f"{MD5} {WRONG}", None, None),
        (UNKNOWN, None, SHA256),
        (None, 3, SHA256),
        (None, 4, None),
    ],
)
def test_content_is_verified_against_what_can_be_checked(
    announced: str | None, length: int | None, expected: str | None
) -> None:
    assert verified_hashes(CONTENT, announced, length) == expected
    assert verifies(CONTENT, announced, length) is (expected is not None)


@pytest.mark.parametrize(
    ("hashes", "expected"),
    [
        (SHA256, True),
        (f"sha-256:{DIGITS.upper()}", True),
        (WRONG, False),
        (MD5, True),
        (f"{SHA256} {MD5}", True),
        (f"{UNKNOWN} {MD5}", True),
        (f"{MD5} {WRONG}", False),
        ("md5:a:b", False),
        (UNKNOWN, None),
        (None, None),
    ],
)
def test_content_in_pieces_matches_all_known_hashes_of_an_attribute(
    hashes: str | None, expected: bool | None
) -> None:
    assert are_included(hashes, f"{SHA256} {MD5}") is expected
    assert matches(hashes, [CONTENT[:1], CONTENT[1:]]) is bool(expected)


@pytest.mark.parametrize(
    ("hash", "length", "fields", "is_right"),
    [
        (SHA256, 3, {}, True),
        (MD5, None, {}, True),
        (None, 3, {}, True),
        (UNKNOWN, None, {}, True),
        (WRONG, 3, {}, False),
        (WRONG, 4, {"recoded": True}, False),
        (SHA256, 4, {}, False),
        (SHA256, 4, {"recoded": True}, True),
        (None, 4, {"recoded": True}, False),
    ],
)
def test_a_wrong_length_is_accepted_only_of_encoded_content_with_the_right_hash(
    hash: str | None, length: int | None, fields: dict[str, bool], is_right: bool
) -> None:
    digester = Digester(hash)
    for piece in (CONTENT[:1], CONTENT[1:]):
        digester.update(piece)
    with nullcontext() if is_right else pytest.raises(ContentMismatch):
        digester.verify(Resource("http://a/", hash=hash, length=length), **fields)


def test_a_set_has_a_digest_only_if_each_of_its_resources_has_a_hash() -> None:
    total = SetSum()
    total.add([("http://a/", SHA256), ("http://b/", MD5)])
    assert (total.count, total.unhashed, total.digest()) == (2, 1, None)
    total.remove([("http://b/", MD5)])
    assert (total.count, total.unhashed) == (1, 0)


@pytest.mark.parametrize("lacking", [COUNT, HASH, DIGEST])
def test_a_digest_that_lacks_an_attribute_is_refused(lacking: str) -> None:
    attributes = {COUNT: "1", HASH: "sha-256", DIGEST: "0" * 32}
    del attributes[lacking]
    with pytest.raises(InvalidDocument):
        set_digest(Document(None, attributes=tuple(attributes.items())))
