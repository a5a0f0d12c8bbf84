"""`hub.mode=publish`: the hub fetches the topic itself."""

from __future__ import annotations

import gzip
from collections.abc import AsyncIterator

import pytest

from rsnotify.format.model import Document
from rsnotify.format.reader import read_document
from rsnotify.format.writer import write_document
from tests.hub.conftest import RunHub
from tests.hub.helpers import Callback, Client, at, callback_server, changes, fragment


@pytest.fixture
async def callback() -> AsyncIterator[Callback]:
    async with callback_server() as server:
        server.headers = {"Content-Type": "application/xml"}
        yield server


def change_list(from_: float, *seconds: float) -> bytes:
    return write_document(
        Document(capability="changelist", from_=at(from_), resources=changes(*seconds))
    )


async def ping(hub: Client, channel: Callback) -> None:
    assert await hub.form(mode="publish", url=channel.url) == (202, "")


async def test_the_hub_fetches_a_pinged_topic_and_delivers_what_is_new(
    hub: Client, callback: Callback
):
    socket = await hub.listen(topic=callback.url)
    callback.document = change_list(0, 1, 2)
    await ping(hub, callback)
    assert (await socket.receive_str()).encode() == callback.document
    callback.document = change_list(0, 1, 2, 3, 4)
    await ping(hub, callback)
    news = read_document((await socket.receive_str()).encode())
    assert (news.from_, news.until, len(news.resources)) == (at(2), at(4), 2)


async def test_changes_too_large_for_a_fragment_are_announced_as_a_gap(
    run_hub: RunHub, callback: Callback
):
    async with run_hub(max_fragment_bytes=2000) as hub:
        socket = await hub.listen(topic=callback.url)
        callback.document = change_list(0, *range(1, 50))
        await ping(hub, callback)
        heard = read_document((await socket.receive_str()).encode())
        assert (heard.from_, heard.until, heard.resources) == (at(49), at(49), ())


@pytest.mark.parametrize(
    "document", [b"", b"<html>", fragment(0, 2, 1), b"<!DOCTYPE urlset>" + change_list(0, 1)]
)
async def test_a_channel_that_is_no_change_list_is_refused(
    hub: Client, callback: Callback, document: bytes
):
    callback.document = document
    status, reason = await hub.form(mode="publish", url=callback.url)
    assert status == 502
    assert callback.url in reason


async def test_a_topic_that_answers_with_an_error_is_refused(hub: Client, callback: Callback):
    callback.document = gzip.compress(change_list(0, 1))
    callback.headers = {"Content-Encoding": "gzip"}
    status, reason = await hub.form(mode="publish", url=callback.url)
    assert (status, "Content-Encoding" in reason) == (502, True)
    status, reason = await hub.form(mode="publish", url="http://127.0.0.1:9/")
    assert status == 502
