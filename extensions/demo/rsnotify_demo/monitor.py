"""The observed state of the demo, frame by frame, and the actions of its buttons."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from datetime import UTC, datetime

import aiohttp
import msgspec
from msgspec import Struct, field

from rsnotify.format.datetimes import Instant
from rsnotify_demo.comparison import Comparison, CopyDifference
from rsnotify_demo.destination import DemoDestination, DestinationStatus, ProcessState
from rsnotify_demo.event_log import EventLog, LoggedEvent
from rsnotify_demo.flush_time import FlushTimer
from rsnotify_demo.observations import STATIONS, Observations
from rsnotify_demo.push_link import PushLink

#: Seconds between two frames.
FRAME_INTERVAL = 0.2
#: Frames between two requests to the hub.
_FRAMES_PER_HUB_REQUEST = 5
#: How many earlier frames a new page shows: those of a minute.
_PAST = 300
_HUB_SECONDS = 2


class HubFacts(Struct, frozen=True):
    """The shown part of the hub's status (its admin API); None where it is unknown."""

    accepted: int | None = None
    websockets: int | None = None
    log_bytes: int | None = None


class Point(Struct, frozen=True):
    behind: int
    connected: bool = field(name="whole")
    running: bool


class Frame(Struct, frozen=True):
    at: Instant
    changes: int
    per_second: float
    flooding: bool
    connected: bool = field(name="whole")
    carried: int
    hub: HubFacts
    process: ProcessState = field(name="life")
    status: DestinationStatus
    #: Seconds since T.
    age: float | None
    copy: CopyDifference
    gap: bool
    flush_ms: float | None
    pulled: int
    point: Point


class DemoMonitor:
    """Observes all parts of the demo, and performs the actions of the page."""

    def __init__(
        self,
        observations: Observations,
        link: PushLink,
        destination: DemoDestination,
        flush_timer: FlushTimer,
        *,
        hub: str,
        rate: float,
    ) -> None:
        self._observations = observations
        self._link = link
        self._destination = destination
        self._flush_timer = flush_timer
        self._hub = hub
        self._hub_facts = HubFacts()
        self._comparison = Comparison(observations.resources, destination.folder)
        self._new_frame = asyncio.Condition()
        self._flood: asyncio.Task[None] | None = None
        self.frame: Frame | None = None
        self.past: deque[Point] = deque(maxlen=_PAST)
        self.log = EventLog(rate)
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

    def flood(self) -> None:
        if not self._observations.flooding:
            self._log_action(f"You let {STATIONS} stations report at once")
            self._flood = asyncio.create_task(self._observations.flood())

    def _log_action(self, text: str) -> None:
        self.log.add(datetime.now(UTC), "user", text)

    # Observation

    async def run(self) -> None:
        timeout = aiohttp.ClientTimeout(total=_HUB_SECONDS)
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
            changes=self._observations.changes,
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
            flush_ms=self._flush_timer.flush_ms,
            pulled=self.log.pulled,
            point=Point(difference.behind, self._link.connected, running),
        )

    def _log_events(self, frame: Frame) -> None:
        for text in self._destination.new_messages():
            self.log.note(frame.at, text)
        running = frame.process is ProcessState.RUNNING
        self.log.push(frame.at, frame.status.push if running else None)
        if frame.status.through is not None:  # after the baseline synchronization
            self.log.behind(frame.at, frame.copy.behind)

    async def _request_hub_facts(self, session: aiohttp.ClientSession) -> HubFacts:
        try:
            async with session.get(self._hub + "admin/status") as answer:
                answer.raise_for_status()
                return msgspec.json.decode(await answer.read(), type=HubFacts)
        except (aiohttp.ClientError, TimeoutError, msgspec.DecodeError):
            return HubFacts()
