"""What befalls the NATS of a cluster as a whole: it is wiped, or it is that of others."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from collections.abc import Awaitable, Callable, Mapping
from contextlib import AsyncExitStack
from pathlib import Path
from signal import SIGKILL, SIGTERM

import nats
from nats.js.api import StreamConfig

from tests.harnesses.cluster.deployment import NODES, Deployment, nats_servers
from tests.hub.helpers import Client, fragment
from tests.nats_servers import running_nats

TOPIC = "https://source.example/wiped/channel.xml"
_PUBLISHERS = '[{"token": "a-token-that-is-long-enough-for-it", "topics": ["https://a.example/"]}]'
#: Seconds in which a hub has to refuse its store, or to warn.
_REFUSES = 30


async def wiped(root: Path) -> list[str]:
    """Delete all that NATS has, while the hubs run, and while they do not.

    Copies must become right again by the lists of the Source, and every node must say so.
    """
    deployment = Deployment(root, nats_servers(root))
    broken: list[str] = []
    async with deployment.running({}):
        await _publish(deployment, 0)
        print("deleting all that NATS has, while the hubs run", flush=True)
        await _wipe(deployment)
        for name in NODES:
            status, text = await _until_told(deployment, name)
            print(f"  /readyz of {name}: {status} {text}", flush=True)
            if status != 503:
                broken.append(f"{name} is ready though NATS has lost everything")
        client = Client(deployment.hubs["hub1"], deployment.session)
        status, text = await client.publish(fragment(1, 2), topic=TOPIC)
        print(f"  a publication: {status} {text.strip()}", flush=True)
        if status == 202:
            broken.append("a fragment was acknowledged by a hub that asks to be restarted")
        broken += await _heals(deployment, "while the hubs run")
        for name in NODES:
            await deployment.end_hub(name, 0.0, SIGTERM)
        await deployment.until_shared()
        broken += await _heals(deployment, "after the restart")
        await _publish(deployment, 1)

        print("deleting all that NATS has, while the hubs do not run", flush=True)
        ending = [asyncio.create_task(deployment.end_hub(name, 5.0, SIGKILL)) for name in NODES]
        await _wipe(deployment)
        await asyncio.gather(*ending)
        await deployment.until_shared()
        broken += await _heals(deployment, "while they do not run")
        await _publish(deployment, 2)
    broken += [each for name in NODES for each in deployment.parts[name].ended]
    return broken


async def _publish(deployment: Deployment, number: int) -> None:
    for name in NODES:
        client = Client(deployment.hubs[name], deployment.session)
        await client.accepted(fragment(number, number + 1), topic=TOPIC)


async def _wipe(deployment: Deployment) -> None:
    for server in deployment.servers.values():
        await asyncio.to_thread(server.stop)
        await asyncio.to_thread(server.wipe)
    await asyncio.to_thread(deployment.nats.start)


async def _until_told(deployment: Deployment, name: str) -> tuple[int, str]:
    """Return what /readyz answers; other reasons pass, as the node connects again."""
    client = Client(deployment.hubs[name], deployment.session)
    for _ in range(200):
        status, text = await client.get("readyz")
        if "restart" in text:
            break
        await asyncio.sleep(0.1)
    return status, " / ".join(text.split("\n")).strip(" /")


async def _heals(deployment: Deployment, when: str) -> list[str]:
    """Change the Source, and return how its Destination differs at the end."""
    (deployment.source_folder / when.replace(" ", "-")).write_text(when)
    difference = await deployment.in_step()
    print(f"  the copy is {'wrong' if difference else 'right'}, {when}", flush=True)
    return [f"{when}: {difference}"] if difference else []


async def foreign(root: Path) -> list[str]:
    """Start a hub where another program has streams of its names, which it must not alter."""
    broken: list[str] = []
    with running_nats(root / "nats") as servers:
        client = await nats.connect(servers.url)
        try:
            streams = client.jetstream()
            for name, subject in (
                ("rsnotify-log", "orders.>"),
                ("KV_rsnotify-cluster", "stock.>"),
                ("everything", "rsnotify.>"),
            ):
                await streams.add_stream(StreamConfig(name=name, subjects=[subject]))
                said = await _refusal(servers.url)
                found = (await streams.stream_info(name)).config.subjects
                print(f"  {name} with {subject}: {said or 'the hub serves'}", flush=True)
                if found != [subject]:
                    broken.append(f"the hub has given {name} the subjects {found}")
                if not said or "Traceback" in said:
                    broken.append(f"the hub does not refuse {name} with a sentence: {said}")
                for each in await streams.streams_info():
                    assert each.config.name is not None
                    await streams.delete_stream(each.config.name)
        finally:
            await client.close()
        print("two hubs with the same prefix", flush=True)
        broken += await _two_hubs(root, servers.url)
    return broken


async def _two_hubs(root: Path, url: str) -> list[str]:
    """Start two hubs with different public URLs: one of them must warn of the other."""
    urls = ["https://a.example/", "https://b.example/"]
    logs = [root / f"{number}.log" for number in range(len(urls))]
    environment = {"RSNOTIFY_HUB_PUBLISHERS": _PUBLISHERS, "RSNOTIFY_HUB_STORE": url}
    async with AsyncExitStack() as stack:
        for own, path in zip(urls, logs, strict=True):
            with path.open("wb") as log:
                process = await asyncio.create_subprocess_exec(
                    *(sys.executable, "-m", "rsnotify", "hub", "--port", "0"),
                    *("--public-url", own),
                    env={**os.environ, **environment},
                    stdout=subprocess.DEVNULL,
                    stderr=log,
                )
            stack.push_async_callback(process.wait)
            stack.callback(process.terminate)

        def warning() -> str | None:
            lines = [line for path in logs for line in path.read_text().splitlines()]
            return next((each for each in lines if all(one in each for one in urls)), None)

        for _ in range(_REFUSES * 10):
            if (found := warning()) is not None:
                print(f"  {found}", flush=True)
                return []
            await asyncio.sleep(0.1)
    return ["no hub warns of the other hub with the same prefix"]


async def _refusal(url: str) -> str:
    """Start a hub, and return what it printed when it ended by itself; nothing if it serves."""
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "rsnotify", "hub", "--store", url, "--port", "0"),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    assert process.stdout is not None
    assert process.stderr is not None
    async with asyncio.timeout(_REFUSES):
        if await process.stdout.readline():
            process.terminate()
            await process.communicate()
            return ""
        return (await process.stderr.read()).decode().strip()


SCENARIOS: Mapping[str, Callable[[Path], Awaitable[list[str]]]] = {
    "wiped": wiped,
    "foreign": foreign,
}
