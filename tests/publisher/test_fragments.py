"""Fragments, the URLs of hubs, and where feeds resume, without I/O."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rsnotify.errors import ConfigurationError
from rsnotify.format.datetimes import from_microseconds
from rsnotify.format.model import ChangeType, Document, Resource
from rsnotify.format.reader import read_document
from rsnotify.format.writer import Profile
from rsnotify_publisher import parse_hub
from rsnotify_publisher.hubs import advertised, parse_hubs
from rsnotify_publisher.journal import JournalState
from rsnotify_publisher.push.hub_feed import (
    FragmentWriter,
    OutgoingFragment,
    resume_at,
)
from rsnotify_publisher.push.hub_push import _RETRY, NodeRotation
from tests.publisher.helpers import BASE, chain_of
from tests.publisher.packed import sha256

ORIGIN = from_microseconds(0)


def changes(count: int) -> list[Resource]:
    return [
        Resource(BASE + str(at), change=ChangeType.UPDATED, datetime=from_microseconds(at))
        for at in range(1, count + 1)
    ]


def written(
    given: Sequence[Resource], *, entries: int = 100, size: int = 10**6, **contents: bytes
) -> list[OutgoingFragment]:
    writer = FragmentWriter(BASE + "capabilitylist.xml", max_entries=entries, max_bytes=size)
    by_uri = {BASE + name: content for name, content in contents.items()}
    return list(writer.fragments(ORIGIN, given, by_uri))


def read(fragments: list[OutgoingFragment]) -> list[Document]:
    return [read_document(fragment.body) for fragment in fragments]


@given(st.integers(1, 40), st.integers(1, 12), st.integers(300, 3000))
def test_fragments_of_any_size_join_and_contain_every_change(count: int, entries: int, size: int):
    fragments = written(changes(count), entries=entries, size=size)
    documents = read(fragments)
    assert [entry.uri for d in documents for entry in d.resources] == [
        change.uri for change in changes(count)
    ]
    intervals = chain_of(documents)
    assert intervals == [(fragment.from_, fragment.until) for fragment in fragments]
    assert intervals[0][0] == ORIGIN
    assert all(later[0] == earlier[1] for earlier, later in pairwise(intervals))
    assert all(len(document.resources) <= entries for document in documents)


def test_a_fragment_is_a_change_notification_with_an_up_link():
    (document,) = read(written(changes(2)))
    assert document.capability == "change-notification"
    assert document.link("up") == BASE + "capabilitylist.xml"
    assert document.until == document.resources[-1].datetime


def test_a_change_larger_than_a_fragment_has_its_own_fragment():
    assert [len(document.resources) for document in read(written(changes(3), size=10))] == [1] * 3


def test_a_heartbeat_has_no_entries():
    writer = FragmentWriter(BASE, max_entries=1, max_bytes=1)
    document = read_document(writer.heartbeat(ORIGIN, from_microseconds(9)).body)
    assert (document.from_, document.until) == (ORIGIN, from_microseconds(9))
    assert document.resources == ()


def with_hash(content: bytes) -> Resource:
    return Resource(
        BASE + "a", change=ChangeType.UPDATED, datetime=from_microseconds(1), hash=sha256(content)
    )


def test_only_the_last_change_of_a_resource_has_inline_content():
    first, last = with_hash(b"one"), with_hash(b"one")
    (document,) = read(written([first, last], a=b"one"))
    assert [len(entry.links) for entry in document.resources] == [0, 1]


@pytest.mark.parametrize(
    ("url", "uri", "others"),
    [
        # A host, or a URL that ends in a slash, is the base of a hub, fed over its WebSocket.
        ("https://h.example:8443", "wss://h.example:8443/ws", ["https://h.example:8443/websub"]),
        ("http://h.example/", "ws://h.example/ws", ["http://h.example/websub"]),
        (
            "https://h.example/a/push/",
            "wss://h.example/a/push/ws",
            ["https://h.example/a/push/websub"],
        ),
        ("wss://h.example/push/", "wss://h.example/push/ws", []),
        ("http://h.example/x/publish", "http://h.example/x/publish", []),
        ("wss://h.example/push", "wss://h.example/push", []),
        # Fragments are posted to other hubs, even if the URL ends in a slash.
        ("websub+https://h.example/", "https://h.example/", []),
        ("websub+http://h.example/push/", "http://h.example/push/", []),
        ("websub+https://h.example", "https://h.example", []),
    ],
)
def test_the_url_determines_what_is_fed_and_advertised(url: str, uri: str, others: list[str]):
    hub = parse_hub(url, "secret")
    assert (hub.uri, hub.advertised, hub.token) == (uri, (*others, uri), "secret")


@pytest.mark.parametrize(
    "url",
    [
        *("hub.example", "amqp://hub.example/", "http://", "http://h:x/", "http://h/?a=1", ""),
        *("websub+ws://h.example/", "websub+mqtt://h.example/", "websub+ftp://h.example/"),
        "https://user:hunter2@hub.example/",
    ],
)
def test_invalid_hub_urls_are_refused(url: str):
    with pytest.raises(ConfigurationError) as raised:
        parse_hub(url)
    assert "is not the URL of a hub" in str(raised.value) or "websub+" not in url
    assert "hunter2" not in str(raised.value)


@pytest.mark.parametrize("token", ["secret\n", "sec\rret", "secret\0", "secret\x7f"])
def test_a_token_with_a_control_character_is_refused_without_showing_it(token: str):
    with pytest.raises(ConfigurationError) as raised:
        parse_hub("https://hub.example/", token)
    assert "sec" not in str(raised.value)


def test_the_repr_of_a_hub_does_not_contain_the_token():
    assert "secret" not in repr(parse_hub("https://hub.example/", "secret"))


def test_nodes_may_be_advertised_by_another_url():
    nodes = "https://hub1.example/,https://hub2.example/"
    (hub,) = parse_hubs([nodes], advertise=["https://hub.example/"])
    assert hub.nodes == ("wss://hub1.example/ws", "wss://hub2.example/ws")
    assert hub.advertised == ("https://hub.example/websub", "wss://hub.example/ws")


def test_duplicate_nodes_are_ignored():
    assert parse_hub("https://h.example,https://h.example/").other_nodes == ()


def test_websub_is_advertised_first():
    hubs = (parse_hub("wss://a.example/ws"), parse_hub("https://b.example/"))
    assert advertised(hubs) == (
        "https://b.example/websub",
        "wss://a.example/ws",
        "wss://b.example/ws",
    )


@pytest.mark.parametrize(
    ("through", "cursor", "start"),
    [(None, 50, 50), (60, 50, 60), (40, 50, 40), (5, 50, 10), (None, 5, 10), (999, 50, 90)],
    ids=[
        "an empty hub goes on from the cursor",
        "what was not noted is not sent again",
        "what the hub lost is sent again",
        "as far as the journal reaches",
        "a cursor before the journal begins where that does",
        "a hub ahead of us waits for what is new",
    ],
)
def test_where_the_feed_of_a_hub_starts(through: int | None, cursor: int, start: int):
    state = JournalState(80, applied=80, promised=90, pruned=10, closed=10, tracked=1, sum=None)
    assert resume_at(through, cursor, state) == start


def test_a_fragment_for_readers_of_1_0_has_the_datetime_in_lastmod():
    writer = FragmentWriter(BASE, max_entries=9, max_bytes=10**6, profile=Profile.V1_0)
    (fragment,) = writer.fragments(ORIGIN, changes(1), {})
    (entry,) = read_document(fragment.body).resources
    assert (entry.datetime, entry.lastmod) == (None, from_microseconds(1))


# Which node of a hub is tried next, and when, without clocks and connections.


#: A failure: whether the node accepted anything, its Retry-After, whether all nodes would fail.
FAILURES = st.lists(
    st.tuples(st.booleans(), st.sampled_from([0.0, 0.0, 5.0, 100.0]), st.booleans()), max_size=40
)


def rotation(*nodes: str) -> NodeRotation:
    return NodeRotation(nodes, Random(1))


def test_the_next_node_is_not_tried_at_once_if_every_node_would_refuse():
    nodes = rotation("a", "b")
    assert nodes.select_next(0.0, progressed=False, retry_after=7.0, everywhere=True) == 7.0
    assert nodes.current == "b"


@given(FAILURES)
def test_a_single_node_is_retried_after_a_backoff_that_doubles(
    failures: list[tuple[bool, float, bool]],
):
    nodes, expected, row, now = rotation("a"), Random(1), 0, 0.0
    for progressed, retry_after, everywhere in failures:
        row = 1 if progressed else row + 1
        wait = nodes.select_next(
            now, progressed=progressed, retry_after=retry_after, everywhere=everywhere
        )
        assert wait == pytest.approx(_RETRY.delay(row, expected, at_least=retry_after))
        now += wait


@given(FAILURES, st.integers(2, 5))
def test_no_node_is_retried_without_a_wait_or_before_its_retry_after(
    failures: list[tuple[bool, float, bool]], count: int
):
    names = [str(number) for number in range(count)]
    nodes, now = rotation(*names), 0.0
    allowed = dict.fromkeys(names, 0.0)
    tried: set[str] = set()
    for progressed, retry_after, everywhere in failures:
        node = nodes.current
        assert now >= allowed[node] - 1e-6
        tried = {node} if progressed else tried | {node}
        for each in names if everywhere else [node]:
            allowed[each] = now + retry_after
        could = {name for name in names if name not in tried and allowed[name] <= now}
        wait = nodes.select_next(
            now, progressed=progressed, retry_after=retry_after, everywhere=everywhere
        )
        if wait:
            assert everywhere or not could, "a node that could be tried was not"
            tried = set()
        else:
            assert nodes.current in could
        now += wait


@given(st.integers(2, 5), st.data())
def test_a_working_node_is_reached_before_the_first_wait(count: int, data: st.DataObject):
    names = [str(number) for number in range(count)]
    living = data.draw(st.sampled_from(names))
    nodes, waits = rotation(*names), 0.0
    while nodes.current != living:
        waits += nodes.select_next(0.0, progressed=False)
    assert waits == 0.0
