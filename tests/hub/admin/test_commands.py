"""`rsnotify hub …` against a real hub."""

from __future__ import annotations

import asyncio
import hashlib
import json
import os
import ssl
import sys
from itertools import count
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from rsnotify.errors import FetchError, RsnotifyError, Unavailable
from rsnotify_hub.admin import client as admin_client
from rsnotify_hub.admin import schemas, text_tables
from rsnotify_hub.admin.client import AdminClient
from rsnotify_hub.admin.schema_conversion import topic_id
from rsnotify_hub.command import hub as commands
from rsnotify_hub.websub_subscription import subscription_id
from tests.certificates import Authority
from tests.hub.helpers import TOPIC, Callback, Client, RunHub, at, fragment, seconds_of
from tests.ports import free_port
from tests.waiting import PATIENCE

ADMIN = "an admin's token of the tests"


async def command(hub: Client, *arguments: str, token: str = "") -> Result:
    """Run a subcommand."""
    variables = {"RSNOTIFY_HUB_URL": hub.url, "RSNOTIFY_ADMIN_TOKEN": token}
    return await asyncio.to_thread(CliRunner().invoke, commands, arguments, env=variables)


async def printed(hub: Client, *arguments: str) -> str:
    result = await command(hub, *arguments)
    assert result.exit_code == 0, result.exception
    return result.output


async def test_the_state_of_a_hub_is_printed_as_tables_and_as_json(hub: Client, callback: Callback):
    callback.answers, callback.words = [500], "out of\norder \x1b[31m"
    await hub.subscribe(callback)
    await hub.accepted(fragment(0, 1))
    for _ in range(2):
        await callback.delivery()
    await hub.level()
    assert "deliveries websub failed" in await printed(hub, "status")
    heads, row = (await printed(hub, "topics")).splitlines()
    assert heads.split()[:2] == ["ID", "THROUGH"]
    assert TOPIC in row
    row = (await printed(hub, "subscriptions", "--state", "active")).splitlines()[1]
    assert row.split()[:2] == [subscription_id(TOPIC, callback.url), "active"]
    row = (await printed(hub, "failures")).splitlines()[1]
    assert "returned 500" in row
    assert "out of order" in row
    assert "\x1b" not in row
    assert await printed(hub, "dead-letters") == "none\n"
    structured = await printed(hub, "subscriptions", "--json")
    assert json.loads(structured) == await hub.admin("GET", "subscriptions")


async def test_a_subscription_is_suspended_delivered_again_and_dropped(
    hub: Client, callback: Callback
):
    await hub.subscribe(callback)
    for second in range(2):
        await hub.accepted(fragment(second, second + 1))
        await callback.delivery()
    await hub.level()
    id = subscription_id(TOPIC, callback.url)
    assert "suspended" in await printed(hub, "suspend", id)
    assert "active" in await printed(hub, "resume", id[:6])
    await printed(hub, "redeliver", id[:4], "--since", "2026-01-01T00:00:00Z")
    assert seconds_of((await callback.delivery())[1]) == [1, 2]
    assert await printed(hub, "drop", id) == ""
    assert (await hub.admin("GET", "subscriptions"))["total"] == 0
    assert "`rsnotify hub connections`" in await printed(hub, "subscriptions")
    (topic,) = await hub.topics()
    assert await printed(hub, "drop", "--topic", topic["id"]) == ""
    assert (await hub.admin("GET", "topics"))["total"] == 0


async def test_the_first_digits_of_an_id_do_if_they_are_those_of_one_only(hub: Client):
    seen: dict[str, str] = {}
    for topic in map(f"{TOPIC}/{{}}".format, count()):
        if (other := seen.setdefault(topic_id(topic)[:4], topic)) != topic:
            break
    for each in (topic, other):
        await hub.accepted(fragment(0, 1), topic=each)
    ids = [topic_id(topic), topic_id(other)]
    for given, reasons in (
        (ids[0][:4], ("several ids of", *ids, topic, other)),
        (ids[0][:3], ("at least the first 4",)),
        ("f" * 31, ("none of the topics has an id that begins with",)),
    ):
        result = await command(hub, "drop", "--topic", given)
        assert isinstance(result.exception, RsnotifyError), given
        assert all(reason in str(result.exception) for reason in reasons), given
    assert await printed(hub, "drop", "--topic", ids[0][:12]) == ""
    assert ids[1] in await printed(hub, "topics")


async def test_an_error_is_one_sentence(run_hub: RunHub):
    async with run_hub(admins=[{"token": ADMIN}]) as hub:
        for arguments, token, reason in (
            (["status"], "", "set RSNOTIFY_ADMIN_TOKEN"),
            (["status"], ADMIN + "x", "in RSNOTIFY_ADMIN_TOKEN or --token is not that of an admin"),
            (["suspend", "../status"], ADMIN, "is not an id"),
            (["status", "--url", "hub"], ADMIN, "not an absolute http"),
            (["drop", "0" * 32], ADMIN, "there is no such subscription"),
            (["redeliver", "0" * 32, "--since", "yesterday"], ADMIN, "not a W3C Datetime"),
        ):
            result = await command(hub, *arguments, token=token)
            assert isinstance(result.exception, RsnotifyError), arguments
            assert reason in str(result.exception)
            assert ADMIN not in str(result.exception)
            assert result.output == ""


@pytest.mark.parametrize("document", [b"<html>", b"[]", b'{"x":' + b"[" * 100_000])
async def test_a_server_that_is_no_hub_is_reported(callback: Callback, document: bytes):
    callback.document = document
    with pytest.raises(FetchError, match="not as the hub's admin API"):
        await AdminClient(callback.url, None).call("status")


async def test_the_subcommands_are_part_of_rsnotify(hub: Client):
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "rsnotify", "hub", "drop", "0" * 32),
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
        env={**os.environ, "RSNOTIFY_HUB_URL": hub.url},
    )
    async with asyncio.timeout(PATIENCE):
        output, errors = await process.communicate()
    assert (process.returncode, output) == (2, b"")
    (line,) = errors.decode().splitlines()
    assert line.startswith("rsnotify: ")
    assert line.endswith("there is no such subscription")


async def test_a_generated_token_is_an_admins_once_its_digest_is_configured(run_hub: RunHub):
    made = json.loads(CliRunner().invoke(commands, ["token", "--json"]).output)
    async with run_hub(admins=[{"token_sha256": made["token_sha256"]}]) as hub:
        assert (await AdminClient(hub.url, made["token"]).call("status")).admin is True
        with pytest.raises(FetchError, match="requires an admin's token"):
            await AdminClient(hub.url, made["token_sha256"]).call("status")


def test_the_digest_of_an_existing_token_is_printed_without_the_token():
    result = CliRunner().invoke(commands, ["token", "--existing"], input=f"{ADMIN}\n")
    digest = hashlib.sha256(ADMIN.encode()).hexdigest()
    assert result.output.split() == ["token_sha256", digest]


async def test_pages_are_joined_to_the_limit(hub: Client, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(admin_client, "MAX_ROWS", 2)
    topics = [f"{TOPIC}/{number}" for number in range(5)]
    for topic in topics:
        await hub.accepted(fragment(0, 1), topic=topic)
    for limit in (1, 2, 3, 5, 9):
        page = await AdminClient(hub.url, None).call_paged("topics", limit=limit)
        assert [row.topic for row in page.topics] == topics[:limit]
        assert page.total == 5


async def test_a_hub_that_cannot_be_reached_is_reported():
    with pytest.raises(Unavailable, match=r"connection refused; .*check --url"):
        await AdminClient(f"http://127.0.0.1:{free_port()}/", None).call("status")


async def test_an_unknown_authority_is_reported_with_the_variable_for_it(tmp_path: Path):
    secure = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    secure.load_cert_chain(*Authority(tmp_path).certificate("localhost"))
    server = await asyncio.start_server(lambda *_: None, "127.0.0.1", 0, ssl=secure)
    async with server:
        port = server.sockets[0].getsockname()[1]
        with pytest.raises(Unavailable, match=r"untrusted authority; set SSL_CERT_FILE"):
            await AdminClient(f"https://127.0.0.1:{port}/", None).call("status")


def test_a_table_names_the_number_of_omitted_rows():
    failure = schemas.FailureInfo(at=at(0), status=None, reason="timed out", excerpt="")
    row = schemas.DeadLetterInfo(
        id="0123456789abcdef0123456789abcdef",
        topic=TOPIC,
        host="b.example",
        given_up_since=at(1),
        from_=None,
        until=at(2),
        fragments=3,
        last_failure=failure,
    )
    head, line, more = text_tables.dead_letters(schemas.DeadLetterList((row,), 8, "x"))
    assert head.index("UNTIL") == line.index("2026-01-01T00:00:02.000000Z")
    assert line.split()[3] == "-"
    assert more == "and 7 more (--limit)"
