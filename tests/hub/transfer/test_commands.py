"""`rsnotify hub export` and `import` as processes, with hubs that run before and after them."""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import signal
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from rsnotify.format.datetimes import format_datetime
from tests.hub.helpers import TOPIC, Callback, Client, at, fragment, seconds_of
from tests.hub.jetstream import fast_node
from tests.hub.jetstream.nodes import part_of
from tests.hub.processes import COMMAND, Process, hub_process
from tests.nats_servers import NatsCluster, running_nats
from tests.waiting import PATIENCE

PAGE = "https://source.example/page"
SECRET = "the secret of the subscription"


@asynccontextmanager
async def node(store: str) -> AsyncIterator[tuple[Client, Process]]:
    """Run a node that takes its shards soon; it has no data of its own."""
    command = (sys.executable, "-m", fast_node.__name__, "hub")
    async with hub_process(Path("unused"), "--store", store, command=command) as running:
        yield running


@pytest.fixture(autouse=True)
def long_leases(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(fast_node.LONG_LEASES, "1")


@pytest.fixture
def own_nats(tmp_path: Path) -> Iterator[NatsCluster]:
    """A server of the test's own, which it may wipe."""
    with running_nats(tmp_path / "nats") as server:
        yield server


async def run(*arguments: str | Path) -> tuple[int, str]:
    """Run a subcommand; return its exit code and all that it prints."""
    process = await asyncio.create_subprocess_exec(
        *COMMAND, *arguments, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.STDOUT
    )
    async with asyncio.timeout(PATIENCE):
        printed, _ = await process.communicate()
    assert process.returncode is not None
    return process.returncode, printed.decode()


async def succeeded(*arguments: str | Path) -> str:
    code, printed = await run(*arguments)
    assert code == 0, printed
    return printed


async def refused(*arguments: str | Path) -> str:
    """Return the sentence with which a subcommand ends."""
    code, printed = await run(*arguments)
    assert code != 0
    assert printed.count("\n") == 1
    return printed


async def stop(process: Process) -> None:
    process.send_signal(signal.SIGTERM)
    async with asyncio.timeout(PATIENCE):
        await process.wait()


async def delivered(callback: Callback) -> list[float]:
    """Return the seconds of the next delivery, which has to be signed with the secret."""
    headers, body = await callback.delivery()
    signature = hmac.new(SECRET.encode(), body, hashlib.sha256).hexdigest()
    assert headers["X-Hub-Signature"] == f"sha256={signature}"
    return seconds_of(body)


async def delivered_and_stored(hub: Client, callback: Callback) -> list[float]:
    found = await delivered(callback)
    await hub.level()
    return found


async def published_page(hub: Client) -> None:
    assert await hub.publish(b"any", topic=PAGE, Content_Type="text/plain") == (202, "")


async def test_a_hub_moves_to_a_cluster_and_back_and_its_deliveries_continue(
    tmp_path: Path, callback: Callback, nats_server: NatsCluster
):
    store = f"{nats_server.url}?prefix={part_of(tmp_path)}"
    there, back = tmp_path / "there.jsonl", tmp_path / "back.jsonl"
    async with hub_process(tmp_path / "one") as (hub, process):
        await hub.subscribe(callback, secret=SECRET)
        await hub.accepted(fragment(0, 1))
        assert await delivered_and_stored(hub, callback) == [1]
        callback.answers = [500] * 1000
        await hub.accepted(fragment(1, 2))
        assert await delivered(callback) == [2]
        await stop(process)
    callback.answers.clear()
    while not callback.deliveries.empty():
        callback.deliveries.get_nowait()
    await succeeded("export", there, "--data", tmp_path / "one")
    assert there.stat().st_mode & 0o777 == 0o600
    printed = await succeeded("import", there, "--store", store)
    assert printed == "imported 1 subscription and 0 whole contents\n"
    async with node(store) as (hub, process):
        await hub.accepted(fragment(2, 3))  # after the interval of the one that failed
        assert await delivered_and_stored(hub, callback) == [3]
        listener = await hub.listen(1)
        gap = {"type": "gap", "topic": TOPIC, "from": format_datetime(at(2))}
        assert await listener.receive_json() == gap
        assert seconds_of(await listener.receive_str()) == [3]
        await listener.close()
        await stop(process)
    await succeeded("export", back, "--store", store)
    await succeeded("import", back, "--data", tmp_path / "two")
    async with hub_process(tmp_path / "two") as (hub, _):
        await hub.accepted(fragment(3, 4))
        assert await delivered_and_stored(hub, callback) == [4]
    assert callback.deliveries.empty()


async def test_a_cluster_whose_nats_was_wiped_continues_with_an_export(
    tmp_path: Path, callback: Callback, own_nats: NatsCluster
):
    file, store = tmp_path / "backup.jsonl", own_nats.url
    async with node(store) as (hub, _):
        await hub.subscribe(callback, secret=SECRET)
        await hub.accepted(fragment(0, 1))
        assert await delivered_and_stored(hub, callback) == [1]
        await published_page(hub)
        await succeeded("export", file, "--store", store)
    own_nats.stop()
    for server in own_nats.servers.values():
        server.wipe()
    own_nats.start()
    async with node(store) as (hub, _):
        await hub.accepted(fragment(1, 2))
        await published_page(hub)
        printed = await succeeded("import", file, "--store", store)
        assert printed == (
            "imported 1 subscription and 0 whole contents\n"
            "skipped 1 whole content: the hub has the same content or a newer entry\n"
        )
        assert await delivered_and_stored(hub, callback) == [2]
        await hub.accepted(fragment(2, 3))
        assert await delivered_and_stored(hub, callback) == [3]
        printed = await succeeded("import", file, "--store", store)
        assert "skipped 1 subscription: the hub has the same or a newer lease\n" in printed


async def test_a_folder_that_a_hub_uses_is_neither_exported_nor_imported_into(tmp_path: Path):
    data, file = tmp_path / "hub", tmp_path / "hub.jsonl"
    async with hub_process(data):
        in_use = f"rsnotify: another hub is using the folder {data}\n"
        assert await refused("export", file, "--data", data) == in_use
        assert not file.exists()
    await succeeded("export", file, "--data", data)
    async with hub_process(data):
        assert await refused("import", file, "--data", data) == in_use


async def test_each_wrong_file_gets_one_clear_error_and_changes_nothing(tmp_path: Path):
    file, data, new = tmp_path / "hub.jsonl", tmp_path / "hub", tmp_path / "new"
    assert f"the folder {data} has no data of a hub" in await refused(
        "export", file, "--data", data
    )
    async with hub_process(data) as (hub, _):
        await hub.accepted(fragment(0, 1))
    await succeeded("export", file, "--data", data)
    assert "already exists; name a new file" in await refused("export", file, "--data", data)
    assert "it does not exist" in await refused("export", tmp_path / "no/hub.jsonl", "--data", data)
    assert "it does not exist" in await refused("import", tmp_path / "none", "--data", new)
    lines = file.read_bytes().splitlines(keepends=True)
    file.write_bytes(b"".join(lines[:-1]))
    assert await refused("import", file, "--data", new) == (
        f"rsnotify: cannot import {file}: it is incomplete: its last line is missing\n"
    )
    file.write_bytes(lines[0] + b"{}\n")
    assert f"cannot import {file}: line 2 is invalid: " in await refused(
        "import", file, "--data", new
    )
    assert not new.exists()


async def test_an_option_before_the_subcommand_is_refused(tmp_path: Path):
    printed = await refused("--data", tmp_path, "export", tmp_path / "hub.jsonl")
    assert printed == "rsnotify: --data: options of `export` come after it\n"


async def test_a_folder_that_is_named_is_used_whatever_the_settings_say(tmp_path: Path):
    async with hub_process(tmp_path / "hub") as (hub, _):
        await published_page(hub)
    settings = tmp_path / "hub.toml"
    settings.write_text('store = "nats://127.0.0.1:9"\n')
    file = tmp_path / "hub.jsonl"
    await succeeded("export", file, "--data", tmp_path / "hub", "--config", settings)
    assert PAGE in file.read_text()
