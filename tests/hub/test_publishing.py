"""`POST /websub` with fragments."""

from __future__ import annotations

import sqlite3
from pathlib import Path

import pytest

from rsnotify_hub.store.sqlite_store import SqliteStore
from tests.hub.conftest import RunHub
from tests.hub.helpers import TOPIC, Client, fragment
from tests.hub.raw_sockets import answer_to

TOKEN = "a-token-of-a-source"


def bodies(folder: Path) -> list[bytes]:
    database = sqlite3.connect(folder / "hub" / "hub.sqlite")
    try:
        return [body for (body,) in database.execute("SELECT body FROM fragment")]
    finally:
        database.close()


async def test_a_fragment_is_durable_before_it_is_accepted_and_kept_once(
    hub: Client, tmp_path: Path
):
    for _ in range(2):
        await hub.accepted(fragment(0, 1))
        assert bodies(tmp_path) == [fragment(0, 1)]


@pytest.mark.parametrize(
    "body", [b"", fragment(0, 2, 1), fragment(0, 1, capability="resourcelist")]
)
async def test_a_bad_fragment_is_refused_with_a_reason_and_nothing_is_kept(
    hub: Client, tmp_path: Path, body: bytes
):
    status, reason = await hub.publish(body)
    assert status == 400
    assert reason.startswith("document")
    assert bodies(tmp_path) == []


async def test_a_fragment_needs_one_topic(hub: Client):
    for link in ("", '<https://hub.example/>; rel="hub"', f'<{TOPIC}>; rel="self self"'):
        status, reason = await hub.publish(fragment(0, 1), Link=link)
        assert (status, 'rel="self"' in reason) == (400, True)
    status, reason = await hub.publish(fragment(0, 1), Link="<urn:x>; rel=self")
    assert (status, "absolute http" in reason) == (400, True)


async def test_headers_of_odd_bytes_are_refused(hub: Client):
    status, reason = await hub.publish(fragment(0, 1), Content_Type="application/xml; x=\xe9")
    assert (status, "Content-Type" in reason) == (400, True)
    head = "POST /websub HTTP/1.1", "Host: localhost", "Connection: close", "Content-Length: 0"
    odd = "Content-Type: application/xml", 'Link: <https://a.example/>; rel="self"'
    sent = "\r\n".join([*head, *odd, "Authorization: Bearer \xff\xfe", "", ""]).encode("latin-1")
    assert b" 403 " in await answer_to(hub.url, sent)


async def test_no_client_is_local_to_a_hub_with_a_public_address(run_hub: RunHub):
    topics = ["https://open.example/"]
    async with run_hub(public_url="https://hub.example", open_topics=topics) as hub:
        assert (await hub.publish(fragment(0, 1)))[0] == 401
    async with run_hub(host="0.0.0.0", public_url="http://localhost", open_topics=topics) as hub:
        hub.url = hub.url.replace(hub.url.split("/")[2].split(":")[0], "127.0.0.1")
        assert (await hub.publish(fragment(0, 1)))[0] == 401


async def test_a_fragment_that_is_not_stored_in_time_gives_503_and_can_be_sent_again(
    hub: Client, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    database = sqlite3.connect(tmp_path / "hub" / "hub.sqlite", isolation_level=None)
    database.execute("BEGIN IMMEDIATE")  # so that the hub waits
    with monkeypatch.context() as patching:
        patching.setattr(SqliteStore, "answer_seconds", 0.05)
        assert (await hub.publish(fragment(0, 1)))[0] == 503
    database.close()
    await hub.accepted(fragment(0, 1))
    assert bodies(tmp_path) == [fragment(0, 1)]
