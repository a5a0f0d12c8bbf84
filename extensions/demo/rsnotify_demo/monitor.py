"""Monitors the demo: its resources, the differences between the copy and the Source, and events.

The resources are a folder of observations that change fast. The monitor compares the copy with the
Source by reading the copy's files. Events are sentences, for example about when a gap opened and
how it was closed. The monitor also measures how long a flush to the disk takes, because each change
waits for at least two flushes.
"""

from __future__ import annotations

import asyncio
import re
from collections import Counter, deque
from collections.abc import Callable, Sequence
from datetime import UTC, datetime, timedelta
from enum import StrEnum
from math import log10
from pathlib import Path
from random import Random
from statistics import median

import aiohttp
import msgspec
from msgspec import Struct

from rsnotify.errors import counted
from rsnotify.format.datetimes import Instant
from rsnotify.runtime.state_folders import flush_milliseconds
from rsnotify_demo.destination_process import (
    DemoDestination,
    DestinationStatus,
    ProcessState,
    PushLink,
)

#: Number of sensors, which report all the time.
SENSORS = 60
#: Number of stations, which all report at once in a flood.
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
#: Seconds over which the rate of changes is averaged.
_RATE_SECONDS = 5.0
#: Number of files written in a flood before other tasks may run.
_FILES_PER_YIELD = 20


class ObservedResource(Struct):
    """One resource of the Source; `version` counts its changes, including deletions."""

    name: str
    version: int = 0
    content: bytes | None = None


class Observations:
    """A folder of linked data that changes fast: one small Turtle file per sensor.

    `resources` includes the stations, whose files the first flood creates.
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
        """Update a file, or occasionally delete or recreate one."""
        sensor = self._random.choice(self._sensors)
        if sensor.content is not None and self._random.random() < 0.05:
            self._remove(sensor)
        else:
            self._observe(sensor)

    async def flood(self) -> None:
        """Change the files of all stations, unless another flood is in progress."""
        if self.flooding:
            return
        self.flooding = True
        try:
            for number, station in enumerate(self._stations):
                self._observe(station)
                if number % _FILES_PER_YIELD == 0:
                    await asyncio.sleep(0)
        finally:
            self.flooding = False

    def per_second(self, now: float) -> float:
        """Return the recent rate of changes. `now` is from a monotonic clock."""
        self._recent.append((now, self.changes))
        while now - self._recent[0][0] > _RATE_SECONDS:
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


_VERSION = re.compile(rb'owl:versionInfo "(\d+)"')


class CopyState(StrEnum):
    """The state of a resource in the copy: a letter, because each frame has hundreds of them."""

    SAME = "s"
    #: The copy has an older version.
    OLD = "o"
    #: The resource is missing from the copy.
    MISSING = "m"
    #: The copy still has a resource that the Source has deleted.
    LEFT = "l"
    #: Neither the Source nor the copy has the resource.
    NONE = "n"


class CopyDifference(Struct, frozen=True):
    """The differences between the copy and the Source at one moment.

    Args:
        states: The state of each resource.
        changes: The number of changes in the Source since its start.
        behind: The number of these changes that the copy lacks.
        differing: The number of resources that differ.
    """

    states: str
    changes: int
    behind: int
    differing: int


class Comparison:
    def __init__(self, resources: Sequence[ObservedResource], folder: Path) -> None:
        self._resources = resources
        self._folder = folder
        #: The last version of each resource that the copy was seen to have.
        self._held = [0] * len(resources)

    def compare(self) -> CopyDifference:
        states, behind, differing = [], 0, 0
        changes = -SENSORS  # the Source starts with one version per sensor
        for number, resource in enumerate(self._resources):
            version, content = resource.version, resource.content
            changes += version
            state, held = self._state(resource.name, content)
            if state in (CopyState.SAME, CopyState.NONE):
                self._held[number] = version
            else:
                self._held[number] = held or self._held[number]
                behind += max(1, version - self._held[number])
                differing += 1
            states.append(state)
        return CopyDifference("".join(states), changes, behind, differing)

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


_PULLED = re.compile(r"^([\d,]+) changes? from the (.+) \S+$")
#: Messages of the Destination that another event reports, or that are harmless because a resource
#: changed again while it was being fetched.
_IGNORED = ("push is down", "could not apply")
_MAX_EVENTS = 60
#: A gap opens when the copy lacks at least this many changes, and the changes of this many seconds.
_OPEN_SECONDS = 1.0
_OPEN_CHANGES = 8
#: The gap closes after this many successive frames in which the copy lacks only changes in transit.
_FRAMES_TO_CLOSE = 4
_IN_TRANSIT_SECONDS = 0.12
_IN_TRANSIT_CHANGES = 3
#: Pulls within this time share an event.
_PULL_INTERVAL = timedelta(seconds=5)


class LoggedEvent(Struct, frozen=True):
    """An event of kind `user`, `push`, `pull`, `gap`, `level` or `note`. Numbers begin at 1."""

    number: int
    at: Instant
    kind: str
    text: str


class EventLog:
    """Stores the latest events, decides whether a gap is open, and counts pulled changes."""

    def __init__(self, rate: float) -> None:
        self._opens_at = max(_OPEN_CHANGES, _OPEN_SECONDS * rate)
        self._in_transit = max(_IN_TRANSIT_CHANGES, _IN_TRANSIT_SECONDS * rate)
        self._number = 0
        self._opened: Instant | None = None
        self._largest = 0
        self._quiet_frames = 0
        self._read_in_gap: set[str] = set()
        self._unreported: Counter[str] = Counter()
        self._pulls_reported: Instant | None = None
        self._push: str | None = None
        self.pulled = 0
        self.events: deque[LoggedEvent] = deque(maxlen=_MAX_EVENTS)

    @property
    def open(self) -> bool:
        """Whether a gap is open, that is, the copy lacks more than the changes in transit."""
        return self._opened is not None

    def add(self, at: Instant, kind: str, text: str) -> None:
        self._number += 1
        self.events.append(LoggedEvent(self._number, at, kind, text))

    def add_message(self, at: Instant, text: str) -> None:
        """Process a log message of the Destination."""
        match = _PULLED.match(text)
        if match is not None:
            count, document = int(match.group(1).replace(",", "")), match.group(2)
            self.pulled += count
            self._read_in_gap.add(document)
            self._unreported[document] += count
        elif not text.startswith(_IGNORED):
            self.add(at, "note", f"Destination: {text}")

    def update_push(self, at: Instant, state: str | None) -> None:
        """Process the state of push at the Destination; None if the Destination is not running."""
        if state == "up" and self._push != "up":
            self.add(at, "push", "Push is up: the hub sends the changes since T")
        elif self._push == "up" and state not in ("up", None):
            self.add(at, "push", "Push is down: the Destination polls the Source")
        self._push = state

    def update_behind(self, at: Instant, changes: int) -> None:
        """Process the number of changes that the copy lacks."""
        if self._opened is not None:
            self._largest = max(self._largest, changes)
            self._quiet_frames = self._quiet_frames + 1 if changes <= self._in_transit else 0
            self._report_pulls(at)
            if self._quiet_frames == _FRAMES_TO_CLOSE:
                self._close(at, self._opened)
        elif changes >= self._opens_at:
            self._opened, self._largest, self._quiet_frames = at, changes, 0
            self._read_in_gap.clear()
            self._unreported.clear()
            self._pulls_reported = at
            self.add(at, "gap", "A gap opens")

    def _report_pulls(self, at: Instant) -> None:
        reported = self._pulls_reported
        if self._unreported and reported and at - reported >= _PULL_INTERVAL:
            counts = self._unreported.items()
            read = (f"{counted(count, 'change')} from the {name}" for name, count in counts)
            self.add(at, "pull", f"The Destination reads {' and '.join(read)}")
            self._unreported.clear()
            self._pulls_reported = at

    def _close(self, at: Instant, opened: Instant) -> None:
        self._opened = None
        seconds = (at - opened).total_seconds()
        by = "all came by push"
        if self._read_in_gap:
            by = f"the others came from the {' and the '.join(self._read_in_gap)}"
        self.add(
            at,
            "level",
            f"The gap is closed after {seconds:.1f} s. The copy lacked at most "
            f"{counted(self._largest, 'change')}; {by}",
        )


#: The range of a sparkline: seconds across, and decades upward from 1 ms.
_SHOWN_SECONDS = 40
_DECADES = 4


class LagHistory:
    """The median and the 99th percentile of the lag in each second.

    The first second is ignored, because its changes waited for the Destination to start.
    """

    def __init__(self) -> None:
        self._has_started = False
        self._seconds: list[tuple[float, float]] = []

    def add(self, status: DestinationStatus) -> None:
        if status.lag_ms is not None and status.lag_p99_ms is not None:
            if self._has_started:
                self._seconds.append((status.lag_ms, status.lag_p99_ms))
            self._has_started = True

    def typical(self) -> tuple[float, float] | None:
        """Return the median and 99th-percentile lag of a typical second, in milliseconds."""
        if not self._seconds:
            return None
        halves, most = zip(*self._seconds, strict=True)
        return median(halves), median(most)

    def sparkline(self, blocks: str) -> str:
        """Return a bar for the median lag of each recent second, from 1 ms (low) to 10 s (high)."""
        bars = ""
        for half, _ in self._seconds[-_SHOWN_SECONDS:]:
            height = log10(max(1.0, half)) / _DECADES
            bars += blocks[min(len(blocks) - 1, int(height * len(blocks)))]
        return bars


#: Seconds between frames.
FRAME_INTERVAL = 0.2
_FRAMES_PER_HUB_REQUEST = 5
#: Number of earlier frames that a new page shows: one minute.
_MAX_POINTS = 300
_HUB_TIMEOUT_SECONDS = 2
#: Seconds between measurements of a flush.
_FLUSH_INTERVAL = 5.0


class HubFacts(Struct, frozen=True):
    """The displayed part of the hub's status, from its admin API; None for unknown values."""

    accepted: int | None = None
    websockets: int | None = None
    log_bytes: int | None = None


class Point(Struct, frozen=True):
    behind: int
    connected: bool
    running: bool


class Frame(Struct, frozen=True):
    at: Instant
    changes: int
    per_second: float
    flooding: bool
    connected: bool
    carried: int
    hub: HubFacts
    process: ProcessState
    status: DestinationStatus
    #: Seconds since T.
    age: float | None
    copy: CopyDifference
    gap: bool
    flush_ms: float | None
    pulled: int
    point: Point


class DemoMonitor:
    """Observes the Source, hub, Destination and link, and performs the actions of the page.

    `flush_ms` is how long a flush to the disk takes; None until the first measurement.
    """

    def __init__(
        self,
        observations: Observations,
        link: PushLink,
        destination: DemoDestination,
        *,
        hub: str,
        rate: float,
    ) -> None:
        self._observations = observations
        self._link = link
        self._destination = destination
        self._hub = hub
        self._hub_facts = HubFacts()
        self._comparison = Comparison(observations.resources, destination.folder)
        self._new_frame = asyncio.Condition()
        self._flood: asyncio.Task[None] | None = None
        self.frame: Frame | None = None
        self.flush_ms: float | None = None
        self.past: deque[Point] = deque(maxlen=_MAX_POINTS)
        self.log = EventLog(rate)
        self.lags = LagHistory()
        self.actions: dict[str, Callable[[], None]] = {
            "cut": self.cut,
            "restore": self.restore,
            "stop": self.stop,
            "start": self.start,
            "flood": self.flood,
        }

    # Actions

    def cut(self) -> None:
        if self._link.connected:
            self._link.cut()
            self._log_action("You cut the push link")

    def restore(self) -> None:
        if not self._link.connected:
            self._link.restore()
            self._log_action("You restore the push link")

    def stop(self) -> None:
        if self._destination.started:
            self._destination.stop()
            self._log_action("You stop the Destination")

    def start(self) -> None:
        if not self._destination.started:
            self._destination.start()
            self._log_action("You start the Destination: it continues from T")

    def end(self) -> None:
        """Undo what the user broke, and ignore all further actions from the page."""
        self.actions = dict.fromkeys(self.actions, lambda: None)
        self.restore()
        self.start()

    def flood(self) -> None:
        if not self._observations.flooding:
            self._log_action(f"You let {STATIONS} stations report at once")
            self._flood = asyncio.create_task(self._observations.flood())

    def _log_action(self, text: str) -> None:
        self.log.add(datetime.now(UTC), "user", text)

    # Observation

    async def time_flushes(self) -> None:
        while True:
            folder = self._destination.folder.parent
            self.flush_ms = await asyncio.to_thread(flush_milliseconds, folder)
            await asyncio.sleep(_FLUSH_INTERVAL)

    async def run(self) -> None:
        timeout = aiohttp.ClientTimeout(total=_HUB_TIMEOUT_SECONDS)
        async with aiohttp.ClientSession(timeout=timeout) as session:
            number = 0
            while True:
                if number % _FRAMES_PER_HUB_REQUEST == 0:
                    self._hub_facts = await self._request_hub_facts(session)
                await self.observe()
                number += 1
                await asyncio.sleep(FRAME_INTERVAL)

    async def observe(self) -> Frame:
        difference = await asyncio.to_thread(self._comparison.compare)
        frame = self.frame = self._frame(difference)
        self.past.append(frame.point)
        self._log_events(frame)
        async with self._new_frame:
            self._new_frame.notify_all()
        return frame

    async def next_frame(self) -> tuple[Frame, list[LoggedEvent]]:
        """Wait for the next frame, and return it with all kept events."""
        async with self._new_frame:
            await self._new_frame.wait()
        assert self.frame is not None
        return self.frame, list(self.log.events)

    def _frame(self, difference: CopyDifference) -> Frame:
        now = datetime.now(UTC)
        status, process = self._destination.status, self._destination.state
        running = process in (ProcessState.STARTING, ProcessState.RUNNING)
        through = status.through
        return Frame(
            at=now,
            changes=difference.changes,
            per_second=self._observations.per_second(asyncio.get_running_loop().time()),
            flooding=self._observations.flooding,
            connected=self._link.connected,
            carried=self._link.carried,
            hub=self._hub_facts,
            process=process,
            status=status,
            age=None if through is None else max(0.0, (now - through).total_seconds()),
            copy=difference,
            gap=self.log.open,
            flush_ms=self.flush_ms,
            pulled=self.log.pulled,
            point=Point(difference.behind, self._link.connected, running),
        )

    def _log_events(self, frame: Frame) -> None:
        for text in self._destination.new_messages():
            self.log.add_message(frame.at, text)
        running = frame.process is ProcessState.RUNNING
        self.log.update_push(frame.at, frame.status.push if running else None)
        if frame.status.through is not None:  # after the baseline synchronization
            self.log.update_behind(frame.at, frame.copy.behind)

    async def _request_hub_facts(self, session: aiohttp.ClientSession) -> HubFacts:
        try:
            async with session.get(self._hub + "admin/status") as answer:
                answer.raise_for_status()
                return msgspec.json.decode(await answer.read(), type=HubFacts)
        except (aiohttp.ClientError, TimeoutError, msgspec.DecodeError):
            return HubFacts()
