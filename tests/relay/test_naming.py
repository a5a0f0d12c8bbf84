"""The mapping between URIs at the Source and at the relay."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rsnotify_publisher.changes import check_uri
from rsnotify_relay.republisher import RelayNaming

BASE = "http://a.example/data/"
OURS = "https://relay.example/r/"
NAMING = RelayNaming(BASE, OURS)


@pytest.mark.parametrize(
    ("theirs", "relative"),
    [
        (BASE + "maps/1.ttl", "maps/1.ttl"),
        (BASE + "a%20b?c=d", "a%20b?c=d"),
        ("http://b.example/x?y", "@@http/b.example/x?y"),
        ("https://b.example/", "@@https/b.example/"),
        (BASE, "@@http/a.example/data/"),
        (BASE + "channel.xml", "@@http/a.example/data/channel.xml"),
        (BASE + "resourcesync/x", "@@http/a.example/data/resourcesync/x"),
        (BASE + ".well-known/x", "@@http/a.example/data/.well-known/x"),
        (BASE + "robots.txt", "@@http/a.example/data/robots.txt"),
        (BASE + "@@http/b.example/x", "@@http/a.example/data/@@http/b.example/x"),
        (BASE + "a/../b", "@@/http%3A%2F%2Fa.example%2Fdata%2Fa%2F..%2Fb"),
        (BASE + "a/%2e%2E/b", "@@/http%3A%2F%2Fa.example%2Fdata%2Fa%2F%252e%252E%2Fb"),
        (BASE + "a#b", "@@/http%3A%2F%2Fa.example%2Fdata%2Fa%23b"),
        (BASE + "é", "@@/http%3A%2F%2Fa.example%2Fdata%2F%C3%A9"),
        ("urn:x:y", "@@/urn%3Ax%3Ay"),
        ("http://b.example", "@@/http%3A%2F%2Fb.example"),
    ],
)
def test_a_resource_below_the_base_keeps_its_relative_uri(theirs: str, relative: str) -> None:
    assert NAMING.relay_uri(theirs) == OURS + relative
    assert NAMING.source_uri(OURS + relative) == theirs


def test_a_resource_whose_uri_would_be_too_long_has_none() -> None:
    assert NAMING.relay_uri(BASE + "x" * 8_192) is None


PIECES = st.sampled_from(
    ["@@", "@@http/", "@@/", "a", "/", "..", ".", "%2e", "%2F", "?", "#", "%", "é", "channel.xml"]
)
ROOTS = st.sampled_from([BASE, "http://b.example/", "https://b.example"])
URIS = st.tuples(ROOTS, st.lists(PIECES, max_size=6).map("".join)).map("".join)


@given(URIS)
def test_every_uri_is_mapped_to_one_that_can_be_requested_and_back(uri: str) -> None:
    ours = NAMING.relay_uri(uri)
    assert ours is not None
    check_uri(ours)
    assert NAMING.source_uri(ours) == uri
