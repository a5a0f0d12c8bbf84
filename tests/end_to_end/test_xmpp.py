"""docs/xmpp.md as its readers use it: its configurations, commands and program."""

from __future__ import annotations

import asyncio
import shlex
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from watchfiles import awatch

from tests.end_to_end.page_place import PagePlace
from tests.prosody import DOMAIN, PASSWORDS, PATIENCE, Prosody
from tests.reader import blocks

PAGE = "docs/xmpp.md"


class Place(PagePlace):
    """A folder with what the page speaks of, a server, and the programs that run there."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        (hosts,) = blocks(PAGE, "lua")
        self.server = Prosody(folder / "prosody", hosts=hosts.replace("example.org", DOMAIN))
        (folder / "ca.pem").write_text(Path(self.server.ca).read_text())
        (folder / "xmpp.password").write_text(PASSWORDS["hub"] + "\n")

    def adapt(self, text: str) -> str:
        return (
            text.replace("https://source.example/data/", self.base)
            .replace("xmpp.example.org:5222", f"127.0.0.1:{self.server.port}")
            .replace("example.org", DOMAIN)
        )

    @asynccontextmanager
    async def rsnotify(self, line: str) -> AsyncIterator[None]:
        _, *arguments = shlex.split(self.adapt(line.replace("\\\n", " ")))
        environ = {
            "RSNOTIFY_SOURCE_XMPP_PASSWORD": PASSWORDS["hub"],
            "RSNOTIFY_SOURCE_PORT": str(self.port),
            "RSNOTIFY_SOURCE_HEARTBEAT": "0.5",
            "RSNOTIFY_FOLLOW_XMPP_PASSWORD": PASSWORDS["reader"],
            "RSNOTIFY_FOLLOW_POLL": "2",
        }
        async with self.run(sys.executable, "-m", "rsnotify", *arguments, **environ):
            yield


@pytest.fixture
async def place(tmp_path: Path) -> AsyncIterator[Place]:
    place = Place(tmp_path)
    async with place.server:
        yield place


async def test_a_source_and_a_destination_need_a_service_and_no_hub(place: Place):
    source, follow = blocks(PAGE, "sh")
    async with place.rsnotify(source):
        async with place.rsnotify(follow):
            await place.arrives("through the service\n")
        (program,) = blocks(PAGE, "python")
        program = place.adapt(program).replace("the reader's password", PASSWORDS["reader"])
        async with place.run(sys.executable, "-c", program):
            await place.arrives("by the library\n")


async def test_a_source_that_knows_its_hub_alone_is_followed_over_xmpp(place: Place):
    _, follow = blocks(PAGE, "sh")
    (settings,) = blocks(PAGE, "toml")
    server = f'xmpp_server = "127.0.0.1:{place.server.port}"\nxmpp_ca = "ca.pem"\n'
    (place.folder / "hub.toml").write_text(place.adapt(settings) + server)
    hub = f"rsnotify hub --config hub.toml --port {place.hub_port}"
    source = (
        f"rsnotify source data --base-url {place.base} --hub http://127.0.0.1:{place.hub_port}/"
    )
    async with place.rsnotify(hub), place.rsnotify(source):
        capability_list = place.folder / "data.rsnotify/source/documents/capabilitylist.xml"
        async with asyncio.timeout(PATIENCE):
            async for _ in awatch(place.folder, rust_timeout=100, yield_on_timeout=True):
                if capability_list.exists() and b'"xmpp:' in capability_list.read_bytes():
                    break
        async with place.rsnotify(follow):
            await place.arrives("through hub and service\n")
