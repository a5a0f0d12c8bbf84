"""The open WebSockets and event streams: listed, found, and closed."""

from __future__ import annotations

from typing import Any

from rsnotify.format.datetimes import format_datetime
from rsnotify_hub.admin import text_tables
from rsnotify_hub.admin.connection_operations import CLOSE_REASON
from rsnotify_hub.admin.schemas import ConnectionList
from tests.hub.admin.admin_user import AdminUser
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


async def rows(admin: AdminUser, **query: Any) -> list[dict[str, Any]]:
    page = await admin.get("connections", **query)
    assert page["total"] >= len(page["connections"])
    return list(page["connections"])


async def test_each_connection_is_listed_with_its_role_and_what_it_has_passed(
    hub: Client, admin: AdminUser
):
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
    await admin.until("connections", lambda page: _total(page, "sent") == 7)
    async with live(hub, topic=OTHER) as stream:
        await admin.until("connections", lambda page: not _replaying(page))
        listed = await rows(admin)
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
        (named,) = await rows(admin, search="A READER")
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
            assert len(await rows(admin, **query)) == number, query
        for sort in ("since", "trouble"):
            found, after = [], ""
            while after is not None:
                page = await admin.get("connections", limit=2, sort=sort, after=after)
                found += [row["id"] for row in page["connections"]]
                after = page["next"]
            assert sorted(found) == sorted(row["id"] for row in listed)
        stream.response.close()
    await opening.close()


def _total(page: dict[str, Any], name: str) -> int:
    return sum(each[name] for each in page["connections"])


def _replaying(page: dict[str, Any]) -> bool:
    return any(each["state"] == "replaying" for each in page["connections"])


def _order(row: dict[str, Any]) -> tuple[int, str]:
    return row["sent"], "-" if row["role"] == "none" else row["transport"]


async def test_a_slow_reader_is_listed_first_and_keeps_its_count(hub: Client, admin: AdminUser):
    quick = await hub.listen()
    async with slow_client(hub) as client:
        slow = await client.listen()
        sent, unsent = 0, 0
        while unsent < LARGE:
            await hub.accepted(fragment(sent, sent + 1, padding=LARGE))
            sent += 1
            assert await heard(quick, sent) == [sent]
            (row,) = [each for each in await rows(admin) if each["unsent"]] or [{"unsent": 0}]
            unsent = row["unsent"]
        assert row["lag_seconds"] > 0
        assert await heard(slow, sent) == list(range(1, sent + 1))
        listed = (await admin.until("connections", _is_calm))["connections"]
        assert [(each["sent"], each["state"]) for each in listed] == [(sent, "live")] * 2


def _is_calm(page: dict[str, Any]) -> bool:
    return not any(each["unsent"] for each in page["connections"])


async def test_commands_list_and_close_connections(hub: Client, admin: AdminUser):
    reader = await hub.listen()
    (row,) = await rows(admin)
    heads, line = (await printed(hub, "connections", "--role", "subscriber")).splitlines()
    assert heads.split()[:4] == ["ID", "ROLE", "STATE", "ADDRESS"]
    assert line.split()[:4] == [row["id"], "subscriber", "live", "127.0.0.1"]
    assert await printed(hub, "connections", "--topic", OTHER) == "none\n"
    assert await printed(hub, "disconnect", row["id"]) == ""
    closed = await reader.receive()
    assert (closed.data, closed.extra) == (1001, CLOSE_REASON)
    assert await rows(admin) == []
    again = await command(hub, "disconnect", row["id"])
    assert "there is no such connection" in str(again.exception)
    (line,) = list(text_tables.connections(ConnectionList((), 0, None, ("mqtt",))))[1:]
    assert line == "readers over MQTT connect to the broker, and are not listed"
