"""The examples of docs/extending.md, installed beside rsnotify as they stand."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tomllib
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.reader import ROOT, fences_of

PAGE = (ROOT / "docs/extending.md").read_text()
FILES = {
    match[1]: body
    for language, body in fences_of(PAGE)
    if (match := re.match(r"# (\S+\.(?:py|toml))\n", body))
}
#: Installs nothing, but makes the entry points of the page known beside those of rsnotify.
Run = Callable[[str], str]


@pytest.fixture
def run(tmp_path: Path) -> Run:
    """Run a program in a process where the package of the page is installed."""
    site = tmp_path / "site"
    metadata = site / "rsnotify_example-1.0.dist-info"
    metadata.mkdir(parents=True)
    for name, body in FILES.items():
        (site / name).write_text(body)
    project = tomllib.loads(FILES["pyproject.toml"])["project"]
    text = f"Metadata-Version: 2.1\nName: {project['name']}\nVersion: {project['version']}\n"
    (metadata / "METADATA").write_text(text)
    lines = []
    for group, points in project["entry-points"].items():
        lines += [f"[{group}]", *(f"{name} = {value}" for name, value in points.items())]
    (metadata / "entry_points.txt").write_text("\n".join(lines) + "\n")
    environment = {**os.environ, "PYTHONPATH": f"{site}{os.pathsep}{ROOT}"}

    def run(program: str) -> str:
        done = subprocess.run(
            [sys.executable, "-c", program],
            env=environment,
            cwd=tmp_path,
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    return run


def test_the_page_has_an_example_of_each_group() -> None:
    groups = tomllib.loads(FILES["pyproject.toml"])["project"]["entry-points"]
    named = set(re.findall(r"^\| `(rsnotify\.\w+)` \|", PAGE, re.MULTILINE))
    # An example of a store would be a whole store; the page names the shorter of the two.
    assert {*groups, "rsnotify.stores"} == named
    modules = {value.partition(":")[0] for points in groups.values() for value in points.values()}
    assert {f"{module}.py" for module in modules} <= FILES.keys()


def test_the_view(run: Run) -> None:
    program = """
from pathlib import Path
from rsnotify_publisher import Options, Publisher
options = Options(views=("jsonl",), rotate="2 changes", refresh=0.01, linger=0)
with Publisher("state", "http://source.example/", options=options) as publisher:
    for number in range(5):
        publisher.updated(f"http://source.example/{number}")
    assert publisher.wait_published(30)
    import time
    folder = Path("state/documents/resourcesync")
    while b'/4"' not in b"".join(p.read_bytes() for p in folder.glob("*.jsonl")):
        time.sleep(0.01)
print((folder / "changes.jsonl").read_text())
print((Path("state/documents/capabilitylist.xml")).read_text())
"""
    shown = run(program)
    assert '{"pages": [' in shown
    assert 'href="http://source.example/resourcesync/changes.jsonl"' in shown


def test_the_patch(run: Run) -> None:
    program = """
from rsnotify_subscriber.content.patches import PatchFunctions
print(PatchFunctions({}).load("application/x-appended")(b"a", b"b"))
"""
    assert run(program) == "b'ab'\n"


def test_the_transport(run: Run, tmp_path: Path) -> None:
    program = f"""
import asyncio
import socket
from pathlib import Path
from aiohttp import web
from example_transport import NoLogin
from rsnotify_publisher import Options, Publisher, application
from rsnotify_subscriber import FolderMirror, FollowOptions, Subscriber, Via

async def main():
    async with asyncio.timeout(50):
        listener = socket.create_server(("127.0.0.1", 0))
        base = f"http://127.0.0.1:{{listener.getsockname()[1]}}/"
        options = Options(refresh=0.01, heartbeat=0.1)
        hubs = ["spool:{tmp_path}/spool/"]
        publisher = Publisher("state", base, hubs=hubs, options=options, content=str.encode)
        app = application(publisher)

        async def answer(request):
            return web.Response(text=base + request.match_info["name"])

        app.router.add_get("/{{name}}", answer)
        runner = web.AppRunner(app)
        await runner.setup()
        await web.SockSite(runner, listener).start()
        await publisher.aupdated(base + "one")
        assert await asyncio.to_thread(publisher.wait_published, 30)
        following = FollowOptions(logins={{"spool": NoLogin()}}, via=Via("spool"))
        mirror = FolderMirror("copy")
        subscriber = Subscriber(base, mirror, state=Path("known"), options=following)
        task = asyncio.create_task(subscriber.run())
        while not (task.done() or list(Path("copy").rglob("one"))):
            await asyncio.sleep(0.01)
        await publisher.aupdated(base + "two")
        while not (task.done() or list(Path("copy").rglob("two"))):
            await asyncio.sleep(0.01)
        assert not task.done(), await task
        print(subscriber.status.push.value)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        await runner.cleanup()

asyncio.run(main())
"""
    assert run(program) == "up\n"
    assert list((tmp_path / "spool").rglob("*.xml"))


def test_the_origin(run: Run) -> None:
    program = """
import asyncio
from pathlib import Path
from aiohttp import web
from rsnotify_gateway import Gateway, OriginSettings
from rsnotify_gateway.config import load_gateway

print(load_gateway(Path("site/gateway.toml")).origins[0].type)
texts = ["http://o.example/a 1\\nhttp://o.example/b 1\\n", "http://o.example/a 2\\n"]

async def main():
    app = web.Application()
    async def answer(request):
        return web.Response(text=texts[0])
    app.router.add_get("/list.txt", answer)
    runner = web.AppRunner(app)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    port = runner.addresses[0][1]
    origin = OriginSettings(
        name="list", type="uri-list", url=f"http://127.0.0.1:{port}/list.txt",
        allow_private_addresses=True, delay=0, poll=0.05, poll_most=0.05,
    )
    gateway = Gateway("state", "http://gateway.example/", [origin], contact="mailto:a@b.example")
    task = asyncio.create_task(gateway.run())
    (watch,) = gateway.watches
    async with asyncio.timeout(30):
        await watch.ready.wait()
        texts.pop(0)
        while watch.publisher.source.count() != 1:
            await asyncio.sleep(0.02)
    with watch.publisher.source.open_journal() as journal:
        print([(str(one.change), one.uri[-1]) for one in journal.changes(0)])
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    await runner.cleanup()

asyncio.run(main())
"""
    shown = run(program).splitlines()
    assert shown[0] == "uri-list"
    assert shown[1].startswith("[('created', 'a'), ('created', 'b'), ")
    assert "('updated', 'a')" in shown[1]
    assert "('deleted', 'b')" in shown[1]


def test_the_command(run: Run, tmp_path: Path) -> None:
    (tmp_path / "copy").mkdir()
    (tmp_path / "copy/one").write_text("12345")
    program = """
import sys
from rsnotify.runtime.command_line import main
sys.argv = ["rsnotify", "size", "copy"]
main()
"""
    assert run(program) == "1 files, 5 bytes\n"
