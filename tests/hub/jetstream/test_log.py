"""The log in JetStream: several nodes, lost answers, gaps, and what does not belong there."""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
import pytest
from msgspec.structs import replace
from nats.aio.msg import Msg

from rsnotify.errors import ConfigurationError, StorageError, TooLarge
from rsnotify_hub.intake import whole_content
from rsnotify_hub.store.interface import LogRetention
from rsnotify_jetstream import jetstream_log, nats_connection, stream_follower
from rsnotify_jetstream.jetstream_log import BATCH_RECORDS, TRIMMED_TOGETHER
from rsnotify_jetstream.nats_connection import ApiError, NatsConnection
from rsnotify_jetstream.nats_settings import NatsFiles, NatsSettings, parse_nats_url
from rsnotify_jetstream.stream import LogStream, StoredMessage
from tests.certificates import Authority
from tests.hub.helpers import TOPIC, Clock, at
from tests.hub.jetstream.load import loaded, nodes
from tests.hub.jetstream.lossy_proxy import LossyProxy, lossy_proxy
from tests.hub.jetstream.nodes import Node, caught_up, connected, running_node
from tests.hub.storing import made, stored_logs
from tests.nats_servers import NatsCluster, running_nats
from tests.waiting import PATIENCE, until


async def stored(settings: NatsSettings) -> dict[str, Any]:
    """Return what the stream says of itself."""
    async with connected(settings) as connection:
        answer = await connection.client.request(f"$JS.API.STREAM.INFO.{settings.prefix}-log")
        found: dict[str, Any] = msgspec.json.decode(answer.data)["state"]
        return found


async def shrunk(settings: NatsSettings, messages: int) -> None:
    """Wait until the stream has no more than some messages."""
    while True:
        if (await stored(settings))["messages"] <= messages:
            return
        await asyncio.sleep(0.05)


#: A proxy, the node behind it, and a node without a proxy.
BehindProxy = tuple[LossyProxy, Node, Node]


@pytest.fixture
async def behind_proxy(
    nats_server: NatsCluster, settings: NatsSettings, clock: Clock
) -> AsyncIterator[BehindProxy]:
    """Run a node whose connection a proxy can cut, and one without a proxy."""
    (server,) = nats_server.servers.values()
    async with (
        lossy_proxy(server.port) as (proxy, url),
        running_node(replace(settings, servers=(url,)), clock) as cut,
        running_node(settings, clock) as other,
    ):
        yield proxy, cut, other


async def test_every_node_is_notified_of_everything_once_and_in_one_order(
    settings: NatsSettings, clock: Clock
):
    async with loaded(settings, clock, count=2, topics=3) as load:
        await load.reached(100)


async def test_a_log_that_one_node_deletes_is_gone_for_all(settings: NatsSettings, clock: Clock):
    async with nodes(settings, clock, 2) as (one, two):
        await one.append(TOPIC, made(0, 1))
        await two.append("other", made(0, 1))
        await caught_up(one, two)
        await two.forget(TOPIC)
        await caught_up(one)
        assert one.listener.forgot == two.listener.forgot == [TOPIC]
        await one.append(TOPIC, made(0, 1))
        await caught_up(two)
        assert two.listener.fragments(TOPIC) == [made(0, 1), made(0, 1)]
        assert await two.kept(TOPIC) == [made(0, 1)]


async def test_an_append_without_an_answer_is_not_stored_twice(behind_proxy: BehindProxy):
    proxy, node, other = behind_proxy
    for number in range(4):
        proxy.withholding = True
        appending = asyncio.create_task(node.append(TOPIC, made(number, number + 1)))
        async with asyncio.timeout(PATIENCE):
            await other.listener.received(number + 1)
        assert not appending.done()
        proxy.pass_on_again()
        await appending
    assert await node.kept(TOPIC) == [made(number, number + 1) for number in range(4)]
    assert node.listener.order == other.listener.order
    assert len(node.listener.order) == 4


async def test_fragments_that_are_appended_together_are_stored_together(
    settings: NatsSettings, clock: Clock
):
    fragments = [made(number, number + 1) for number in range(BATCH_RECORDS + 2)]
    async with nodes(settings, clock, 2) as (one, two):
        await one.append(TOPIC, *fragments)
        await caught_up(two)
        assert one.listener.order == list(range(1, len(fragments) + 1))
        assert await one.kept(TOPIC) == await two.kept(TOPIC) == fragments
        assert one.state(TOPIC) == two.state(TOPIC)
        together = Counter([await batch_of(one, number) for number in one.listener.order])
        assert sorted(together.values()) == [2, BATCH_RECORDS]
        assert None not in together
        await two.append(TOPIC, *fragments)  # they are known
        assert two.listener.order == one.listener.order
    async with running_node(settings, clock) as late:
        assert await late.kept(TOPIC) == fragments


async def batch_of(node: Node, position: int) -> str | None:
    """Return the batch with which NATS has stored a record."""
    found = await node.log.stream.get(position)
    assert found is not None
    return found.headers.get("Nats-Batch-Id")


async def test_a_batch_without_an_answer_is_not_stored_twice(
    behind_proxy: BehindProxy, settings: NatsSettings
):
    fragments = [made(number, number + 1) for number in range(5)]
    proxy, node, other = behind_proxy
    proxy.withholding = True
    appending = asyncio.create_task(node.append(TOPIC, *fragments))
    async with asyncio.timeout(PATIENCE):
        await other.listener.received(5)
    assert not appending.done()
    proxy.pass_on_again()
    await appending
    assert await node.kept(TOPIC) == fragments
    assert node.listener.order == other.listener.order == [1, 2, 3, 4, 5]
    assert (await stored(settings))["last_seq"] == 5


async def test_a_batch_that_is_cut_off_in_the_middle_is_stored_once(behind_proxy: BehindProxy):
    fragments = [made(number, number + 1, padding=10_000) for number in range(6)]
    proxy, node, other = behind_proxy
    proxy.left = 35_000
    appending = asyncio.create_task(node.append(TOPIC, *fragments))
    async with asyncio.timeout(PATIENCE):
        await proxy.is_cut.wait()
    await caught_up(other)
    assert other.listener.order == []
    assert not appending.done()
    proxy.refusing = False
    await appending
    assert await node.kept(TOPIC) == await other.kept(TOPIC) == fragments
    assert node.listener.order == [1, 2, 3, 4, 5, 6]


async def test_a_batch_is_refused_as_a_whole_after_another_node_has_appended(
    behind_proxy: BehindProxy,
):
    stale = [made(1, until=2), made(2, 3), made(3, 4)]
    proxy, cut, node = behind_proxy
    await node.append(TOPIC, made(0, 1))
    await caught_up(cut)
    proxy.withholding = True
    await node.append(TOPIC, made(1, 1.5))
    appending = asyncio.create_task(cut.append(TOPIC, *stale))
    proxy.pass_on_again()
    await appending
    await caught_up(node)
    # It was planned again from what the other node has appended.
    assert cut.listener.order == node.listener.order == [1, 2, 3, 4, 5]
    assert await cut.kept(TOPIC) == [made(0, 1), made(1, 1.5), *stale]


async def test_what_the_servers_do_not_store_together_is_stored_one_at_a_time(
    settings: NatsSettings, clock: Clock
):
    fragments = [made(number, number + 1) for number in range(3)]
    name = f"{settings.prefix}-log"
    async with running_node(settings, clock) as node, connected(settings) as connection:
        config = (await connection.api(f"STREAM.INFO.{name}", what="the stream"))["config"]
        config["allow_atomic"] = False
        await connection.api(f"STREAM.UPDATE.{name}", config, what="the stream")
        await node.append(TOPIC, *fragments)
        assert await node.kept(TOPIC) == fragments
        assert node.listener.order == [1, 2, 3]
        assert [await batch_of(node, position) for position in (1, 2, 3)] == [None] * 3
    async with running_node(settings, clock) as late:
        await late.append(TOPIC, made(3, 4), made(4, 5))
        assert await batch_of(late, 5) is not None


async def test_a_batch_that_is_stored_late_is_not_stored_again_one_at_a_time(
    settings: NatsSettings, clock: Clock, monkeypatch: pytest.MonkeyPatch
):
    fragments = [made(number, number + 1) for number in range(4)]
    late: list[Any] = []
    async with running_node(settings, clock) as node:
        connection = node.log.connection
        request, request_batch = connection.request, connection.request_batch

        async def refused(*batch: Any) -> Msg:
            late.append(batch)
            error = {"code": 400, "err_code": 10176, "description": "batch publish is incomplete"}
            return Msg(connection.client, data=msgspec.json.encode({"error": error}))

        async def after_the_batch(subject: str, *content: Any, **headers: Any) -> Msg:
            if late and not subject.startswith("$JS."):
                await request_batch(*late.pop())
            return await request(subject, *content, **headers)

        monkeypatch.setattr(connection, "request_batch", refused)
        monkeypatch.setattr(connection, "request", after_the_batch)
        await node.append(TOPIC, *fragments)
        assert await node.kept(TOPIC) == node.listener.fragments(TOPIC) == fragments


async def test_an_append_that_is_never_answered_fails_and_may_be_repeated(
    nats_server: NatsCluster, settings: NatsSettings, clock: Clock, monkeypatch: pytest.MonkeyPatch
):
    (server,) = nats_server.servers.values()
    batch = [made(1, 2), made(2, 3)]
    async with (
        lossy_proxy(server.port) as (proxy, url),
        running_node(replace(settings, servers=(url,)), clock) as node,
    ):
        with monkeypatch.context() as patched:
            patched.setattr(jetstream_log, "APPEND_SECONDS", 0.5)
            proxy.withholding = True
            for fragments in ([made(0, 1)], batch):
                with pytest.raises(StorageError, match="did not answer in time"):
                    await node.append(TOPIC, *fragments)
        with monkeypatch.context() as patched:
            patched.setattr(nats_connection, "REQUEST_TIMEOUT_SECONDS", 0.5)
            with pytest.raises(StorageError, match="does not answer"):
                await node.store.check()
        proxy.pass_on_again()
        await node.append(TOPIC, made(0, 1))
        await node.append(TOPIC, *batch)
        assert await node.kept(TOPIC) == node.listener.fragments(TOPIC) == [made(0, 1), *batch]


async def test_what_happens_while_a_node_is_cut_off_is_made_up_for(behind_proxy: BehindProxy):
    proxy, cut, node = behind_proxy
    await node.append(TOPIC, made(0, 1))
    await caught_up(cut)
    proxy.withholding = True
    await node.append(TOPIC, *[made(number, number + 1) for number in range(1, 50)])
    await node.append(TOPIC, made(50, until=51))
    await node.append(TOPIC, made(50, until=52))
    await node.append("other", made(0, 1))
    await node.forget("other")
    proxy.pass_on_again()
    await caught_up(cut)
    assert cut.state(TOPIC) == node.state(TOPIC)
    assert await cut.kept(TOPIC) == await node.kept(TOPIC)
    assert cut.listener.order == sorted(set(cut.listener.order))


async def test_what_the_servers_do_not_announce_is_found(settings: NatsSettings, clock: Clock):
    async with nodes(settings, clock, 2) as (one, two):
        await one.log._follower._live.unsubscribe()
        for number in range(3):
            await two.append(TOPIC, made(number, number + 1))
        async with asyncio.timeout(PATIENCE):
            await one.append(TOPIC, made(3, 4))
        assert one.listener.order == two.listener.order


async def test_trimmed_entries_are_deleted_from_the_stream(settings: NatsSettings, clock: Clock):
    retention = LogRetention(3 * len(made(0, 1).body), timedelta(hours=1))
    async with running_node(settings, clock, retention) as node:
        for number in range(TRIMMED_TOGETHER + 3):
            await node.append(TOPIC, made(number, number + 1))
        async with asyncio.timeout(PATIENCE):
            await shrunk(settings, 3)
        clock.advance(days=1)
        await node.store.trim(TOPIC)
        async with asyncio.timeout(PATIENCE):
            # The last one stays: the next append names its position.
            await shrunk(settings, 1)
        before = node.position(TOPIC)
    async with running_node(settings, clock, retention) as node:
        assert node.position(TOPIC) == before
        await node.append(TOPIC, made(100, 101))
        assert await node.kept(TOPIC) == [made(100, 101)]


async def test_replaced_heartbeats_and_contents_are_deleted_from_the_stream(
    settings: NatsSettings, clock: Clock
):
    async with running_node(settings, clock) as node:
        for number in range(5):
            await node.append(TOPIC, made(0, until=number + 1))
            await node.append("page", whole_content(b"%d" % number, "text/plain", at(number)))
        async with asyncio.timeout(PATIENCE):
            await shrunk(settings, 2)


async def test_a_record_that_came_too_late_does_not_displace_one_that_counts(
    nats_server: NatsCluster, settings: NatsSettings, clock: Clock
):
    (server,) = nats_server.servers.values()
    async with running_node(settings, clock) as node:
        async with (
            lossy_proxy(server.port) as (proxy, url),
            running_node(replace(settings, servers=(url,)), clock) as cut,
        ):
            await node.append(TOPIC, made(0, 1))
            await caught_up(cut)
            proxy.withholding = True
            await node.append(TOPIC, made(1, until=2))
            late = asyncio.create_task(cut.append(TOPIC, made(1, until=3)))
            async with asyncio.timeout(PATIENCE):
                while (await stored(settings))["last_seq"] < 3:  # noqa: ASYNC110 - NATS has it
                    await asyncio.sleep(0.05)
            late.cancel()  # the node ends without an answer, and cleans nothing up
        await node.append(TOPIC, made(1, 4))
        await caught_up(node)
        async with asyncio.timeout(PATIENCE):
            await shrunk(settings, 3)
        async with running_node(settings, clock) as new:
            assert await new.kept(TOPIC) == await node.kept(TOPIC) == [made(0, 1), made(1, 4)]


async def test_a_node_that_missed_a_deletion_drops_the_old_log(behind_proxy: BehindProxy):
    proxy, cut, node = behind_proxy
    await node.append(TOPIC, whole_content(b"old", "text/plain", at(0)))
    await caught_up(cut)
    proxy.withholding = True
    await node.forget(TOPIC)
    await node.append(TOPIC, whole_content(b"new", "text/plain", at(1)))
    await node.append(TOPIC, made(0, 1))
    await node.store.trim(TOPIC)
    proxy.pass_on_again()
    await caught_up(cut)
    assert cut.listener.forgot == [TOPIC]
    assert await cut.kept(TOPIC) == [made(0, 1)]
    assert cut.state(TOPIC) == node.state(TOPIC)


async def test_a_fragment_that_the_server_does_not_accept_is_refused(
    settings: NatsSettings, clock: Clock
):
    async with running_node(settings, clock) as node:
        with pytest.raises(TooLarge, match="increase max_payload of the NATS"):
            await node.append(TOPIC, made(0, 1, padding=2**20 - 800))
        await node.append(TOPIC, large := made(0, 1, padding=2**20 - 2500))
        assert await node.kept(TOPIC) == [large]


async def test_a_record_of_a_newer_hub_stops_this_one(settings: NatsSettings, clock: Clock):
    async with running_node(settings, clock) as node, connected(settings) as connection:
        await node.append(TOPIC, made(0, 1))
        await connection.client.request(
            f"{settings.prefix}.log.new", b"", 5, headers={"Rs-Version": "2"}
        )
        with pytest.raises(StorageError, match="upgrade this hub"):
            await node.append(TOPIC, made(1, 2))
        for use in (node.store.check, partial(node.store.newest, after=None, limit=9)):
            with pytest.raises(StorageError, match="upgrade this hub"):
                await use()
    with pytest.raises(StorageError, match="upgrade this hub"):
        async with running_node(settings, clock):
            pass


async def test_a_message_of_someone_else_is_passed_over(
    settings: NatsSettings, clock: Clock, caplog: pytest.LogCaptureFixture
):
    async with nodes(settings, clock, 2) as (one, two), connected(settings) as connection:
        for _ in range(3):
            await connection.client.request(f"{settings.prefix}.log.else", b"hello", 5)
        with caplog.at_level(logging.WARNING):
            await one.append(TOPIC, made(0, 1))
        await caught_up(two)
        assert two.listener.fragments(TOPIC) == [made(0, 1)]
        # Each of the two nodes says so.
        assert caplog.text.count("the log in NATS has messages that no hub has written") == 2


async def test_a_stream_that_was_replaced_stops_the_hub(settings: NatsSettings, clock: Clock):
    async with running_node(settings, clock) as node, connected(settings) as connection:
        await node.append(TOPIC, made(0, 1))
        await connection.client.request(f"$JS.API.STREAM.DELETE.{settings.prefix}-log", b"", 5)
        async with running_node(settings, clock) as other:
            assert await stored_logs(other.store) == []
            with pytest.raises(StorageError, match=r"was deleted or restored.*restart the hub"):
                await caught_up(node)
            with pytest.raises(StorageError, match="restart the hub"):
                await node.append(TOPIC, made(1, 2))
            assert "has stopped following the log in NATS" in (node.log.trouble() or "")


async def test_a_stream_that_does_not_exist_any_more_is_the_reported_trouble_until_it_is_back(
    settings: NatsSettings, clock: Clock
):
    subject = f"$JS.API.STREAM.DELETE.{settings.prefix}-log"
    async with running_node(settings, clock) as node, connected(settings) as connection:
        await connection.client.request(subject, b"", 5)
        with pytest.raises(StorageError, match=r"no longer exists in NATS.*restart all"):
            await caught_up(node)
        assert "restart all nodes" in (node.log.trouble() or "")
        async with running_node(settings, clock):
            with pytest.raises(StorageError, match="restart the hub"):
                await caught_up(node)
            assert "restart the hub" in (node.log.trouble() or "")


async def test_the_trouble_says_whether_nats_has_no_leader_or_does_not_answer(
    settings: NatsSettings, clock: Clock, monkeypatch: pytest.MonkeyPatch
):
    leader: str | None = "n1"
    position = 0

    async def info(self: LogStream) -> dict[str, Any]:
        if leader is None:
            raise StorageError("no answer")
        state = {"last_seq": position, "messages": 0}
        return {"created": created, "state": state, "cluster": {"leader": leader}}

    async with running_node(settings, clock) as node:
        follower = node.log._follower
        created = follower.info["created"]
        position = follower.position
        monkeypatch.setattr(LogStream, "info", info)
        monkeypatch.setattr(stream_follower, "TROUBLE_SECONDS", 0)

        async def compared(found: str | None, text: str) -> None:
            nonlocal leader
            leader = found
            follower._compare_now.set()
            await until(lambda: text in (node.log.trouble() or ""))

        await compared("", "the log in NATS has had no leader for ")
        # A comparison with a leader misses nothing, and the next one has no answer yet.
        await compared("n1", "the log in NATS has not answered for ")
        await compared("", "the log in NATS has had no leader for ")
        await compared(None, "the log in NATS has not answered for ")


async def test_a_connection_that_breaks_just_when_a_request_is_given_up_is_opened_again(
    settings: NatsSettings,
):
    async def request() -> None:
        async with connection._until_disconnected(0):
            await asyncio.Event().wait()

    async with connected(settings) as connection:
        given_up = asyncio.create_task(request())
        for _ in range(2):
            await asyncio.sleep(0)  # until its time is up; it does not know that yet
        (limit,) = connection._limits
        assert limit.expired()
        await connection._on_disconnected()
        with pytest.raises(TimeoutError):
            await given_up


@pytest.mark.parametrize("subjects", [["orders.>"], ["{prefix}.log.*"]])
async def test_a_stream_of_another_program_is_refused_and_left_as_it_is(
    settings: NatsSettings, clock: Clock, subjects: list[str]
):
    name = f"{settings.prefix}-log"
    found = {"name": name, "subjects": [each.format(prefix=settings.prefix) for each in subjects]}
    async with connected(settings) as connection:
        created = await connection.api(f"STREAM.CREATE.{name}", found, what="a stream")
        with pytest.raises(ConfigurationError, match=r"of another program: add \?prefix=NAME"):
            async with running_node(settings, clock):
                pass
        now = await connection.api(f"STREAM.INFO.{name}", what="a stream")
        assert now["config"] == created["config"]


async def test_more_replicas_than_servers_is_a_clear_error(settings: NatsSettings, clock: Clock):
    with pytest.raises(ConfigurationError, match=r"cannot provide the stream .*\?replicas=1"):
        async with running_node(replace(settings, replicas=3), clock):
            pass


async def test_a_listener_that_fails_does_not_stop_the_log(settings: NatsSettings, clock: Clock):
    async with AsyncExitStack() as stack:
        node = await stack.enter_async_context(running_node(settings, clock))
        node.listener.order = None  # type: ignore[assignment]
        await node.append(TOPIC, made(0, 1))
        assert await node.kept(TOPIC) == [made(0, 1)]


async def test_the_log_may_be_reached_over_tls(tmp_path: Path, clock: Clock):
    authority = Authority(tmp_path)
    certificate, key = authority.certificate("nats")
    tls = f"tls {{ cert_file: '{certificate}', key_file: '{key}' }}"
    with running_nats(tmp_path / "nats", settings=tls) as server:
        url = server.url.replace("nats:", "tls:")
        files = NatsFiles(ca=Path(authority.file))
        async with running_node(parse_nats_url(url, files), clock) as node:
            await node.append(TOPIC, made(0, 1))
        with pytest.raises(ConfigurationError, match=r"not trusted.*its authority"):
            await NatsConnection(parse_nats_url(url)).open("test")


async def test_what_a_new_leader_does_not_have_yet_is_not_taken_for_deleted(
    settings: NatsSettings, clock: Clock, monkeypatch: pytest.MonkeyPatch
):
    async with running_node(settings, clock) as node:
        await node.append(TOPIC, made(0, 1))
    answers = 3
    api = NatsConnection.api

    async def behind(self: NatsConnection, subject: str, *rest: Any, what: str) -> dict[str, Any]:
        nonlocal answers
        if subject.startswith("STREAM.MSG.GET.") and answers:
            answers -= 1
            raise ApiError(what, {"err_code": 10037, "code": 404})
        found = await api(self, subject, *rest, what=what)
        if subject.startswith("STREAM.INFO.") and answers:
            found["state"]["last_seq"] = 0
        return found

    async def no_copy(self: NatsConnection, subject: str, *rest: Any, **options: Any) -> Msg:
        if subject.startswith("$JS.API.DIRECT.GET."):
            return Msg(self.client, headers={"Status": "404"})
        return await request(self, subject, *rest, **options)

    request = NatsConnection.request
    async with running_node(settings, clock) as node:
        monkeypatch.setattr(NatsConnection, "request", no_copy)
        monkeypatch.setattr(NatsConnection, "api", behind)
        assert await node.kept(TOPIC) == [made(0, 1)]
        assert answers == 0


async def test_what_a_publication_reads_first_is_given_up_as_soon_as_an_append(
    settings: NatsSettings, clock: Clock, monkeypatch: pytest.MonkeyPatch
):
    async def unanswered(self: LogStream, position: int) -> StoredMessage | None:
        await asyncio.Event().wait()
        return None

    async with running_node(settings, clock) as node:
        await node.append(TOPIC, made(0, 1), made(1, 2))
        last = node.position(TOPIC)
    async with running_node(settings, clock) as node:
        monkeypatch.setattr(LogStream, "get", unanswered)
        monkeypatch.setattr(jetstream_log, "APPEND_SECONDS", 0)
        with pytest.raises(StorageError, match="did not answer in time"):
            await node.store.read(TOPIC, after=last - 1)
        with pytest.raises(StorageError, match="did not answer in time"):
            await node.store.changes(TOPIC, since=None)


async def test_a_record_that_is_not_the_one_that_was_stored_is_not_read(
    settings: NatsSettings, clock: Clock, monkeypatch: pytest.MonkeyPatch
):
    async with running_node(settings, clock) as node:
        await node.append(TOPIC, made(0, 1), made(1, 2))
    async with running_node(settings, clock) as node:
        get = LogStream.get

        async def swapped(self: LogStream, position: int) -> StoredMessage | None:
            return await get(self, 3 - position)

        monkeypatch.setattr(LogStream, "get", swapped)
        with pytest.raises(StorageError, match=r"not the one that was stored.*is damaged"):
            await node.store.read(TOPIC, after=0)
