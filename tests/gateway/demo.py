"""An OAI-PMH repository whose changes arrive in a browser: `make gateway-demo`.

The repository (pyoai, or oai_repo where pyoai does not run) has no push. A hub follows it, and
sends its changes to a page as Server-Sent Events.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
import tempfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from random import Random

from aiohttp import web
from msgspec import Struct

from rsnotify.runtime.processes import Process
from tests.gateway.repositories import Items, RepositoryServer, oai_repo, pyoai
from tests.gateway.running import until_answered

PAGE = Path(__file__).with_name("demo.html")
RECORDS = 20
_HUB = """
websocket_origins = ["{page}"]
follow_contact = "mailto:operator@demo.example"
[[follow]]
name = "repository"
type = "oai-pmh"
url = "{repository}"
poll = 0.5
poll_most = 1
delay = 0
compare = 3
overlap = 2
"""


class RunningDemo(Struct):
    """The parts of a demo."""

    url: str
    items: Items
    hub: Process


@asynccontextmanager
async def running_demo(folder: Path, port: int = 0) -> AsyncIterator[RunningDemo]:
    """Run the repository, the hub and the page within the context."""
    # pyoai imports cgi, which Python 3.13 does not have.
    make = pyoai if sys.version_info < (3, 13) else oai_repo
    items = Items("persistent" if make is pyoai else "no")
    for number in range(RECORDS):
        items.put(f"record-{number}", f"Record {number}")
    text: list[str] = []

    async def show(request: web.Request) -> web.Response:
        if request.path != "/" or not text:
            return web.Response(status=204)
        return web.Response(text=text[0], content_type="text/html")

    app = web.Application()
    runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.1)
    app.router.add_get("/{name:.*}", show)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", port)
    async with RepositoryServer(items, make) as repository:
        hub = None
        try:
            # The hub has to know the origin of the page, and the page the URL of the hub.
            await site.start()
            url = f"http://127.0.0.1:{site.port}"
            file = folder / "hub.toml"
            file.write_text(_HUB.format(page=url, repository=repository.url))
            arguments = ("hub", "--port", "0", "--config", str(file), "--data", str(folder / "hub"))
            hub = await Process.start(*arguments, log=folder / "hub.log")
            hub_url = await hub.url()
            # Changes are shown from then on.
            await until_answered(f"{hub_url}follow/repository/resourcelist.xml")
            page = PAGE.read_text().replace("SET", f"{hub_url}follow/repository/")
            text.append(page.replace("HUB", hub_url).replace("REPOSITORY", repository.url))
            yield RunningDemo(url + "/", items, hub)
        finally:
            if hub is not None:
                await hub.stop()
            await runner.cleanup()


def change_something(items: Items, random: Random) -> None:
    name = f"record-{random.randrange(2 * RECORDS)}"
    present = f"oai:{name}" in items.items and not items.items[f"oai:{name}"].deleted
    if present and random.random() < 0.3:
        items.delete(name)
    else:
        items.put(name, f"Version {random.randrange(10**6)}")


async def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--port", type=int, default=0)
    parser.add_argument("--seconds", type=float, help="stop after so many seconds")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="rsnotify-gateway-demo-") as folder:
        async with running_demo(Path(folder), given.port) as demo:
            print(f"Open {demo.url} in a browser; Ctrl-C ends the demo.", flush=True)
            with suppress(TimeoutError):
                async with asyncio.timeout(given.seconds):
                    while True:
                        change_something(demo.items, Random())
                        await asyncio.sleep(1)


if __name__ == "__main__":
    with suppress(KeyboardInterrupt):
        asyncio.run(main())
