"""Responses of callbacks, in any pieces, well-formed or not."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rsnotify.runtime.http_client import (
    MAX_EXCERPT_BYTES,
    MAX_HEAD_BYTES,
    MAX_RESPONSE_BYTES,
    ConnectionPool,
    HttpConnection,
    HttpOrigin,
    HttpReply,
    NoReply,
    ResponseReader,
    StaleConnection,
)

CHUNKED = b"HTTP/1.1 500 No\r\nTransfer-Encoding: chunked\r\n\r\n"

#: What comes, the answer that it is, and whether another request can follow.
ANSWERS = {
    b"HTTP/1.1 204 No Content\r\n\r\n": (HttpReply(204), True),
    b"HTTP/1.1 200 OK\r\nContent-Length: 3\r\n\r\nyes": (HttpReply(200), True),
    b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\nConnection: close\r\n\r\n": (HttpReply(200), False),
    b"HTTP/1.0 200 OK\r\nContent-Length: 0\r\n\r\n": (HttpReply(200), False),
    b"HTTP/1.0 200 OK\r\nConnection: keep-alive\r\nContent-Length: 0\r\n\r\n": (
        HttpReply(200),
        True,
    ),
    b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 103 Early Hints\r\nRetry-After: 1\r\n\r\n"
    b"HTTP/1.1 503 Later\r\nretry-after: 9\r\nContent-Length: 4\r\n\r\nwait": (
        HttpReply(503, "9", b"wait"),
        True,
    ),
    CHUNKED + b"3;why=not\r\nno \r\n2\r\nno\r\n0\r\nTrailer: x\r\n\r\n": (
        HttpReply(500, "", b"no no"),
        True,
    ),
    b"HTTP/1.1 302 Found\r\nLocation: http://127.0.0.1/\r\nContent-Length: 0\r\n\r\n": (
        HttpReply(302),
        True,
    ),
}


@given(answer=st.sampled_from(list(ANSWERS)), cuts=st.lists(st.integers(0, 200), max_size=8))
def test_an_answer_is_the_same_in_any_pieces(answer: bytes, cuts: list[int]):
    reader = ResponseReader()
    places = sorted({min(cut, len(answer)) for cut in cuts} | {0, len(answer)})
    for begin, end in pairwise(places):
        reader.feed(answer[begin:end])
    assert (reader.reply(), reader.reusable) == ANSWERS[answer]


def test_one_answer_after_another_is_read_on_one_connection():
    reader = ResponseReader()
    for answer, (reply, _) in ANSWERS.items():
        if b"close" not in answer and b"1.0" not in answer:
            reader.start()
            reader.feed(answer)
            assert (reader.reply(), reader.reusable) == (reply, True)


def test_a_success_is_known_by_its_head():
    reader = ResponseReader()
    reader.feed(b"HTTP/1.1 200 OK\r\nContent-Length: 1000000\r\n\r\n")
    assert (reader.reply(), reader.complete) == (HttpReply(200), False)


def test_the_beginning_of_a_failure_is_kept():
    reader = ResponseReader()
    reader.feed(b"HTTP/1.1 500 No\r\nContent-Length: 1000000\r\n\r\n")
    assert reader.reply() is None
    reader.feed(b"x" * 3 * MAX_EXCERPT_BYTES)
    assert reader.reply() == HttpReply(500, "", b"x" * MAX_EXCERPT_BYTES)


@pytest.mark.parametrize(
    "garbage",
    [
        b"220 mail.example ESMTP\r\n",
        b"HTTP/2.0 preface\r\n\r\n",
        bytes(range(256)),
        b"HTTP/1.1 200 OK\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\nxx",
        b"HTTP/1.1 200 OK\r\nContent-Length: -1\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nno header\r\n\r\n",
        b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: x\r\nConnection: upgrade\r\n\r\n",
        b"HTTP/1.1 101 Switching Protocols\r\n\r\n",
        b"HTTP/1.1 100 Continue\r\n\r\n" * 100,
    ],
)
def test_garbage_is_no_answer(garbage: bytes):
    reader = ResponseReader()
    with pytest.raises(NoReply):
        reader.feed(garbage)
    assert reader.rest() is None


@pytest.mark.parametrize("more", [b"HTTP/1.1 200 OK\r\n\r\n", b"garbage", b"\x00"])
def test_an_answer_counts_whatever_follows_it(more: bytes):
    reader = ResponseReader()
    with pytest.raises(NoReply):
        reader.feed(b"HTTP/1.1 500 No\r\nContent-Length: 2\r\n\r\nno" + more)
    assert reader.rest() == HttpReply(500, "", b"no")


HEAD, ALL = MAX_HEAD_BYTES, MAX_RESPONSE_BYTES


@pytest.mark.parametrize(
    ("beginning", "piece", "most"),
    [
        (b"HTTP/1.1 200 ", b"x" * 999, HEAD),
        (b"HTTP/1.1 200 OK\r\nX: ", b"x" * 999, HEAD),
        (b"HTTP/1.1 200 OK\r\n", b"X: " + b"x" * 99 + b"\r\n", HEAD),
        (b"HTTP/1.1 200 OK\r\nX", b"x" * 99, HEAD),
        (b"HTTP/1.1 500 No\r\n\r\n", b"x" * 999, ALL),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 999999999\r\n\r\n", b"x" * 999, ALL),
        (CHUNKED, b"1;x=" + b"x" * 99 + b"\r\nx\r\n", ALL),
        (CHUNKED + b"1;x=", b"x" * 99, ALL),
        (CHUNKED + b"0\r\n", b"X: " + b"x" * 99 + b"\r\n", ALL),
        (CHUNKED + b"0\r\nX: ", b"x" * 99, ALL),
    ],
)
def test_an_endless_response_is_aborted_soon(beginning: bytes, piece: bytes, most: int):
    assert endless(beginning, piece) <= most + len(piece)


def endless(beginning: bytes, piece: bytes) -> int:
    """Feed a piece repeatedly until it is refused; return how much was accepted."""
    reader, taken = ResponseReader(), 0
    reader.feed(beginning)
    while True:
        try:
            reader.feed(piece)
        except NoReply:
            return taken
        taken += len(piece)


@given(st.binary(max_size=300), st.sampled_from([b"", b"HTTP/1.1 200 OK\r\n", CHUNKED]))
def test_any_bytes_are_at_most_refused(data: bytes, beginning: bytes):
    reader = ResponseReader()
    with suppress(NoReply):
        reader.feed(beginning + data)
    assert reader.complete or reader.status in (0, 200, 500)


class Sink(asyncio.Transport):
    """A transport whose bytes go nowhere."""

    def is_closing(self) -> bool:
        return False

    def write(self, data: object) -> None: ...

    def abort(self) -> None: ...


async def test_answers_that_arrive_in_turns_are_read_apart():
    pool, outcomes = ConnectionPool(), list[HttpReply | Exception]()
    one, other = (HttpConnection(HttpOrigin(False, "a.example", 80), pool) for _ in range(2))
    for connection in (one, other):
        connection.connection_made(Sink())
        assert connection.send(b"", outcomes.append)
    one.data_received(b"HTTP/1.1 503 Later\r\nRetry-After: 9\r\nContent-Le")
    other.data_received(b"HTTP/1.1 204 No Content\r\n\r\n")
    assert other.send(b"", outcomes.append)
    other.data_received(b"HTTP/1.1 500 ")
    one.data_received(b"ngth: 4\r\n\r\nwait")
    other.data_received(b"No\r\nContent-Length: 2\r\n\r\nno")
    assert outcomes == [
        HttpReply(204),
        HttpReply(503, "9", b"wait"),
        HttpReply(500, "", b"no"),
    ]
    assert len(pool) == 2
    pool.close()


async def test_a_connection_that_has_ended_sends_nothing_and_a_closed_pool_keeps_none():
    pool = ConnectionPool()
    connection = HttpConnection(HttpOrigin(False, "a.example", 80), pool)
    assert not connection.send(b"", list[object]().append)
    with pytest.raises(StaleConnection):
        await connection.request(b"")
    pool.close()
    connection.connection_made(Sink())
    pool.keep(connection)
    assert len(pool) == 0
