"""A gateway between origins without push and Destinations: `run gateways:1-500`.

What the gateway says of an origin is compared with the versions that the origin had, and when:

- When a check of a repository was complete, the gateway has recorded of each record the version
  that was visible when the check began, or a later one. This is not checked if records become
  visible later after their datestamp than the overlap, or the repository keeps no deletions.
- What a stream has sent before the datetime that counts as checked is recorded, and so is each
  event before the last one that was read. Without ids this holds since the last connection began.
- No change is recorded twice, or after a later one of its resource.
- No Destination is synced through an instant later than what counted as checked, and than the last
  change.
- The journals and documents are those of a Source: I1, I2 and I10.
- A Destination that is synced through T has of each resource the version of the last change that
  the gateway has recorded through T, or a later one (I4, I9). The content comes from the origin.
- After the faults, the journal of the gateway has what the origin has, and each copy is equal.
"""

from __future__ import annotations

import shutil
from bisect import bisect_left
from collections.abc import Callable, Collection, Sequence
from functools import partial
from pathlib import Path
from random import Random
from types import MappingProxyType
from typing import Any

from aiohttp import web
from msgspec import json

from rsnotify.errors import RsnotifyError
from rsnotify.format.datetimes import to_microseconds
from rsnotify_gateway import Gateway
from rsnotify_gateway.adapter import OriginBatch
from rsnotify_gateway.gateway import origin_document
from rsnotify_gateway.origin_watch import OriginWatch
from rsnotify_publisher import parse_hub
from rsnotify_publisher.journal import RecordedChanges
from tests.harnesses.simulation import faults
from tests.harnesses.simulation.disk import SimulatedDisk
from tests.harnesses.simulation.history import History, Recorded, Wrong, recorded_change
from tests.harnesses.simulation.invariants import CopyCheck
from tests.harnesses.simulation.loop import Clock, Machine
from tests.harnesses.simulation.origins import (
    KINDS,
    EventStream,
    Origin,
    Repository,
    Version,
    draw_terms,
)
from tests.harnesses.simulation.patching import EPOCH, microseconds
from tests.harnesses.simulation.run import Check, Run
from tests.harnesses.simulation.world import (
    RESOURCES,
    TOKEN,
    DestinationMachine,
    Simulated,
    World,
    hub_url,
    make_world,
    publishing_options,
)

_PORT = 8003
_BASE = f"http://127.0.0.1:{_PORT}/"
_FIRST_ORIGIN = 8030
_CONTACT = "mailto:operator@gateway.example"
_BACKUP = Path("gateway-backup")


class GatewaySet:
    """What a gateway has recorded of one origin."""

    def __init__(self, origin: Origin, state: Path) -> None:
        self.origin = origin
        self.url = f"{_BASE}{origin.name}/"
        self.history = History(state / origin.name, self.url)
        self.watch: OriginWatch | None = None
        #: Through which instant (µs) an origin counted as checked, at most.
        self.claimed = 0
        #: How many changes the journal had at the backup.
        self._backup = 0

    # Noting what is recorded

    def follow(self, watch: OriginWatch, disk: SimulatedDisk) -> None:
        """Note what a watch records and claims from now on."""
        self.watch = watch
        if not watch.publisher.source.folder.exists():
            # An empty set begins now.
            self.claimed = max(self.claimed, watch._checked.now)
        start, check, record = watch.publisher.start, watch.check, watch._record

        def started() -> None:
            start()
            recorder = watch.publisher._recorder
            if not isinstance(recorder.on_recorded, partial):
                # The first set is recorded before.
                self.history.power_was_cut()
                recorder.on_recorded = partial(self._note, disk, recorder.on_recorded)

        async def checked() -> int:
            began, ahead = self.origin.loop.now, self._ahead()
            found = await check()
            assert watch.last_check is not None
            claimed = watch.last_check / 1_000_000 - EPOCH.timestamp() - ahead
            is_right = ahead == self._ahead() and claimed <= self.origin.loop.now
            self._check_harvest(claimed if is_right else began)
            return found

        async def recorded(batch: OriginBatch, began: int) -> int:
            # The gateway may be killed once this is stored.
            self.claimed = max(self.claimed, batch.checked or 0)
            found = await record(batch, began)
            if isinstance(self.origin, EventStream) and batch.cursor is not None:
                self._check_events(self.origin, batch)
            return found

        watch.publisher.start = started  # type: ignore[method-assign]
        watch.check = checked  # type: ignore[method-assign]
        watch._record = recorded  # type: ignore[method-assign]

    def _note(
        self,
        disk: SimulatedDisk,
        passed_on: Callable[[Sequence[RecordedChanges]], None],
        recorded: Sequence[RecordedChanges],
    ) -> None:
        for change in [change for each in recorded for change in each.changes]:
            if disk.is_cut:
                return  # the journal shows whether it was in time
            self.history.add(*recorded_change(change))
        passed_on(recorded)

    def _ahead(self) -> float:
        """Return by how many seconds the clock of the gateway is ahead."""
        return microseconds() / 1_000_000 - self.origin.loop.now

    # What it claims

    def _check_harvest(self, began: float) -> None:
        assert self.watch is not None
        if isinstance(self.origin, Repository) and not self.origin.terms.is_compared:
            for number in range(RESOURCES):
                self._check_has(number, self.origin.visible(number, began), "its check began")

    def _check_events(self, origin: EventStream, batch: OriginBatch) -> None:
        """Check the events before the last one that was read, and those that count as checked.

        These are all with an earlier datetime, unless the datetimes are out of order.
        """
        assert batch.cursor is not None
        last = json.decode(batch.cursor).get("id", "")
        begin, end = (0, int(last) + 1) if last else (origin.begun, 0)
        stamps = [to_microseconds(stamp) for _, _, stamp in origin.events]
        if batch.checked is not None and stamps == sorted(stamps):
            end = max(end, bisect_left(stamps, batch.checked))
        sent = {number: count for number, count, _ in origin.events[begin:end]}
        for number, count in sent.items():
            self._check_has(number, count, f"its events through {end} were read")

    def _check_has(self, number: int, count: int, when: str) -> None:
        """Check that so many versions of a resource, or more, were recorded."""
        recorded = self.recorded(number)
        if not any(_agrees(each, recorded) for each in self._versions(number, count)):
            raise Wrong(f"the gateway has {recorded} of {number}, of {count} versions when {when}")

    def _versions(self, number: int, count: int) -> list[Version | None]:
        """Return the version after so many changes of a resource, and all later ones."""
        versions = self.origin.versions[number]
        return [None, *versions] if not count else [*versions[count - 1 :]]

    def recorded(self, number: int) -> str | None:
        return self.history.latest(f"{self.origin.base}r/{number}")

    def check_repeats(self) -> None:
        """Check that each change was recorded once, in order, unless the gateway was restored."""
        for number in range(RESOURCES if not self.history.lost else 0):
            uri, reached = f"{self.origin.base}r/{number}", 0
            versions = self.origin.versions[number]
            for _, _, stamp in (each for each in self.history.recorded if each[1] == uri):
                numbered = enumerate(versions[reached:], reached + 1)
                later = (at for at, version in numbered if _agrees(version, stamp))
                reached = next(later, len(versions) + 1)
                if reached > len(versions):
                    raise Wrong(f"the gateway has recorded {stamp} of {uri} once more, or too late")

    def has_all(self) -> bool:
        return all(
            _agrees(([None, *self.origin.versions[number]])[-1], self.recorded(number))
            for number in range(RESOURCES)
        )

    # Backups

    def backed_up(self) -> None:
        self._backup = len(self.history.recorded)

    def restored(self) -> None:
        self.history.restored(self._backup)


def _agrees(version: Version | None, recorded: str | None) -> bool:
    """Return whether what is recorded last of a resource may be of a version."""
    if version is None or version.digest is None:
        return recorded is None
    return recorded == str(version.stamp)


class GatewayMachine(Simulated):
    """The real gateway on a machine of its own."""

    def __init__(self, run: GatewayRun, origins: Sequence[Origin], hub: int | None) -> None:
        super().__init__(run.loop, run.network, "gateway", Clock())
        self._folder = Path(self.name) / "state"
        self._world = run.world
        self._hub = hub
        self.sets = [GatewaySet(origin, self._folder) for origin in origins]
        self.failures: list[str] = []
        self.has_backup = False

    async def run(self, machine: Machine) -> None:
        gateway = Gateway(
            self._folder,
            _BASE,
            [each.origin.settings() for each in self.sets],
            contact=_CONTACT,
            hubs=[] if self._hub is None else [parse_hub(hub_url(self._hub), TOKEN)],
            options=publishing_options(self._world),
        )
        for each, watch in zip(self.sets, gateway.watches, strict=True):
            each.follow(watch, self.disk)
        runner = web.AppRunner(gateway.application(), access_log=None)
        await runner.setup()

        async def listen() -> None:
            assert runner.server is not None
            self.network.listen(machine, _PORT, runner.server)

        try:
            await gateway.run(listen)
        except RsnotifyError as error:
            self.failures.append(str(error))

    def back_up(self) -> None:
        shutil.rmtree(_BACKUP, ignore_errors=True)
        shutil.copytree(self.disk.folder, _BACKUP)
        self.has_backup = True
        for each in self.sets:
            each.backed_up()

    def restore(self) -> None:
        shutil.rmtree(self.disk.folder)
        shutil.copytree(_BACKUP, self.disk.folder)
        self.disk.settle()
        for each in self.sets:
            each.restored()


class OriginDestination(DestinationMachine):
    """A Destination that follows one set of a gateway."""

    def __init__(self, run: GatewayRun, name: str, kind: str, followed: GatewaySet) -> None:
        super().__init__(run.loop, run.network, Path(), name, kind, run.world)
        self.followed = followed
        self.url, self.resources = followed.url, followed.origin.base
        self.folder = Path("@@http") / f"127.0.0.1:{followed.origin.port}"


class OriginCopyCheck(CopyCheck):
    """I4 and I9 of a copy whose content comes from an origin, and its changes from a gateway."""

    def __init__(self, destination: OriginDestination) -> None:
        self._of = destination.followed
        super().__init__(destination, self._of.history, is_ordered=True)

    def _differing(
        self,
        recorded: Sequence[Recorded],
        found: dict[str, str],
        through: Any,
        unavailable: Collection[str],
    ) -> dict[str, str | None]:
        """Return the resources of a version before the last that was recorded through T."""
        since = to_microseconds(through)
        histories = (self._of.history.recorded, *self._of.history.lost)
        ends = [changes[-1][0] for changes in histories if changes]
        if since > max([self._of.claimed, *ends]):
            raise Wrong(f"{self.destination.name} is synced through {through}, before any check")
        wrong: dict[str, str | None] = {}
        for number in range(RESOURCES):
            uri = f"{self._of.origin.base}r/{number}"
            if uri in self.destination.selected({uri: ""}) and uri not in unavailable:
                changes = [each for each in recorded if each[1] == uri]
                first = self._first_allowed(number, [each for each in changes if each[0] <= since])
                if not self._is_allowed(number, first, found.get(uri), has_changed=bool(changes)):
                    wrong[uri] = f"version {first} or later"
        return wrong

    def _contents(self, histories: Sequence[Sequence[Recorded]]) -> set[tuple[str, str | None]]:
        """Return each content that a resource had, by its URI. The gateway knows only datetimes."""
        origin = self._of.origin
        return {
            (f"{origin.base}r/{number}", version.digest)
            for number, versions in origin.versions.items()
            for version in versions
        }

    def _first_allowed(self, number: int, changes: Sequence[Recorded]) -> int:
        """Return the number of the version that was recorded last; 0 if none was."""
        versions = self._of.origin.versions[number]
        reached = 0
        for _, _, stamp in changes:
            later = (
                at
                for at, version in enumerate(versions[max(0, reached - 1) :], max(1, reached))
                if _agrees(version, stamp)
            )
            reached = next(later, reached)
        return reached

    def _is_allowed(self, number: int, first: int, found: str | None, *, has_changed: bool) -> bool:
        versions = self._of.origin.versions[number]
        if not first and found is None:
            return True
        later = {version.digest for version in versions[max(0, first - 1) :]}
        return has_changed and found in later

    def _is_of(self, recorded: Sequence[Recorded], found: dict[str, str], through: Any) -> bool:
        return True  # the versions of different resources are not of one instant


def change(run: GatewayRun) -> None:
    random = run.loop.random
    origin = random.choice(run.origins)
    number, delete = random.randrange(RESOURCES), random.random() < 0.25
    run.note(f"change {number}{' to nothing' * delete} of {origin.name}")
    origin.change(number, delete=delete)


def burst(run: GatewayRun) -> None:
    for _ in range(run.loop.random.choice((5, 20))):
        change(run)


def back_up_or_restore(run: GatewayRun) -> None:
    """Stop a gateway, and copy its state, or restore it."""
    gateway = run.gateway
    if gateway.machine is not None:
        gateway.kill()
    if not gateway.has_backup:
        run.note("back up the gateway")
        gateway.back_up()
    else:
        run.note("restore the gateway from the backup")
        gateway.restore()
    gateway.start()


class GatewayRun(Run):
    """A seed with a gateway."""

    actions: faults.Actions = MappingProxyType(
        {
            change: 45,
            burst: 3,
            faults.kill_or_start: 18,
            faults.pause: 2,
            faults.resume: 3,
            faults.partition: 6,
            faults.heal: 5,
            faults.reset: 5,
            faults.delay: 2,
            faults.set_clock: 3,
            faults.cut_power: 4,
            faults.lose_log: 1,
            back_up_or_restore: 3,
        }
    )

    def make_world(self, seed: int) -> World:
        self._random = Random(f"gateway {seed}")
        self.terms = draw_terms(self._random)
        world = make_world(self.loop.random, Random(f"world {seed}"))
        hubs = self._random.choice((0, 1))
        return world._replace(hubs=hubs, rewritten=False, late=False, dead=False, dumps=False)

    def make_machines(self) -> None:
        loop, network, world, random = self.loop, self.network, self.world, self._random
        self.origins: list[Origin] = [
            KINDS[kind](loop, network, kind, _FIRST_ORIGIN + number, self.terms)
            for number, kind in enumerate(self.terms.kinds)
        ]
        self.gateway = GatewayMachine(self, self.origins, 0 if world.hubs else None)
        self.hubs = self.make_hubs()
        for each in self.hubs:
            each.topics = (_BASE, *(one.url for one in self.gateway.sets))
        kinds = ("plain", "plain", "polling", "visiting", "slow", "filtered")
        self._followers = [
            OriginDestination(self, f"of-{each.origin.name}", random.choice(kinds), each)
            for each in self.gateway.sets
        ]
        self.destinations = [*self._followers]
        self.note(f"{self.terms}, {[each.kind for each in self._followers]}")

    def other_machines(self) -> Sequence[Simulated]:
        return [*self.origins, self.gateway]

    def make_checks(self) -> Sequence[Check]:
        return [OriginCopyCheck(each) for each in self._followers]

    def power_is_back(self, disk: SimulatedDisk) -> None:
        if disk is self.gateway.disk:
            for each in self.gateway.sets:
                each.history.power_was_cut()
        for destination in self.destinations:
            destination.is_restoring |= destination.disk is disk

    def check(self) -> None:
        super().check()
        for each in self.gateway.sets:
            each.history.check_open_list()

    def is_equal(self) -> bool:
        for origin in self.origins:
            origin.end_faults()
        sets = self.gateway.sets
        if not all(each.has_all() for each in sets):
            return False
        if any(each.history.documented < each.history.last for each in sets):
            return False
        return all(each.is_level and self.has_all(each) for each in self.destinations)

    def has_all(self, destination: DestinationMachine) -> bool:
        assert isinstance(destination, OriginDestination)
        return destination.content() == destination.selected(destination.followed.origin.set)

    def check_at_end(self) -> None:
        for each in self.gateway.sets:
            each.history.check_all_lists()
            each.check_repeats()

    def last_change(self) -> int:
        # Only Destinations may have to wait for the time to which a clock was ahead.
        if not all(each.has_all() for each in self.gateway.sets):
            return 0
        return max(each.history.last for each in self.gateway.sets)

    def describe(self) -> str:
        found = [f"{each.url} has {each.has_all()}" for each in self.gateway.sets]
        found += [str(origin_document(each.watch)) for each in self.gateway.sets if each.watch]
        return "; ".join([super().describe(), *self.gateway.failures, *found])
