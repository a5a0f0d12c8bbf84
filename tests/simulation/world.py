"""A Source, a hub and Destinations on simulated machines, and what must hold of them."""

from __future__ import annotations

import asyncio
import hashlib
import os
import shutil
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from functools import cache, partial
from pathlib import Path
from typing import Any, Protocol

from aiohttp import web

from rsnotify.errors import RsnotifyError
from rsnotify.format.datetimes import Instant, to_microseconds
from rsnotify.format.vocabulary import ChangeType
from rsnotify.sync.pace import Pace
from rsnotify_hub.application import create_application
from rsnotify_hub.config.configuration import HubConfiguration
from rsnotify_hub.config.loading import load_configuration
from rsnotify_publisher import Options, Publisher, routes
from rsnotify_publisher.journal import RecordedChanges
from rsnotify_subscriber import FolderMirror, FollowOptions, Subscriber
from tests.simulation.loop import Clock, Machine, SimulatedLoop
from tests.simulation.network import Network

SOURCE_PORT, HUB_PORT = 8001, 8002
BASE = f"http://127.0.0.1:{SOURCE_PORT}/"
HUB = f"http://127.0.0.1:{HUB_PORT}/"


class Wrong(AssertionError):
    """A promise was broken."""


class Simulated(Protocol):
    """A machine that is started and killed."""

    machine: Machine | None

    def start(self) -> None: ...
    def kill(self) -> None: ...


class SourceMachine:
    """An application that embeds a Publisher, and serves its resources and documents."""

    def __init__(self, loop: SimulatedLoop, network: Network, folder: Path) -> None:
        self._loop = loop
        self._network = network
        self.folder = folder
        #: The resources, as on the disk of the application.
        self.contents: dict[str, bytes] = {}
        #: URIs that changed, and whose change was not recorded yet.
        self.unrecorded: dict[str, None] = {}
        self.machine: Machine | None = None
        self.clock = Clock()
        self._versions = 0
        #: All recorded changes: the datetime (µs), the URI, and the hash; None if it was deleted.
        self.recorded: list[tuple[int, str, str | None]] = []

    def start(self) -> None:
        self.machine = machine = Machine(self._loop, "source", self.clock)
        self._network.register(machine)
        machine.spawn(self._run(machine))

    async def _run(self, machine: Machine) -> None:
        options = Options(
            heartbeat=5, refresh=0.5, resource_list_every=20, rotate="15 changes", poll=5
        )
        publisher = Publisher(
            self.folder,
            BASE,
            hubs=[HUB],
            options=options,
            content=self.contents.get,
        )
        publisher.start()
        recorder = publisher._recorder
        recorder.on_recorded = partial(self._note, recorder.on_recorded)
        app = web.Application()
        app.router.add_get("/r/{name}", self._resource)
        app.add_routes(routes(publisher))
        runner = web.AppRunner(app, access_log=None)
        await runner.setup()
        assert runner.server is not None
        self._network.listen(machine, SOURCE_PORT, runner.server)
        self._publisher = publisher
        for uri in list(self.unrecorded):
            await self._record(uri)
        await asyncio.Event().wait()

    def _note(
        self,
        passed_on: Callable[[Sequence[RecordedChanges]], None],
        recorded: Sequence[RecordedChanges],
    ) -> None:
        for change in [change for each in recorded for change in each.changes]:
            assert change.datetime is not None
            is_gone = change.change is ChangeType.DELETED
            digest = None if is_gone else change.hash
            self.recorded.append((to_microseconds(change.datetime), change.uri, digest))
        passed_on(recorded)

    async def _resource(self, request: web.Request) -> web.Response:
        body = self.contents.get(BASE + request.path[1:])
        if body is None:
            raise web.HTTPNotFound
        return web.Response(body=body)

    def change(self, number: int, *, delete: bool) -> None:
        """Change a resource, and record that."""
        assert self.machine is not None
        uri = f"{BASE}r/{number}"
        self._versions += 1
        if delete:
            self.contents.pop(uri, None)
        else:
            size = self._loop.random.choice((10, 300, 30_000))
            self.contents[uri] = (b"%d " % self._versions * size)[:size]
        self.unrecorded[uri] = None
        if hasattr(self, "_publisher"):
            self.machine.spawn(self._record(uri))

    async def _record(self, uri: str) -> None:
        content = self.contents.get(uri)
        if content is None:
            change: dict[str, Any] = {}
            await self._publisher.adeleted(uri, **change)
        else:
            digest = _hash(content)
            await self._publisher.aupdated(uri, hash=digest, length=len(content))
        if self.contents.get(uri) == content:
            self.unrecorded.pop(uri, None)

    def kill(self) -> None:
        assert self.machine is not None
        self.machine.kill()
        self.machine = None
        del self._publisher

    # What is true

    def set_at(self, instant: Instant) -> dict[str, str]:
        """Return the hash of each resource that existed at an instant."""
        end = to_microseconds(instant)
        found: dict[str, str] = {}
        for at, uri, digest in self.recorded:
            if at > end:
                break
            if digest is None:
                found.pop(uri, None)
            else:
                found[uri] = digest
        return found

    def sets_since(self, instant: Instant) -> Iterator[dict[str, str]]:
        """Yield the set at an instant, and after each later change."""
        found = self.set_at(instant)
        yield found
        for at, uri, digest in self.recorded:
            if at > to_microseconds(instant):
                if digest is None:
                    found.pop(uri, None)
                else:
                    found[uri] = digest
                yield found


class HubMachine:
    def __init__(self, loop: SimulatedLoop, network: Network, folder: Path) -> None:
        self._loop = loop
        self._network = network
        self.folder = folder
        self.machine: Machine | None = None

    def start(self) -> None:
        self.machine = machine = Machine(self._loop, "hub")
        self._network.register(machine)
        machine.spawn(self._run(machine))

    async def _run(self, machine: Machine) -> None:
        configuration = _configuration(str(self.folder))
        app = create_application(
            configuration,
            public_url=HUB,
            anonymous=True,
        )
        runner = web.AppRunner(app, access_log=None, auto_decompress=False)
        await runner.setup()
        assert runner.server is not None
        self._network.listen(machine, HUB_PORT, runner.server)
        await asyncio.Event().wait()

    def kill(self) -> None:
        assert self.machine is not None
        self.machine.kill()
        self.machine = None

    def lose_data(self) -> None:
        shutil.rmtree(self.folder, ignore_errors=True)


@cache
def _configuration(folder: str) -> HubConfiguration:
    return load_configuration(None, port=HUB_PORT, data=folder, allow_private_addresses=True)


class DestinationMachine:
    """A subscriber with a folder."""

    def __init__(
        self, loop: SimulatedLoop, network: Network, root: Path, name: str, source: SourceMachine
    ) -> None:
        self._loop = loop
        self._network = network
        self.name = name
        self.copy, self.state = root / name / "copy", root / name / "state"
        self.copy.parent.mkdir()
        self._source = source
        self.machine: Machine | None = None
        self.subscriber: Subscriber | None = None
        self.failures: list[str] = []
        #: The hashes of files, by what changes when they change.
        self._hashes: dict[object, str] = {}

    def start(self) -> None:
        self.machine = machine = Machine(self._loop, self.name)
        self._network.register(machine)
        machine.spawn(self._run())

    async def _run(self) -> None:
        self.subscriber = Subscriber(
            BASE,
            FolderMirror(self.copy),
            state=self.state,
            options=FollowOptions(
                allow_private_addresses=True,
                pace=Pace(poll=3.0, poll_with_push=15.0),
            ),
        )
        try:
            await self.subscriber.run()
        except RsnotifyError as error:
            self.failures.append(str(error))

    def kill(self) -> None:
        assert self.machine is not None
        self.machine.kill()
        self.machine = None
        self.subscriber = None

    @property
    def is_level(self) -> bool:
        return self.subscriber is not None and self.subscriber.status.level

    def content(self) -> dict[str, str]:
        """Return the hash of each file of the copy, by URI."""
        found = {}
        with suppress(FileNotFoundError), os.scandir(self.copy / "r") as files:
            for file in files:
                facts = file.stat()
                key = facts.st_ino, facts.st_size, facts.st_mtime_ns, facts.st_ctime_ns
                if key not in self._hashes:
                    with open(file.path, "rb") as content:
                        self._hashes[key] = _hash(content.read())
                found[f"{BASE}r/{file.name}"] = self._hashes[key]
        return found

    def check(self) -> None:
        """Raise Wrong if the copy is not what the status says."""
        if self.subscriber is None:
            return
        status = self.subscriber.status
        if not status.level or status.through is None:
            return
        found = self.content()
        if any(found == expected for expected in self._source.sets_since(status.through)):
            return
        expected = self._source.set_at(status.through)
        differing = sorted({uri for uri, _ in expected.items() ^ found.items()})
        raise Wrong(
            f"{self.name} is level through {status.through}, but differs in {differing}: it has "
            f"{found} instead of {expected}"
        )


def _hash(content: bytes) -> str:
    return "sha-256:" + hashlib.sha256(content).hexdigest()
