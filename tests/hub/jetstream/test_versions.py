"""Version 1 of what the nodes of a cluster share, and nodes of several versions side by side.

The bytes here were written by hand. A hub of any later version has to read them.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec
import pytest
from msgspec.structs import replace

from rsnotify.errors import StorageError
from rsnotify.format.datetimes import to_microseconds
from rsnotify_jetstream.bucket import Bucket
from rsnotify_jetstream.cluster_records import (
    BridgeRecord,
    ClusterMeta,
    CursorsRecord,
    NodeRecord,
    ShardRecord,
    SubscriptionRecord,
    decode,
    encode,
)
from rsnotify_jetstream.log_records import (
    LogRecord,
    RecordKind,
    headers_of,
    read_record,
    read_stored_fragment,
)
from rsnotify_jetstream.nats_settings import NatsSettings
from rsnotify_jetstream.node_messages import CallReply, CallRequest
from tests.hub.helpers import Clock
from tests.hub.jetstream import newer_hub
from tests.hub.jetstream.callbacks import callback_ports
from tests.hub.jetstream.hub_process import two_hubs
from tests.hub.jetstream.hubs import Hubs, settled
from tests.hub.jetstream.nodes import connected, running_node

#: A record of each kind, its bytes, and how it is read.
STORED: dict[str, tuple[Any, bytes, Callable[[bytes], Any]]] = {
    "cluster": (
        ClusterMeta(shards=64),
        b"\x82\xa7version\x01\xa6shards\x40",
        lambda value: decode(value, ClusterMeta),
    ),
    "node": (
        NodeRecord(
            name="one",
            url="http://one/",
            hub="0.9",
            started=1.5,
            renewals=300,
            draining=True,
            shards=9,
        ),
        b"\x8b\xa7version\x01\xa4name\xa3one\xa3url\xabhttp://one/\xa3hub\xa30.9"
        b"\xa7started\xcb\x3f\xf8\x00\x00\x00\x00\x00\x00\xa8renewals\xcd\x01\x2c"
        b"\xa8draining\xc3\xa6shards\x09\xa7bridges\xc3\xa6behind\xc0\xa6server\xa0",
        lambda value: decode(value, NodeRecord),
    ),
    "shard": (
        ShardRecord(epoch=5, owner="abc"),
        b"\x83\xa7version\x01\xa5epoch\x05\xa5owner\xa3abc",
        lambda value: decode(value, ShardRecord),
    ),
    "free shard": (
        ShardRecord(epoch=6, owner=None),
        b"\x83\xa7version\x01\xa5epoch\x06\xa5owner\xc0",
        lambda value: decode(value, ShardRecord),
    ),
    "subscription": (
        SubscriptionRecord(
            topic="t",
            callback="http://c/",
            secret="s",
            expires=1_000_000,
            begins=3,
            suspended=False,
            client="me",
        ),
        b"\x88\xa7version\x01\xa5topic\xa1t\xa8callback\xa9http://c/\xa6secret\xa1s"
        b"\xa7expires\xce\x00\x0f\x42\x40\xa6begins\x03\xa9suspended\xc2\xa6client\xa2me",
        lambda value: decode(value, SubscriptionRecord),
    ),
    "cursors": (
        CursorsRecord(epoch=5, parts=2, cursors={b"\x01\x02": (3, 7, None), b"\x03": (3, 8, b"x")}),
        b"\x84\xa7version\x01\xa5epoch\x05\xa5parts\x02\xa7cursors\x82"
        b"\xc4\x02\x01\x02\x93\x03\x07\xc0\xc4\x01\x03\x93\x03\x08\xc4\x01x",
        lambda value: decode(value, CursorsRecord),
    ),
    "bridge": (
        BridgeRecord(epoch=5, broker="mqtt://b", cursors={"t": 7}),
        b"\x85\xa7version\x01\xa5epoch\x05\xa5parts\x01\xa6broker\xa8mqtt://b\xa7cursors\x81\xa1t\x07",
        lambda value: decode(value, BridgeRecord),
    ),
    "request": (
        CallRequest(name="accept", shard="7", argument=b"\x01"),
        b"\x84\xa7version\x01\xa4name\xa6accept\xa5shard\xa17\xa8argument\xc4\x01\x01",
        lambda value: msgspec.msgpack.decode(value, type=CallRequest),
    ),
    "reply": (
        CallReply(answer=b"\x01", shards=("7",)),
        b"\x86\xa7version\x01\xa6answer\xc4\x01\x01\xa6shards\x91\xa17\xa9not_owner\xc2"
        b"\xa4code\xc0\xa6reason\xa0",
        lambda value: msgspec.msgpack.decode(value, type=CallReply),
    ),
}
BODY = b"<urlset/>"
HEADERS = {
    "Rs-Version": "1",
    "Rs-RecordKind": "changes",
    "Rs-Topic": "http://a/%C3%A9",
    "Rs-Received": "7000000",
    "Rs-Begins": "1000000",
    "Rs-Until": "3000000",
    "Rs-Through": "4000000",
    "Rs-After": "11",
    "Rs-Previous": "10",
    "Rs-Digest": "4f42b8eb3eb6ef7dbbe2a1b8d9d7c2a0",
    "Content-Type": "application/xml",
    "Rs-From": "1000000",
    "Rs-Reset": "2",
}
RECORD = LogRecord(
    position=12,
    kind=RecordKind.CHANGES,
    topic="http://a/é",
    begins=1_000_000,
    from_=1_000_000,
    until=3_000_000,
    received=7_000_000,
    through=4_000_000,
    size=len(BODY),
    digest=bytes.fromhex("4f42b8eb3eb6ef7dbbe2a1b8d9d7c2a0"),
    after=11,
    previous=10,
    reset=2,
)
WITHOUT_FRAGMENT = {
    "Rs-Version": "1",
    "Rs-RecordKind": "reset",
    "Rs-Topic": "http://a/%C3%A9",
    "Rs-Received": "7000000",
    "Rs-After": "11",
}


@pytest.mark.parametrize("name", STORED)
def test_a_record_of_version_1_is_read_and_written_and_later_fields_are_ignored(name: str):
    record, stored, read = STORED[name]
    assert read(stored) == record
    assert encode(record) == stored
    fields = msgspec.msgpack.decode(stored)
    assert read(msgspec.msgpack.encode(fields | {"added": [1], "also": {"a": b"b"}})) == record


@pytest.mark.parametrize("name", [name for name in STORED if name not in ("request", "reply")])
def test_a_record_of_version_2_is_refused_whatever_its_form(name: str):
    _, stored, read = STORED[name]
    fields = msgspec.msgpack.decode(stored)
    for newer in (fields | {"version": 2}, {"version": 2}):
        with pytest.raises(StorageError, match=r"has version 2.* reads version 1.*upgrade this"):
            read(msgspec.msgpack.encode(newer))


def test_a_record_of_the_log_of_version_1_is_read_and_written():
    assert read_record(12, HEADERS | {"Rs-Added": "1"}, len(BODY)) == RECORD
    assert headers_of(RECORD, "application/xml") == HEADERS
    fragment = read_stored_fragment(RECORD, HEADERS, BODY)
    assert (fragment.body, fragment.content_type) == (BODY, "application/xml")
    assert to_microseconds(fragment.until) == 3_000_000
    kinds = {"heartbeat": RecordKind.HEARTBEAT, "whole": RecordKind.WHOLE}
    for name, kind in kinds.items():
        found = read_record(12, HEADERS | {"Rs-RecordKind": name}, len(BODY))
        assert found is not None
        assert found.kind is kind
        assert headers_of(found, "application/xml") == HEADERS | {"Rs-RecordKind": name}
    batched = HEADERS | {
        "Rs-After": "4611686018427387904",
        "Rs-Previous": "4611686018427387904",
        "Rs-Batched": "3 8",
    }
    found = read_record(12, batched, len(BODY))
    assert found == replace(RECORD, after=8, previous=2**62, number=3)
    assert headers_of(found, "application/xml") == batched
    reset = LogRecord(12, RecordKind.RESET, "http://a/é", received=7_000_000, after=11)
    assert read_record(12, WITHOUT_FRAGMENT, 0) == reset
    assert headers_of(reset) == WITHOUT_FRAGMENT
    check = {"Rs-Version": "1", "Rs-RecordKind": "check"}
    assert read_record(12, check, 0) == LogRecord(12, RecordKind.CHECK)
    assert headers_of(LogRecord(12, RecordKind.CHECK)) == check


async def test_a_log_of_version_1_is_loaded(settings: NatsSettings, clock: Clock):
    async with running_node(settings, clock), connected(settings) as connection:
        headers = HEADERS | {"Rs-After": "0", "Rs-Previous": "0"}
        del headers["Rs-Reset"]
        await connection.client.request(f"{settings.prefix}.log.a", BODY, 5, headers=headers)
    async with running_node(settings, clock) as node:
        state = node.state("http://a/é")
        assert state is not None
        assert (state.position, state.size) == (1, len(BODY))


async def test_a_request_of_a_newer_version_is_refused_with_what_to_do(
    settings: NatsSettings, hubs: Hubs
):
    async with connected(settings) as connection:
        (hub,) = await hubs.start_all("one")
        subject = f"{settings.prefix}.node.{hub.store.node.id}"
        newer = msgspec.msgpack.encode({"version": 2, "what": "else"})
        answer = await connection.client.request(subject, newer, 5)
        reply = msgspec.msgpack.decode(answer.data, type=CallReply)
        assert "has version 2" in reply.reason
        assert "upgrade this hub" in reply.reason


async def test_a_hub_does_not_join_a_cluster_of_a_newer_version(settings: NatsSettings, hubs: Hubs):
    async with connected(settings) as connection:
        records = Bucket(connection, "cluster")
        await records.prepare()
        await records.put("meta", msgspec.msgpack.encode({"version": 2, "rings": 3}))
        with pytest.raises(StorageError, match=r"has version 2.*upgrade this hub"):
            await hubs.start("one")


async def test_a_hub_works_beside_one_of_a_later_version_and_takes_over_from_it(
    settings: NatsSettings, clock: Clock
):
    async with (
        callback_ports(12) as callbacks,
        two_hubs(settings, clock, callbacks, newer_hub.__name__) as both,
    ):
        here, second = both.here, both.published
        assert both.theirs
        both.process.kill()
        await settled([here])
        assert here.urls == set(callbacks.urls)
        await here.publish(second + 1)
        await callbacks.all_have(second + 1)
        assert all(seconds[-1] == second + 1 for seconds in callbacks.received.values())
