"""The differences between the copy and the Source, found by reading the files of both."""

from __future__ import annotations

import re
from collections.abc import Sequence
from enum import StrEnum
from pathlib import Path

from msgspec import Struct

from rsnotify_demo.observations import ObservedResource

_VERSION = re.compile(rb'owl:versionInfo "(\d+)"')


class CopyState(StrEnum):
    """The state of one resource in the copy: one letter, since each frame has hundreds of them."""

    SAME = "s"
    #: The copy has another version.
    OLD = "o"
    #: The copy lacks it.
    MISSING = "m"
    #: The copy has it, but the Source has deleted it.
    LEFT = "l"
    #: Neither has it.
    NONE = "n"


class CopyDifference(Struct, frozen=True):
    """The state of each resource, how many changes the copy lacks, and how many differ."""

    states: str
    behind: int
    differing: int


class Comparison:
    def __init__(self, resources: Sequence[ObservedResource], folder: Path) -> None:
        self._resources = resources
        self._folder = folder
        #: The last version of each resource that was seen in the copy.
        self._held = [0] * len(resources)

    def compare(self) -> CopyDifference:
        states, behind = [], 0
        for number, resource in enumerate(self._resources):
            version, content = resource.version, resource.content
            state, held = self._state(resource.name, content)
            if state in (CopyState.SAME, CopyState.NONE):
                self._held[number] = version
            else:
                self._held[number] = held or self._held[number]
                behind += max(1, version - self._held[number])
            states.append(state)
        differing = sum(state not in (CopyState.SAME, CopyState.NONE) for state in states)
        return CopyDifference("".join(states), behind, differing)

    def _state(self, name: str, content: bytes | None) -> tuple[CopyState, int | None]:
        try:
            copy = (self._folder / name).read_bytes()
        except OSError:
            return (CopyState.NONE if content is None else CopyState.MISSING), None
        if copy == content:
            return CopyState.SAME, None
        match = _VERSION.search(copy)
        held = int(match.group(1)) if match else None
        return (CopyState.LEFT if content is None else CopyState.OLD), held
