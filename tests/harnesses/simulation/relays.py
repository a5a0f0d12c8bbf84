"""A relay between a Source and a Destination: `run relays:1-500`.

The relay follows the Source like a Destination and publishes like a Source, so what must hold of
both must hold of it. A Destination follows the relay only.

- The relay's folder is a copy of the Source: I3, I4 and I9.
- So is the set that the relay has published, as of the last change in its journal: a T of the relay
  covers no change of the Source that the relay has not published, and while the relay is level, it
  has published what the Source had at T or later.
- The relay's journal and documents are those of a Source: I1, I2 and I10.
- Each change that the relay publishes has content that the Source had once, never a mixture of two
  versions, and the link `via` names the original, with this hash or none.
- The Destination's folder is a copy of the relay: I3, I4 and I9 relative to the relay's history. So
  while it is level, it has no content that the Source never had, and nothing that the relay did not
  publish. It may count as level while the relay is behind the Source, or has doubts.
- After the faults, all three sets are equal.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from random import Random
from typing import NamedTuple

from aiohttp import web

from rsnotify.errors import RsnotifyError
from rsnotify.format.datetimes import to_microseconds
from rsnotify.format.model import ChangeType, Rel, Resource
from rsnotify.runtime.backup import CopiedBytes, copy_state
from rsnotify_publisher import parse_hub
from rsnotify_publisher.journal import RecordedChanges
from rsnotify_relay import Relay
from rsnotify_subscriber.storage.identity import read_held
from tests.harnesses.simulation import faults
from tests.harnesses.simulation.disk import SimulatedDisk
from tests.harnesses.simulation.history import History, Wrong, set_at
from tests.harnesses.simulation.invariants import CopyCheck
from tests.harnesses.simulation.loop import Machine
from tests.harnesses.simulation.run import Check, Run
from tests.harnesses.simulation.world import (
    BASE,
    TOKEN,
    DestinationMachine,
    HubMachine,
    SourceMachine,
    World,
    hub_url,
    make_world,
    publishing_options,
)

_PORT = 8002
RELAY_BASE = f"http://127.0.0.1:{_PORT}/"
_BACKUP = Path("relay-backup")


class RelayTerms(NamedTuple):
    """How the relay of a seed follows and publishes.

    Attributes:
        kind: As `World.far`; a relay with `websub` serves the callbacks itself.
        hub: The number of the hub to which it publishes; None for none.
    """

    kind: str
    hub: int | None


class RelayMachine(DestinationMachine):
    """The real relay on a machine of its own."""

    def __init__(self, run: RelayRun, terms: RelayTerms) -> None:
        super().__init__(run.loop, run.network, Path(), "relay", terms.kind, run.world)
        self._world = run.world
        self._terms = terms
        self._app = run.app
        self.history = History(self.state / "source", RELAY_BASE)
        #: How many changes the journal had, and whether the mirror was copied, at the backup.
        self._backup: tuple[int, bool] | None = None

    async def run(self, machine: Machine) -> None:
        hub = self._terms.hub
        relay = Relay(
            BASE,
            self.copy,
            RELAY_BASE,
            state=self.state,
            follow=self.options(None),
            hubs=[] if hub is None else [parse_hub(hub_url(hub), TOKEN)],
            options=publishing_options(self._world),
        )
        relay.subscriber._announcer._on_event = self.on_event
        record = relay.publisher.arecord

        async def acknowledged(changes: Sequence[Resource]) -> list[Resource]:
            recorded = await record(changes)
            if recorded:
                self.history.acknowledged(recorded[-1])
            return recorded

        relay.publisher.arecord = acknowledged  # type: ignore[assignment, method-assign]
        # It would wait for its loop in the only thread; so it ends as if it were killed.
        relay.publisher.close = self.kill  # type: ignore[method-assign]
        runner = web.AppRunner(relay.application(), access_log=None)
        await runner.setup()

        async def listen() -> None:
            recorder = relay.publisher._recorder
            recorder.on_recorded = partial(self._note, recorder.on_recorded)
            assert runner.server is not None
            self.network.listen(machine, _PORT, runner.server)

        self.subscriber = relay.subscriber
        try:
            await relay.run(listen)
        except RsnotifyError as error:
            self.failures.append(str(error))

    def _note(
        self,
        passed_on: Callable[[Sequence[RecordedChanges]], None],
        recorded: Sequence[RecordedChanges],
    ) -> None:
        for change in [change for each in recorded for change in each.changes]:
            assert change.datetime is not None
            if self.disk.is_cut:
                return  # the journal shows whether it was in time
            digest = None if change.change is ChangeType.DELETED else change.hash
            self._check_origin(change, digest)
            self.history.add(to_microseconds(change.datetime), change.uri, digest)
        passed_on(recorded)

    def _check_origin(self, change: Resource, digest: str | None) -> None:
        """Check that the Source had this content, and that the link to the original is right."""
        uri = BASE + change.uri.removeprefix(RELAY_BASE)
        if digest is not None and (uri, digest) not in self._app.versions:
            raise Wrong(f"the relay publishes {change}, which the Source never had")
        (via,) = (link for link in change.links if link.rel == Rel.VIA)
        # Content that was fetched whatever the lists say has no hash there.
        if via.href != uri or via.hash not in (digest, None):
            raise Wrong(f"the relay publishes {change}, whose original is {uri} with {digest}")

    def published(self) -> dict[str, str]:
        """Return the set that the relay has published, with the URIs of the Source."""
        recorded = self.history.recorded
        found = set_at(recorded, self.history.last)
        return {BASE + uri.removeprefix(RELAY_BASE): digest for uri, digest in found.items()}

    # Backups

    def back_up(self, *, whole: bool) -> None:
        """Copy the state, as `rsnotify backup` does, or the whole folder."""
        shutil.rmtree(_BACKUP, ignore_errors=True)
        if whole:
            shutil.copytree(self.disk.folder, _BACKUP)
        else:
            copy_state(self.state, _BACKUP, CopiedBytes())
        self._backup = len(self.history.recorded), whole

    @property
    def has_backup(self) -> bool:
        return self._backup is not None

    def lacks_all_of_backup(self) -> bool:
        """Return whether the mirror has no file that the state of the backup lists."""
        assert self._backup is not None
        _, whole = self._backup
        files = self.copy / self.folder / "r"
        names = [uri.removeprefix(f"{self.resources}r/") for uri in read_held(_BACKUP)]
        return not whole and bool(names) and not any((files / name).exists() for name in names)

    def restore(self) -> None:
        assert self._backup is not None
        count, whole = self._backup
        self.disk.steps = None  # a restore that is interrupted is repeated
        shutil.rmtree(self.disk.folder if whole else self.state)
        if whole:
            shutil.copytree(_BACKUP, self.disk.folder)
        else:
            copy_state(_BACKUP, self.state, CopiedBytes())
        self.disk.settle()
        self.history.restored(count)


class PublishedSet(DestinationMachine):
    """The set that a relay has published, as a copy of the Source."""

    def __init__(self, relay: RelayMachine) -> None:
        self.__dict__ = relay.__dict__  # it changes as the relay does
        self._relay = relay

    def content(self) -> dict[str, str]:
        return self._relay.published()


class FollowingMachine(DestinationMachine):
    """A Destination that follows the relay."""

    url = resources = RELAY_BASE


def back_up_or_restore(run: RelayRun) -> None:
    """Stop a relay, and copy its state, with or without its mirror, or restore it."""
    relay, random = run.relay, run.loop.random
    if not relay.has_backup and relay.status.through is None:
        return  # without a first copy, a restored state and a later mirror are refused
    if relay.machine is not None:
        relay.kill()
    if not relay.has_backup:
        whole = random.random() < 0.5
        run.note(f"back up {'the relay' if whole else 'the state of the relay'}")
        relay.back_up(whole=whole)
    elif not relay.lacks_all_of_backup():  # that is refused, as if the mirror was not mounted
        run.note("restore the relay from the backup")
        relay.restore()
    relay.start()


class RelayRun(Run):
    """A seed with a relay."""

    actions = faults.ACTIONS | {back_up_or_restore: 3}

    def make_world(self, seed: int) -> World:
        self._random = Random(f"relay {seed}")
        world = make_world(self.loop.random, Random(f"world {seed}"))
        return world._replace(hubs=self._random.choice((0, 1)), rewritten=False, late=False)

    def make_machines(self) -> None:
        loop, network, world, random = self.loop, self.network, self.world, self._random
        self.sources = [SourceMachine(loop, network, "source", world, self.app)]
        hub = random.choice((None, 0, 1) if world.hubs else (None, 0))
        hubs = world.hubs if hub is None else max(world.hubs, hub + 1)
        self.hubs = [HubMachine(loop, network, Path(), number, world) for number in range(hubs)]
        for each in self.hubs:
            each.topics = (BASE, RELAY_BASE)
        kinds = ("plain", "plain", "polling", "filtered", "slow")
        kind = random.choice((*kinds, "websub") if world.hubs else kinds)
        self.relay = RelayMachine(self, RelayTerms(kind, hub))
        kinds = ("plain", "plain", "polling", "visiting", "slow")
        kind = random.choice(kinds if hub is None else (*kinds, "websub"))
        self._follower = FollowingMachine(loop, network, Path(), "near", kind, world)
        self.destinations = [self.relay, self._follower]
        self.note(f"{self.relay._terms}, {kind}")

    def make_checks(self) -> Sequence[Check]:
        return [
            CopyCheck(self.relay, self.app.history, is_ordered=True),
            CopyCheck(PublishedSet(self.relay), self.app.history, is_ordered=True),
            CopyCheck(self._follower, self.relay.history, is_ordered=True),
        ]

    def power_is_back(self, disk: SimulatedDisk) -> None:
        super().power_is_back(disk)
        if disk is self.relay.disk:
            self.relay.history.power_was_cut()

    def check(self) -> None:
        super().check()
        self.relay.history.check_open_list()

    def is_equal(self) -> bool:
        """Return whether both copies are equal to what they follow, and level."""
        history = self.relay.history
        return super().is_equal() and history.documented >= history.last

    def has_all(self, destination: DestinationMachine) -> bool:
        if destination is self.relay:
            published = self.relay.published()
            has_published = destination.without_foreign(published) == published
            return super().has_all(destination) and has_published
        history = self.relay.history
        listed = set_at(history.recorded, history.last)
        return destination.without_foreign(listed) == listed

    def check_at_end(self) -> None:
        super().check_at_end()
        self.relay.history.check_all_lists()

    def last_change(self) -> int:
        return max(super().last_change(), self.relay.history.last)
