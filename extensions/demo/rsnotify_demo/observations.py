"""The resources of the demo: a folder of observations that change fast."""

from __future__ import annotations

import asyncio
from collections import deque
from datetime import UTC, datetime
from pathlib import Path
from random import Random

from msgspec import Struct

#: How many sensors report all the time.
SENSORS = 60
#: How many stations report at once, in a flood.
STATIONS = 440

_OBSERVATION = """\
@prefix owl: <http://www.w3.org/2002/07/owl#> .
@prefix sosa: <http://www.w3.org/ns/sosa/> .
@prefix xsd: <http://www.w3.org/2001/XMLSchema#> .

<#observation> a sosa:Observation ;
    owl:versionInfo "{version}" ;
    sosa:madeBySensor <#{sensor}> ;
    sosa:hasSimpleResult {value:.2f} ;
    sosa:resultTime "{time}"^^xsd:dateTime .
"""
#: Seconds over which the rate is averaged.
_WINDOW = 5.0
#: How many files of a flood are written before other tasks may run.
_AT_ONCE = 20


class ObservedResource(Struct):
    """One resource of the Source; `version` counts its changes, including deletions."""

    name: str
    version: int = 0
    content: bytes | None = None


class Observations:
    """A folder of linked data that changes fast: one small Turtle file per sensor.

    `resources` also has those that the first flood will create.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._random = Random()
        self._recent: deque[tuple[float, int]] = deque()
        self._sensors = [ObservedResource(f"sensor-{number:02}.ttl") for number in range(SENSORS)]
        self._stations = [
            ObservedResource(f"station-{number:03}.ttl") for number in range(STATIONS)
        ]
        self.resources = self._sensors + self._stations
        self.flooding = False
        self.changes = 0
        folder.mkdir()
        for sensor in self._sensors:
            self._observe(sensor)
        self.changes = 0

    def change(self) -> None:
        """Update a file; now and then delete one, or create it again."""
        sensor = self._random.choice(self._sensors)
        if sensor.content is not None and self._random.random() < 0.05:
            self._remove(sensor)
        else:
            self._observe(sensor)

    async def flood(self) -> None:
        """Change the files of all stations together; during a flood this does nothing."""
        if self.flooding:
            return
        self.flooding = True
        try:
            for number, station in enumerate(self._stations):
                self._observe(station)
                if number % _AT_ONCE == 0:
                    await asyncio.sleep(0)
        finally:
            self.flooding = False

    def per_second(self, now: float) -> float:
        """Return the recent rate of changes; `now` is always of the same clock."""
        self._recent.append((now, self.changes))
        while now - self._recent[0][0] > _WINDOW:
            self._recent.popleft()
        since, before = self._recent[0]
        return (self.changes - before) / (now - since) if now > since else 0.0

    def _remove(self, resource: ObservedResource) -> None:
        (self._folder / resource.name).unlink()
        resource.version += 1
        resource.content = None
        self.changes += 1

    def _observe(self, resource: ObservedResource) -> None:
        resource.version += 1
        text = _OBSERVATION.format(
            version=resource.version,
            sensor=resource.name.removesuffix(".ttl"),
            value=self._random.gauss(20, 5),
            time=datetime.now(UTC).isoformat(),
        )
        resource.content = text.encode()
        # Replace the file atomically, so that no reader sees half of it.
        temporary = self._folder / f".{resource.name}"
        temporary.write_bytes(resource.content)
        temporary.replace(self._folder / resource.name)
        self.changes += 1
