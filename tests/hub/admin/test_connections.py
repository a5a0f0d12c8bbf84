"""The open WebSockets and event streams: listed, found, and closed."""

from __future__ import annotations

from typing import Any

from rsnotify.format.datetimes import format_datetime
from rsnotify_hub.admin import text_tables
from rsnotify_hub.admin.connection_operations import CLOSE_REASON
from rsnotify_hub.admin.schemas import ConnectionList
from tests.hub.admin.test_commands import command, printed
from tests.hub.event_streams import live
from tests.hub.helpers import (
    TOPIC,
    Client,
    at,
    chain,
    fragment,
    heard,
    send,
    slow_client,
)

OTHER = "https://other.example/channel"
LARGE = 1_000_000


async def test_each_connection_is_listed_with_its_role_and_what_it_has_passed(hub: Client):
    await hub.accepted(*chain(2))
    reader = await hub.listen(0, **{"User-Agent": "a reader/1.0"})
    source = await hub.source(topic=OTHER)
    many = await hub.session.ws_connect(hub.url + "ws", protocols=["rsnotify.topics"])
    hub.sockets.append(many)
    for kind, topic in (("subscribe", OTHER), ("publish", TOPIC)):
        await many.send_json({"type": kind, "topic": topic})
        await many.receive_json()
    opening = await hub.websocket()
    await hub.accepted(fragment(2, 3))
    assert await heard(reader, 3) == [1, 2, 3]
    await send(source, *chain(4))
    while (await source.receive_json())["until"] != format_datetime(at(4)):
        pass  # an event stream that is opened before would receive the last of them
    await hub.connections(lambda rows: sum(row["sent"] for row in rows) == 7)
    async with live(hub, topic=OTHER) as stream:
        listed = await hub.connections(
            lambda rows: not any(row["state"] == "replaying" for row in rows)
        )
        facts = ("transport", "role", "topics", "topic_count", "sent", "received")
        assert [tuple(row[name] for name in facts) for row in sorted(listed, key=_order)] == [
            ("websocket", "none", [], 0, 0, 0),
            ("sse", "subscriber", [OTHER], 1, 0, 0),
            ("websocket", "publisher", [OTHER], 1, 0, 4),
            ("websocket", "subscriber", [TOPIC], 1, 3, 0),
            ("websocket", "both", [OTHER, TOPIC], 2, 4, 0),
        ]
        for row in listed:
            assert row["address"] == "127.0.0.1"
            assert (row["lag_seconds"], row["behind"], row["unsent"]) == (0, 0, 0)
        (named,) = await hub.connections(search="A READER")
        assert named["agent"] == "a reader/1.0"
        for query, number in (
            ({"topic": OTHER}, 3),
            ({"topic": TOPIC, "role": "publisher"}, 1),
            ({"role": "subscriber"}, 3),
            ({"role": "both"}, 1),
            ({"role": "none"}, 1),
            ({"search": named["id"][:8]}, 1),
            ({"search": "nothing has this"}, 0),
        ):
            assert len(await hub.connections(**query)) == number, query
        for sort in ("since", "trouble"):
            pages = await hub.admin_pages("connections", limit=2, sort=sort)
            found = [row["id"] for page in pages for row in page["connections"]]
            assert sorted(found) == sorted(row["id"] for row in listed)
        stream.response.close()
    await opening.close()


def _order(row: dict[str, Any]) -> tuple[int, str]:
    return row["sent"], "-" if row["role"] == "none" else row["transport"]


async def test_a_slow_reader_is_listed_first_and_keeps_its_count(hub: Client):
    quick = await hub.listen()
    async with slow_client(hub) as client:
        slow = await client.listen()
        sent, unsent = 0, 0
        while unsent < LARGE:
            await hub.accepted(fragment(sent, sent + 1, padding=LARGE))
            sent += 1
            assert await heard(quick, sent) == [sent]
            (row,) = [each for each in await hub.connections() if each["unsent"]] or [{"unsent": 0}]
            unsent = row["unsent"]
        assert row["lag_seconds"] > 0
        assert await heard(slow, sent) == list(range(1, sent + 1))
        listed = await hub.connections(lambda rows: not any(row["unsent"] for row in rows))
        assert [(each["sent"], each["state"]) for each in listed] == [(sent, "live")] * 2


async def test_commands_list_and_close_connections(hub: Client):
    reader = await hub.listen()
    (row,) = await hub.connections()
    heads, line = (await printed(hub, "connections", "--role", "subscriber")).splitlines()
    assert heads.split()[:4] == ["ID", "ROLE", "STATE", "ADDRESS"]
    assert line.split()[:4] == [row["id"], "subscriber", "live", "127.0.0.1"]
    assert await printed(hub, "connections", "--topic", OTHER) == "none\n"
    assert await printed(hub, "disconnect", row["id"]) == ""
    closed = await reader.receive()
    assert (closed.data, closed.extra) == (1001, CLOSE_REASON)
    assert await hub.connections() == []
    again = await command(hub, "disconnect", row["id"])
    assert "there is no such connection" in str(again.exception)
    (line,) = list(text_tables.connections(ConnectionList((), 0, None, ("mqtt",))))[1:]
    assert line == "readers over MQTT connect to the broker, and are not listed"
