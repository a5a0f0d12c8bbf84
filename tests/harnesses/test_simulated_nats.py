"""The model of NATS answers as a real server does, for each call that the extension makes."""

from __future__ import annotations

import asyncio
import base64
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from random import Random
from typing import Any

import msgspec
import pytest
from nats.aio.msg import Msg

from rsnotify_jetstream.bucket import Bucket
from rsnotify_jetstream.nats_connection import ApiError, NatsConnection, parse_headers
from rsnotify_jetstream.nats_settings import parse_nats_url
from rsnotify_jetstream.stream import LogStream
from tests.harnesses.simulation.loop import Machine, SimulatedLoop
from tests.harnesses.simulation.nats_server import Servers
from tests.harnesses.simulation.network import Network
from tests.nats_servers import running_nats

#: What happened, in order.
Facts = list[object]
#: What an answer has that differs in each run.
_VARYING = ("ts", "created", "cluster", "domain", "batch", "type", "config", "time")
#: What the extension does not read.
_UNUSED = ("total", "offset", "limit", "subject")


class Talk:
    """A client that notes what the servers answer."""

    def __init__(self, connection: NatsConnection) -> None:
        self.connection = connection
        self.client = connection.client
        self.log = LogStream(connection)
        self.bucket = Bucket(connection, "things")
        self.facts: Facts = []
        self.last = 0

    def note(self, *facts: object) -> None:
        self.facts.append(facts)

    async def publish(self, subject: str, body: bytes = b"", **headers: str) -> None:
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        answer = await self.connection.request(subject, body, headers=named)
        self.note(subject.rpartition(".")[2], _known(answer.data))

    async def publish_at_once(self, subject: str, headers: Sequence[dict[str, str]]) -> None:
        """Publish some messages, the next one before the one before is stored."""
        answers = await asyncio.gather(
            *(self.client.request(subject, b"", 5, headers=each) for each in headers)
        )
        self.note(*(_known(each.data) for each in answers))

    async def api(self, subject: str, payload: dict[str, Any] | None = None) -> dict[str, Any]:
        """Call the API of JetStream, and note the answer."""
        try:
            answer = await self.connection.api(subject, payload, what="it")
        except ApiError as error:
            self.note(subject, error.status, error.code, error.description)
            return {}
        self.note(subject, _relevant(answer))
        return answer

    async def read(self, position: int, *, bodies: bool, subjects: str | None = None) -> None:
        scan = self.log.scan(position, bodies=bodies, subjects=subjects)
        async for each in scan:
            self.note("read", each.position, each.body, each.size, each.headers.get("A"))

    async def directly(self, position: int) -> None:
        request = msgspec.json.encode({"seq": position})
        answer = await self.connection.request("$JS.API.DIRECT.GET.t-log", request)
        headers = answer.headers or {}
        kept = {name: headers.get(name) for name in ("Nats-Sequence", "Nats-Subject", "Status")}
        self.note("directly", kept, headers.get("A"), answer.data)


def _known(data: bytes) -> object:
    return _relevant(msgspec.json.decode(data))


def _relevant(answer: dict[str, Any]) -> object:
    found = {name: value for name, value in answer.items() if name not in (*_VARYING, *_UNUSED)}
    state = found.pop("state", None)
    if state is not None:
        found["state"] = [state[name] for name in ("messages", "first_seq", "last_seq")]
    if (message := found.get("message")) is not None:
        _, _, lines = base64.b64decode(message.get("hdrs", "")).partition(b"\r\n")
        found["message"] = [message["seq"], message.get("data"), parse_headers(lines)]
    return found


async def conversation(talk: Talk) -> None:
    await talk.log.prepare()
    await talk.bucket.prepare()
    await talk.log.prepare()
    live: list[Msg] = []

    has_news = asyncio.Event()

    async def received(message: Msg) -> None:
        live.append(message)
        has_news.set()

    await talk.client.subscribe("t.live.>", cb=received)
    await talk.client.flush()
    await talk.api("STREAM.INFO.t-log")
    await talk.api("STREAM.INFO.nothing")
    await _messages(talk)
    await _conditions(talk)
    await _batches(talk)
    await _deletions(talk)
    await _checks(talk)
    await _readers(talk)
    await _keys(talk)
    await _requests(talk)
    # What was stored last was published last.
    while not live or live[-1].headers["Nats-Sequence"] != str(talk.last):
        has_news.clear()
        await has_news.wait()
    for each in live:
        headers = each.headers or {}
        kept = [headers.get(name) for name in ("A", "Nats-Sequence", "Nats-Stream", "Nats-Subject")]
        talk.note("live", each.subject, kept, each.data)


async def _messages(talk: Talk) -> None:
    await talk.publish("t.log.a", b"one", A="1")
    await talk.publish("t.log.a", b"two", A="two words", Nats_Msg_Id="x")
    await talk.publish("t.log.a", b"two", A="two words", Nats_Msg_Id="x")
    await talk.publish("t.log.b")
    for which in ({"seq": 1}, {"last_by_subj": "t.log.a"}, {"seq": 9}, {"last_by_subj": "t.log.z"}):
        await talk.api("STREAM.MSG.GET.t-log", which)
    for seq in (1, 3, 4, 5):
        await talk.api("STREAM.MSG.GET.t-log", {"seq": seq, "next_by_subj": "t.log.*"})
    for position in (2, 9):
        await talk.directly(position)


async def _conditions(talk: Talk) -> None:
    expected = "Nats_Expected_Last_Subject_Sequence"
    await talk.publish("t.log.a", b"3", **{expected: "1"})
    await talk.publish("t.log.a", b"3", **{expected: "2", "Nats_Msg_Id": "y"})
    await talk.publish("t.log.a", b"3", **{expected: "2", "Nats_Msg_Id": "y"})
    await talk.publish("t.log.a", b"3", **{expected: "2", "Nats_Msg_Id": "z"})
    await talk.publish("t.log.new", b"new", **{expected: "0"})
    await talk.publish("t.log.new", b"new", **{expected: "0"})
    await talk.publish_at_once("t.log.new", [{"Nats-Msg-Id": "same"}] * 2)
    await talk.publish_at_once("t.log.newer", [{expected.replace("_", "-"): "0"}] * 2)


async def _batches(talk: Talk) -> None:
    first = {"Nats-Expected-Last-Subject-Sequence": "0"}
    batch = [(b"1", {"A": "1"} | first), (b"2", {"A": "2"}), (b"3", {"A": "3"})]
    for _ in range(2):
        answer = await talk.connection.request_batch("t.log.batch", batch)
        talk.note("batch", _known(answer.data))
    # Its second message is missing.
    for number, more in ((1, {}), (3, {"Nats-Batch-Commit": "1"})):
        named = {"Nats-Batch-Id": "gap", "Nats-Batch-Sequence": str(number)} | more
        if not more:
            await talk.client.publish("t.log.batch", b"", headers=named)
        else:
            answer = await talk.client.request("t.log.batch", b"", 5, headers=named)
            talk.note("gap", _known(answer.data))
    await talk.api("STREAM.INFO.t-log")


async def _deletions(talk: Talk) -> None:
    for position in (4, 4, 99):
        await talk.api("STREAM.MSG.DELETE.t-log", {"seq": position, "no_erase": True})
    await talk.api("STREAM.PURGE.t-log", {"filter": "t.log.a", "seq": 2})
    await talk.api("STREAM.PURGE.t-log", {"filter": "t.log.none", "seq": 2})
    await talk.api("STREAM.INFO.t-log")
    await talk.directly(4)


async def _checks(talk: Talk) -> None:
    for _ in range(2):
        await talk.publish("t.log.check", b"", Nats_Rollup="sub")
    await talk.api("STREAM.MSG.GET.t-log", {"last_by_subj": "t.log.check"})
    await talk.api("STREAM.INFO.t-log")


async def _readers(talk: Talk) -> None:
    await talk.read(1, bodies=True)
    await talk.read(3, bodies=False)
    await talk.read(1, bodies=True, subjects="t.log.batch")
    await talk.read(99, bodies=True)
    await talk.read(1, bodies=True, subjects="t.log.none")


async def _keys(talk: Talk) -> None:
    bucket = talk.bucket
    first = await bucket.replace("a.1", b"one", 0, node="n")
    talk.note(first, await bucket.replace("a.1", b"other", 0))
    talk.note(await bucket.put("a.2", b"two"), await bucket.put("a.2", b"two again"))
    talk.note(await bucket.latest("a.1"), await bucket.latest("a.2"), await bucket.latest("none"))
    found = await bucket.get("a.1")
    assert found is not None
    talk.note(found.headers["Rs-Node"], [each.key async for each in bucket.read("a")])
    talk.note(await bucket.delete("a.1", 99), await bucket.delete("a.1", 1))
    talk.note(await bucket.latest("a.1"), [each.key async for each in bucket.read("a")])
    await talk.api("STREAM.INFO.KV_t-things")


async def _requests(talk: Talk) -> None:
    """Requests between clients, and to nobody."""
    client = talk.client

    async def received(message: Msg) -> None:
        await message.respond(b"answer to " + message.data)

    subscription = await client.subscribe("t.node.one", cb=received)
    answer = await client.request("t.node.one", b"me", 5)
    talk.note(answer.data)
    await subscription.unsubscribe()
    await client.flush()
    try:
        await client.request("t.node.one", b"me", 5)
    except Exception as error:
        talk.note(type(error).__name__)
    await talk.publish("t.log.a", b"end")
    talk.last = int((await talk.log.info())["state"]["last_seq"])


async def talk_to(url: str) -> Facts:
    connection = NatsConnection(parse_nats_url(f"{url}?prefix=t"))
    await connection.open("test")
    try:
        talk = Talk(connection)
        await conversation(talk)
    finally:
        await connection.close()
    return talk.facts


def simulated(count: int, use: Callable[[Servers], Awaitable[Facts]]) -> Facts:
    """Talk to a cluster of the model, which has an event loop of its own."""
    loop = SimulatedLoop(1)
    SimulatedLoop.current = loop
    asyncio.set_event_loop(loop)
    network = Network(loop)
    servers = Servers(loop, network, count, Random(1), lambda *_: None)
    client = Machine(loop, "client")

    async def main() -> Facts:
        servers.start()
        return await use(servers)

    try:
        return loop.run_until_complete(loop.create_task(main(), context=client.context))
    finally:
        for task in asyncio.all_tasks(loop):
            task.cancel()
        loop.run_until_complete(asyncio.sleep(0))
        loop.close()
        asyncio.set_event_loop(None)
        SimulatedLoop.current = None


@pytest.mark.parametrize("servers", [1, pytest.param(3, marks=pytest.mark.slow)])
def test_the_model_answers_as_real_servers_do(tmp_path: Path, servers: int) -> None:
    with running_nats(tmp_path, servers=servers) as cluster:
        real = asyncio.run(talk_to(cluster.url))

    model = simulated(servers, lambda simulated: talk_to(simulated.url))

    assert model == real
