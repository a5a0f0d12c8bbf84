"""docs/reverse-proxies.md and docs/hub-behind-nginx.md: a hub behind each proxy, with TLS."""

from __future__ import annotations

import os
import shutil
import ssl
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import AbstractContextManager, asynccontextmanager, contextmanager
from io import BytesIO
from pathlib import Path
from typing import NamedTuple

import aiohttp
import pytest

from tests.certificates import Authority
from tests.hub.event_streams import events
from tests.hub.helpers import Client, fragment, seconds_of
from tests.ports import free_port, port_for
from tests.reader import ROOT, TOKEN, fences_of, with_secrets
from tests.running import Running
from tests.test_application_servers import server
from tests.waiting import PATIENCE, until

PROXIES = ("nginx", "caddyfile", "apache", "haproxy")
APACHE_MODULES = ("socache_shmcb", "ssl", "proxy", "proxy_http")
#: The clients' address, which is not that of the proxy.
CLIENT = "127.0.0.2"
BEARER = f"Bearer {TOKEN}"
#: In a fragment of almost `max_fragment_bytes`.
PADDING = 4 * 1024 * 1024 - 10_000


def fence(page: str, language: str) -> str:
    return dict(fences_of((ROOT / page).read_text()))[language]


class Hub(NamedTuple):
    folder: Path
    port: int
    public_port: int
    context: ssl.SSLContext


@pytest.fixture(scope="module")
def hub(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Hub]:
    """A hub with the file of the page, a certificate, and a port for the proxy."""
    folder = tmp_path_factory.mktemp("hub")
    authority = Authority(folder)
    certificate, key = authority.certificate("localhost")
    both = Path(certificate).read_text() + Path(key).read_text()
    (folder / "hub.pem").write_text(both)
    context = ssl.create_default_context(cafile=authority.file)
    made = Hub(folder, free_port(), port_for(authority), context)
    text = with_secrets(fence("docs/hub-behind-nginx.md", "toml"))
    text = text.replace("8080", str(made.port)).replace("hub-data", str(folder / "data"))
    text = text.replace("hub.example", f"localhost:{made.public_port}")
    (folder / "hub.toml").write_text(text)
    command = [sys.executable, "-m", "rsnotify", "hub", "--config", str(folder / "hub.toml")]
    process = Running(command, os.environ)
    try:
        process.says("listening on")
        yield made
    finally:
        process.show()
        process.stop()


@contextmanager
def haproxy(recipe: str, folder: Path) -> Iterator[None]:
    path = f"{os.environ['PATH']}:/usr/sbin"
    if shutil.which("haproxy", path=path) is None:
        pytest.skip("haproxy is not installed")
    (folder / "config").write_text(f"global\n    maxconn 100\n{recipe}")
    process = Running(["haproxy", "-f", str(folder / "config")], {"PATH": path}, folder)
    try:
        yield
    finally:
        process.show()
        process.stop()


def proxy(name: str, hub: Hub, folder: Path) -> AbstractContextManager[object]:
    """Start a proxy with the block of its page."""
    page = "docs/hub-behind-nginx.md" if name == "nginx" else "docs/reverse-proxies.md"
    recipe = fence(page, name).replace("127.0.0.1:8080", f"127.0.0.1:{hub.port}")
    listens = f"127.0.0.1:{hub.public_port}"
    pem = str(hub.folder / "hub.pem")
    own = f"tls {pem} {pem}"  # as the page says of Caddy
    for old, new in {
        "/etc/ssl/hub.example.pem": pem,
        "/etc/ssl/hub.example.key": pem,
        "/etc/haproxy/hub.example.pem": pem,
        "listen 443": f"listen {listens}",
        "bind :443": f"bind {listens}",
        "<VirtualHost *:443>": f"Listen {listens}\n<VirtualHost {listens}>",
        "hub.example {": f"https://localhost:{hub.public_port} {{\n\tbind 127.0.0.1\n\t{own}",
        "hub.example": "localhost",
    }.items():
        recipe = recipe.replace(old, new)
    if name == "haproxy":
        return haproxy(recipe, folder)
    if name == "apache":
        there = "/usr/lib/apache2/modules"
        loads = [f"LoadModule {one}_module {there}/mod_{one}.so\n" for one in APACHE_MODULES]
        recipe = "".join(loads) + recipe
    return server(name, recipe, folder)


@asynccontextmanager
async def client(hub: Hub) -> AsyncIterator[Client]:
    connector = aiohttp.TCPConnector(local_addr=(CLIENT, 0), ssl=hub.context)
    async with (
        aiohttp.ClientSession(connector=connector) as session,
        Client(f"https://localhost:{hub.public_port}/", session) as made,
    ):
        yield made


@pytest.mark.parametrize("name", PROXIES)
async def test_a_hub_works_behind_the_proxy(name: str, hub: Hub, tmp_path: Path) -> None:
    begin = 2 * PROXIES.index(name)
    large, body = fragment(begin, begin + 1, padding=PADDING), fragment(begin + 1, begin + 2)
    with proxy(name, hub, tmp_path):
        async with client(hub) as one:

            async def answers() -> bool:
                try:
                    return (await one.get("readyz"))[0] == 200
                except aiohttp.ClientError:
                    return False

            await until(answers)
            _, found = await one.get(".well-known/rsnotify-hub")
            assert f'"https://localhost:{hub.public_port}/' in found
            assert f'"wss://localhost:{hub.public_port}/' in found
            assert '"http://' not in found
            status, dashboard = await one.get("")
            assert status == 200
            assert "<title>rsnotify hub</title>" in dashboard
            assert await one.publish(BytesIO(large), Authorization=BEARER) == (202, "")
            socket = await one.listen(X_Forwarded_For="203.0.113.7")
            async with events(one) as stream:
                await stream.expect("subscribed")
                assert await one.publish(body, Authorization=BEARER) == (202, "")
                # While both connections stay open.
                assert seconds_of(await socket.receive_str(timeout=PATIENCE)) == [begin + 2]
                assert await stream.heard(begin + 2) == [begin + 2]
                # The hub knows the client, not the proxy, nor an address that the client made up.
                headers = {"Authorization": BEARER}
                url = f"{one.url}admin/connections"
                async with one.session.get(url, headers=headers) as response:
                    rows = (await response.json())["connections"]
                assert {row["address"] for row in rows} == {CLIENT}
            assert (await one.publish(body))[0] in (401, 403)
