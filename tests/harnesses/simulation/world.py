"""A Source, hubs and Destinations on simulated machines."""

from __future__ import annotations

import asyncio
import hashlib
import os
import shutil
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import cache, partial
from pathlib import Path
from random import Random
from typing import Any, NamedTuple

from aiohttp import web
from aiohttp.typedefs import Middleware

from rsnotify.errors import RsnotifyError
from rsnotify.format.datetimes import to_microseconds
from rsnotify.format.model import ChangeType
from rsnotify.selection import Selection
from rsnotify.sync.pace import Pace
from rsnotify_hub.application import create_application
from rsnotify_hub.config.configuration import HubConfig
from rsnotify_hub.config.loading import load_configuration
from rsnotify_publisher import Options, Publisher, routes
from rsnotify_publisher.journal import RecordedChanges
from rsnotify_subscriber import Callbacks, FolderMirror, FollowOptions, Status, Subscriber
from rsnotify_subscriber.push_options import Via
from tests.harnesses.simulation.disk import SimulatedDisk
from tests.harnesses.simulation.history import History, Wrong
from tests.harnesses.simulation.intermediary import delaying, rewriting
from tests.harnesses.simulation.loop import Clock, Machine, SimulatedLoop
from tests.harnesses.simulation.network import Network

SOURCE_PORT = 8001
BASE = f"http://127.0.0.1:{SOURCE_PORT}/"
TOKEN = "simulated"
RESOURCES = 6
#: What the processes of the Source share.
FOLDER = Path("source") / "state"
_CALLBACK_PORT = 8020
_VIA = {"polling": Via.POLL, "websub": Via.WEBSUB}


class World(NamedTuple):
    """The properties of a seed's world.

    Attributes:
        hubs: The number of hubs; without any, the Source is pull-only.
        far: What the second Destination is: plain, filtered, polling, visiting, slow or
            websub.
        rotate: See `Options`.
        keep: See `Options`.
        fragment_entries: See `Options`.
        dumps: Whether the Source writes dumps.
        queue: How many frames a hub queues for a Destination.
        buffer: How many bytes a connection holds.
        power: Whether the power is cut.
        lost: Which part of the fragments is lost on the way to the Destinations' code.
        odd: Which part of them is repeated there, or late.
        rewritten: Whether an intermediary truncates datetimes to seconds, and sorts by URI.
        entries: How many entries a document holds before it gets an index.
        late: Whether an intermediary shows some changes later than others that are newer.
        dead: Whether the server lacks resources for some time that its documents list.
        parked: How many changes wait in memory, and not in the backlog.
        in_flight: How many changes are applied at once; few are taken from the backlog then.
    """

    hubs: int
    far: str
    rotate: str
    keep: str
    fragment_entries: int
    dumps: bool
    queue: int
    buffer: int
    power: bool
    lost: float
    odd: float
    rewritten: bool
    entries: int
    late: bool
    dead: bool
    parked: int
    in_flight: int


def make_world(random: Random, rare: Random) -> World:
    hubs = random.choice((0, 1, 1, 1, 1, 1, 2, 2))
    is_rewritten = hubs == 0 and random.random() < 0.5
    is_tight = random.random() < 0.5
    kinds = ("plain", "plain", "filtered", "polling", "visiting", "slow", "websub")
    is_late = hubs == 0 and not is_rewritten and rare.random() < 0.5
    is_paged = not is_rewritten and not is_late and rare.random() < 0.3
    world = World(
        hubs,
        random.choice(kinds if hubs else kinds[:-1]),
        # Lists that end within a second and have whole seconds contradict each other for ever.
        "15 changes" if is_rewritten else random.choice(("15 changes", "15 changes", "4 changes")),
        random.choice(("1000 lists", "1000 lists", "2 lists")),
        random.choice((1000, 2)),
        random.random() < 0.15,
        3 if is_tight else 4096,
        1_000 if is_tight else 65_536,
        random.random() < 0.5,
        random.choice((0.0, 0.0, 0.05, 0.5)),
        random.choice((0.0, 0.0, 0.1, 0.5)),
        is_rewritten,
        3 if is_paged else 50_000,
        is_late,
        rare.random() < 0.25,
        rare.choice((0, 1, 2, 3)),
        rare.choice((1, 2, 256)),
    )
    # What is late in a closed list is never read: nobody reads that again.
    return world._replace(rotate="1000 changes") if is_late else world


def hub_url(number: int) -> str:
    return f"http://127.0.0.1:{8010 + number}/"


class Simulated:
    """A process of a machine with a clock, which is started, paused and killed."""

    def __init__(self, loop: SimulatedLoop, network: Network, name: str, clock: Clock) -> None:
        self.loop = loop
        self.network = network
        self.name = name
        self.clock = clock
        self.machine: Machine | None = None
        self.disk: SimulatedDisk

    def start(self) -> None:
        self.machine = machine = Machine(self.loop, self.name, self.clock)
        self.network.register(machine)
        machine.spawn(self._run(machine))

    async def _run(self, machine: Machine) -> None:
        try:
            await self.run(machine)
        except Exception as error:
            raise Wrong(f"{self.name} ends by an exception") from error

    async def run(self, machine: Machine) -> None:
        raise NotImplementedError

    @property
    def is_paused(self) -> bool:
        return self.machine is not None and self.machine.is_paused

    def kill(self) -> None:
        assert self.machine is not None
        self.machine.kill()
        self.machine = None


class Application:
    """The resources of a Source, on a disk that its processes share, and what is true of them."""

    def __init__(self, folder: Path, random: Random, world: World) -> None:
        self.folder = folder
        #: What changes the responses of all processes.
        self.middlewares: list[Middleware] = []
        if world.rewritten:
            self.middlewares.append(rewriting)
        elif world.late:
            self.middlewares.append(delaying())
        self.contents: dict[str, bytes] = {}
        #: Each content (URI, hash) that there ever was.
        self.versions = set[tuple[str, str]]()
        #: URIs that changed, and whose change was not recorded yet.
        self.unrecorded: dict[str, None] = {}
        #: URIs that the server answers with 404.
        self.dead = set[str]()
        self.history = History(folder, BASE)
        self._random = random
        self._versions = 0

    def change(self, number: int, *, delete: bool) -> str:
        """Change the content of a resource; return its URI."""
        uri, digest = f"{BASE}r/{number}", None
        self._versions += 1
        if delete:
            self.contents.pop(uri, None)
        else:
            size = self._random.choice((10, 300, 30_000))
            self.contents[uri] = (b"%d " % self._versions * size)[:size]
            digest = hash_of(self.contents[uri])
            self.versions.add((uri, digest))
        self.history.early[uri, digest] = None
        self.unrecorded[uri] = None
        return uri

    def record_again_if_later(self, uri: str, digest: str | None) -> None:
        """Have a resource recorded again if another process has recorded a later version before.

        The process that should do so may be killed now.
        """
        content = self.contents.get(uri)
        if digest != (None if content is None else hash_of(content)):
            self.unrecorded[uri] = None

    def power_was_cut(self) -> None:
        for _, uri, digest in self.history.power_was_cut():
            self.record_again_if_later(uri, digest)

    def back_up(self) -> None:
        backup = Path("backup")
        shutil.rmtree(backup, ignore_errors=True)
        shutil.copytree(self.folder, backup)
        self._backup = dict(self.contents), dict(self.unrecorded), len(self.history.recorded)

    @property
    def has_backup(self) -> bool:
        return hasattr(self, "_backup")

    def restore(self) -> None:
        """Restore the journal, the documents and the resources."""
        shutil.rmtree(self.folder)
        shutil.copytree(Path("backup"), self.folder)
        contents, unrecorded, count = self._backup
        self.contents, self.unrecorded = dict(contents), dict(unrecorded)
        self.history.restored(count)


class SourceMachine(Simulated):
    """A process that embeds a Publisher, and serves resources and documents."""

    def __init__(
        self, loop: SimulatedLoop, network: Network, name: str, world: World, app: Application
    ) -> None:
        super().__init__(loop, network, name, Clock())
        self.app = app
        self._world = world
        self._publisher: Publisher | None = None

    async def run(self, machine: Machine) -> None:
        publisher = Publisher(
            self.app.folder,
            BASE,
            hubs=[hub_url(number) for number in range(self._world.hubs)],
            token=TOKEN,
            options=publishing_options(self._world),
            content=lambda uri: self.app.contents.get(uri),
        )
        publisher.start()
        recorder = publisher._recorder
        recorder.on_recorded = partial(self._note, recorder.on_recorded)
        app = web.Application(middlewares=self.app.middlewares)
        app.router.add_get("/r/{name}", self._resource)
        app.add_routes(routes(publisher))
        await self.network.serve(machine, SOURCE_PORT, app)
        self._publisher = publisher
        for uri in list(self.app.unrecorded):
            await self._record(uri)
        await asyncio.Event().wait()

    def _note(
        self,
        passed_on: Callable[[Sequence[RecordedChanges]], None],
        recorded: Sequence[RecordedChanges],
    ) -> None:
        for change in [change for each in recorded for change in each.changes]:
            assert change.datetime is not None
            digest = None if change.change is ChangeType.DELETED else change.hash
            if self.disk.is_cut:
                return  # the journal shows whether it was in time
            self.app.history.add(to_microseconds(change.datetime), change.uri, digest)
            self.app.record_again_if_later(change.uri, digest)
        passed_on(recorded)

    async def _resource(self, request: web.Request) -> web.Response:
        uri = BASE + request.path[1:]
        body = self.app.contents.get(uri)
        if body is None or uri in self.app.dead:
            raise web.HTTPNotFound
        return web.Response(body=body)

    def change(self, number: int, *, delete: bool) -> None:
        """Change a resource, and record that."""
        assert self.machine is not None
        uri = self.app.change(number, delete=delete)
        if self._publisher is not None:
            self.machine.spawn(self._record(uri))

    async def _record(self, uri: str) -> None:
        """Record the content, again if another process recorded an earlier one meanwhile."""
        while True:
            assert self._publisher is not None
            content = self.app.contents.get(uri)
            digest = None if content is None else hash_of(content)
            if content is None:
                change = await self._publisher.adeleted(uri)
            else:
                change = await self._publisher.aupdated(uri, hash=digest, length=len(content))
            self.app.history.acknowledged(change)
            if self.app.contents.get(uri) == content and self.app.history.latest(uri) == digest:
                self.app.unrecorded.pop(uri, None)
                return

    def kill(self) -> None:
        super().kill()
        self._publisher = None


class Hub(Simulated):
    """A process of a hub.

    Attributes:
        url: Its URL, which the nodes of a cluster share.
        log: The name of its log, which they share too.
        topics: The topics that are published to it.
    """

    url: str
    log: str
    topics: tuple[str, ...] = (BASE,)


class HubMachine(Hub):
    def __init__(
        self, loop: SimulatedLoop, network: Network, folder: Path, number: int, world: World
    ) -> None:
        super().__init__(loop, network, f"hub{number}", Clock())
        self.folder = folder / self.name / "data"
        self.log = self.name
        self.url = hub_url(number)
        self._port = 8010 + number
        self._world = world

    async def run(self, machine: Machine) -> None:
        app = create_application(
            hub_configuration(self._port, self._world.queue, self.topics, data=str(self.folder)),
            public_url=self.url,
            anonymous=False,
        )
        await self.network.serve(machine, self._port, app, auto_decompress=False)
        await asyncio.Event().wait()

    def lose_data(self) -> None:
        shutil.rmtree(self.folder, ignore_errors=True)


@cache
def hub_configuration(port: int, queue: int, topics: Sequence[str], **stored: str) -> HubConfig:
    """Return the configuration of a hub; `stored` names its store."""
    digest = hashlib.sha256(TOKEN.encode()).hexdigest()
    publisher = {"token_sha256": digest, "topics": list(topics)}
    return load_configuration(
        None,
        port=port,
        allow_private_addresses=True,
        queue_frames=queue,
        publishers=[publisher],
        **stored,
    )


def publishing_options(world: World) -> Options:
    return Options(
        heartbeat=5,
        refresh=0.5,
        resource_list_every=20,
        rotate=world.rotate,
        keep=world.keep,
        linger=5,
        fragment_entries=world.fragment_entries,
        change_dump=world.dumps,
        resource_dump_every=20 if world.dumps else None,
        max_entries=world.entries,
        poll=5,
    )


class DestinationMachine(Simulated):
    """A subscriber with a folder.

    Attributes:
        url: The Source that it follows.
        resources: The URL below which the resources are.
        folder: The part of the copy that has them.
    """

    url = BASE
    resources = BASE
    folder = Path()

    def __init__(
        self, loop: SimulatedLoop, network: Network, root: Path, name: str, kind: str, world: World
    ) -> None:
        super().__init__(loop, network, name, Clock())
        self.kind = kind
        self._pace = Pace(
            poll=3.0, poll_with_push=15.0, parked=world.parked, in_flight=world.in_flight
        )
        self.copy, self.state = root / name / "copy", root / name / "state"
        self._folder = str(self.copy / "r")
        self.on_event: Callable[[Any], None]
        self.subscriber: Subscriber | None = None
        self.failures: list[str] = []
        #: How many times the copy has begun again with a Resource List.
        self.baselines = 0
        #: Whether the power was cut, and what the state has of the copy is not in its place yet.
        self.is_restoring = False
        #: The hashes of files, by what changes when they change.
        self._hashes: dict[object, str] = {}
        self._status: tuple[object, Status] = (None, Status())
        self._content: tuple[object, dict[str, str]] = (None, {})

    def start(self) -> None:
        super().start()
        assert self.machine is not None
        self.machine.slowness = 30 if self.kind == "slow" else 1

    async def run(self, machine: Machine) -> None:
        is_visiting = self.kind == "visiting"
        options = self.options(await self._listen(machine) if self.kind == "websub" else None)
        while True:
            self.subscriber = Subscriber(
                self.url,
                FolderMirror(self.copy),
                state=self.state,
                options=options,
                on_event=self.on_event,
            )
            try:
                await (self.subscriber.catch_up() if is_visiting else self.subscriber.run())
            except RsnotifyError as error:
                self.failures.append(str(error))
            if not is_visiting:
                return
            await asyncio.sleep(self.loop.random.choice((1, 5, 20)))

    def options(self, callbacks: Callbacks | None) -> FollowOptions:
        return FollowOptions(
            via=_VIA.get(self.kind, Via.AUTO),
            callbacks=callbacks,
            selection=Selection(only=self._only()) if self.kind == "filtered" else Selection(),
            hubs=self.loop.random.choice((1, 2)),
            allow_private_addresses=True,
            pace=self._pace,
        )

    def _only(self) -> tuple[str, ...]:
        """Return what a filtered Destination follows."""
        return tuple(f"{self.resources}r/{number}" for number in range(RESOURCES // 2))

    async def _listen(self, machine: Machine) -> Callbacks:
        callbacks = Callbacks(f"http://127.0.0.1:{_CALLBACK_PORT}/callbacks/")
        app = web.Application()
        app.add_routes(callbacks.routes())
        await self.network.serve(machine, _CALLBACK_PORT, app)
        return callbacks

    def kill(self) -> None:
        super().kill()
        self.subscriber = None

    @property
    def known(self) -> object:
        """What is the same only as long as no callback has run on the machine."""
        return self.machine, self.machine and self.machine.steps, self.subscriber

    @property
    def status(self) -> Status:
        if self._status[0] != self.known:
            status = Status() if self.subscriber is None else self.subscriber.status
            self._status = self.known, status
        return self._status[1]

    @property
    def is_level(self) -> bool:
        return self.status.level

    def selected(self, found: dict[str, str]) -> dict[str, str]:
        if self.kind != "filtered":
            return found
        only = self._only()
        return {uri: digest for uri, digest in found.items() if uri in only}

    def content(self) -> dict[str, str]:
        """Return the hashes of the files, by URI; the same object while they are the same."""
        if self._content[0] == self.known:
            return self._content[1]
        found = {}
        with suppress(FileNotFoundError), os.scandir(self.copy / self.folder / "r") as files:
            for file in files:
                facts = file.stat()
                key = facts.st_ino, facts.st_size, facts.st_mtime_ns, facts.st_ctime_ns
                if key not in self._hashes:
                    with open(file.path, "rb") as content:
                        self._hashes[key] = hash_of(content.read())
                found[f"{self.resources}r/{file.name}"] = self._hashes[key]
        if found == self._content[1]:
            found = self._content[1]
        self._content = self.known, found
        return found

    def without_foreign(self, listed: dict[str, str]) -> dict[str, str]:
        """Return the content without files that are reported as not part of the copy.

        A restored state does not know files that are newer. What is `listed` is not foreign any
        more, though it may be reported as such until the files are compared again.
        """
        foreign = {
            f"{self.resources}r/{os.path.basename(path)}" for path in self.status.foreign_files
        }
        return {
            uri: digest
            for uri, digest in self.content().items()
            if uri not in foreign or uri in listed
        }


def hash_of(content: bytes) -> str:
    return "sha-256:" + hashlib.sha256(content).hexdigest()
