"""The history of a Source, and whether what a Destination claimed agrees with it."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from contextlib import suppress
from datetime import datetime
from hashlib import sha256
from pathlib import Path

from msgspec import Struct

from rsnotify_subscriber.mirror.paths import PROBE

#: The hash of each file of a copy, by its name.
Held = Mapping[str, str]


def held_by(folder: Path) -> Held:
    found = {}
    # A folder that is deleted meanwhile is left out; `rglob` would raise an exception.
    for path in (Path(at, name) for at, _, names in os.walk(folder) for name in names):
        # An empty mirror has the probe for a moment when `rsnotify audit` begins.
        if path.name.startswith(".") or path.name == PROBE:
            continue
        with suppress(FileNotFoundError):  # it was deleted since
            found[str(path.relative_to(folder))] = sha256(path.read_bytes()).hexdigest()
    return found


class _State(Struct):
    """A state of a resource; `at` is the datetime of its change, once that was acknowledged."""

    hash: str | None
    at: datetime | None = None


class Claim(Struct, frozen=True):
    """That a copy has all changes up to an instant, and what it held then."""

    who: str
    through: datetime
    held: Held


class Truth:
    """Every state of every resource, in order, as the Source's process reported it.

    A state is reported before the file is written, and acknowledged after `record` has returned.
    A process that is killed in between leaves a state that may or may not be that of the file.
    """

    def __init__(self) -> None:
        self._states: dict[str, list[_State]] = {}
        self.last: datetime | None = None
        self.changes = 0

    def intend(self, name: str, digest: str | None) -> None:
        """Note that a resource is going to have another state."""
        self._states.setdefault(name, []).append(_State(digest))

    def acknowledge(self, name: str, digest: str | None, at: datetime) -> None:
        """Note that `record` has returned."""
        states = self._states.setdefault(name, [])
        if self.last is not None and at <= self.last:
            raise AssertionError(f"{name} was recorded at {at}, after {self.last}")
        if not states or states[-1].at is not None or states[-1].hash != digest:
            states.append(_State(digest))
        states[-1].at = at
        self.last = at
        self.changes += 1

    def check_journal(self, last: datetime) -> None:
        """Check the datetime of the last change in the journal of a Source that was started."""
        if self.last is not None and last < self.last:
            raise AssertionError(
                f"the journal ends at {last}, and a change of {self.last} was acknowledged"
            )

    def unacknowledged(self) -> list[str]:
        """Return the resources whose last state was not acknowledged."""
        return [name for name, states in self._states.items() if states[-1].at is None]

    def now(self) -> Held:
        last = {name: states[-1].hash for name, states in self._states.items()}
        return {name: digest for name, digest in last.items() if digest is not None}

    def check(self, claim: Claim) -> Iterable[str]:
        """Yield what is wrong with a claim.

        A copy may be newer than it claims, since it was read a moment later, and the content of a
        resource may be newer than the change that announced it.
        """
        for name in sorted(claim.held.keys() - self._states.keys()):
            yield f"{claim.who} holds {name}, which never was"
        for name, states in self._states.items():
            known = [at for at, one in enumerate(states) if one.at and one.at <= claim.through]
            digest = claim.held.get(name)
            allowed = {one.hash for one in states[known[-1] :]} if known else {digest}
            if digest not in allowed:
                yield self._describe(claim, name, known[-1])

    def _describe(self, claim: Claim, name: str, known: int) -> str:
        states = self._states[name]
        digest = claim.held.get(name)
        earlier = [each.at for each in states[:known] if each.hash == digest]
        held = f"its state of {earlier[-1]}" if earlier else "a state that it never had"
        return (
            f"{claim.who} is level through {claim.through}, and holds of {name} "
            f"{held if digest else 'nothing'}, which was "
            f"{'changed' if states[known].hash else 'deleted'} at {states[known].at}"
        )
