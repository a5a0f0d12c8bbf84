"""Which content is inside its entry, as a link with a `data:` URI."""

from __future__ import annotations

import base64

import pytest

from rsnotify.format.inline_content import (
    decode_inline_content,
    may_be_inline,
    with_inline_content,
)
from rsnotify.format.model import INLINE_LIMIT, ChangeType, Resource

BASE = "http://a.example/"


def with_hash(content: bytes, **fields: object) -> Resource:
    known = Resource.of(BASE + "a", content).hash
    return Resource(BASE + "a", change=ChangeType.UPDATED, hash=known, **fields)


def test_small_content_is_sent_inline() -> None:
    change = with_hash(b"<a> <b> 'c' .", type='text/turtle; charset="utf-8"')
    (link,) = with_inline_content(change, b"<a> <b> 'c' .").links
    assert link.rel == "duplicate"
    head, _, data = link.href.partition(",")
    assert head == "data:text/turtle;%20charset=%22utf-8%22;base64"
    assert base64.b64decode(data) == b"<a> <b> 'c' ."


@pytest.mark.parametrize(
    ("change", "content"),
    [
        (with_hash(b"then"), b"now"),
        (with_hash(b"x" * (INLINE_LIMIT + 1)), b"x" * (INLINE_LIMIT + 1)),
        (with_hash(b"then"), None),
        (Resource(BASE + "a", change=ChangeType.UPDATED), b"now"),
        (Resource(BASE + "a", change=ChangeType.UPDATED, hash="crc:1"), b"now"),
    ],
    ids=["changed since", "too large", "not to be had", "no hash", "unknown hash"],
)
def test_other_content_is_not_sent_inline(change: Resource, content: bytes | None) -> None:
    assert with_inline_content(change, content) == change


@pytest.mark.parametrize("size", [0, INLINE_LIMIT])
def test_content_up_to_the_limit_is_sent_inline(size: int) -> None:
    assert with_inline_content(with_hash(b"x" * size), b"x" * size).links


@pytest.mark.parametrize(
    ("change", "worth"),
    [
        (with_hash(b"x"), True),
        (with_hash(b"x", length=INLINE_LIMIT), True),
        (with_hash(b"x", length=INLINE_LIMIT + 1), False),
        (Resource(BASE, change=ChangeType.UPDATED), False),
        (Resource(BASE, change=ChangeType.DELETED, hash="md5:0"), False),
    ],
)
def test_content_is_read_only_if_it_may_be_sent_inline(change: Resource, worth: bool) -> None:
    assert may_be_inline(change) is worth


@pytest.mark.parametrize(
    ("uri", "content"),
    [
        ("data:,a%20b,c", b"a b,c"),
        ("data:text/plain;base64,YQ==", b"a"),
        ("DATA:;BASE64,YQ%3D%3D", b"a"),
        ("data:;base64,Y*Q==", None),
        ("data:;base64,YQ", None),
        ("data:text/plain", None),
    ],
)
def test_inline_content_is_read_unless_it_is_malformed(uri: str, content: bytes | None) -> None:
    assert decode_inline_content(uri) == content
