"""All that is to be seen of the demo, and what its buttons do."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from datetime import UTC, datetime

import aiohttp
import msgspec
from msgspec import Struct

from rsnotify.format.datetimes import Instant
from rsnotify_demo.comparison import Comparison, CopyDifference
from rsnotify_demo.destination import DemoDestination, DestinationStatus, ProcessState
from rsnotify_demo.event_log import EventLog, LoggedEvent
from rsnotify_demo.flush_time import FlushTimer
from rsnotify_demo.observations import STATIONS, Observations
from rsnotify_demo.push_link import PushLink

#: Seconds between two looks at the copy.
FRAME_INTERVAL = 0.2
#: Looks between two questions to the hub.
_ASK_HUB_EVERY = 5
#: How much of the past a new page is shown: a minute.
_PAST = 300
_HUB_SECONDS = 2


class HubFacts(Struct, frozen=True):
    """What the hub's admin API tells, as far as it is shown; None where it does not tell."""

    accepted: int | None = None
    websockets: int | None = None
    log_bytes: int | None = None


class Point(Struct, frozen=True):
    """A moment of the past.

    Args:
        behind: How many changes the copy lacked.
        whole: Whether the push link was.
        running: Whether the Destination was.
    """

    behind: int
    whole: bool
    running: bool


class Frame(Struct, frozen=True):
    """What a page shows at one moment."""

    at: Instant
    changes: int
    per_second: float
    flooding: bool
    whole: bool
    carried: int
    hub: HubFacts
    life: ProcessState
    status: DestinationStatus
    #: Seconds since T.
    age: float | None
    copy: CopyDifference
    gap: bool
    flush_ms: float | None
    pulled: int
    point: Point


class DemoMonitor:
    """The parts of the demo together.

    Args:
        observations: The Source's folder.
        link: The push link.
        destination: The Destination.
        disk: The disk that all three write to.
        hub: The hub's URL.
        rate: Changes a second.

    Attributes:
        frame: What is to be seen now; None before the first look.
        past: What was, the newest last.
        story: What happened.
    """

    def __init__(
        self,
        observations: Observations,
        link: PushLink,
        destination: DemoDestination,
        disk: FlushTimer,
        *,
        hub: str,
        rate: float,
    ) -> None:
        self._observations = observations
        self._link = link
        self._destination = destination
        self._disk = disk
        self._hub = hub
        self._hub_facts = HubFacts()
        self._comparison = Comparison(observations.resources, destination.folder)
        self._looked = asyncio.Condition()
        self._flood: asyncio.Task[None] | None = None
        self.frame: Frame | None = None
        self.past: deque[Point] = deque(maxlen=_PAST)
        self.story = EventLog(rate)
        self.actions: dict[str, Callable[[], None]] = {
            "cut": self.cut,
            "restore": self.restore,
            "stop": self.stop,
            "start": self.start,
            "flood": self.flood,
        }

    # What the buttons do

    def cut(self) -> None:
        """Cut the push link."""
        if self._link.whole:
            self._link.cut()
            self._tell("user", "You cut the push link")

    def restore(self) -> None:
        """Make it whole again."""
        if not self._link.whole:
            self._link.restore()
            self._tell("user", "You restore the push link")

    def stop(self) -> None:
        """Stop the Destination."""
        if self._destination.wanted:
            self._destination.stop()
            self._tell("user", "You stop the Destination")

    def start(self) -> None:
        """Start it again."""
        if not self._destination.wanted:
            self._destination.start()
            self._tell("user", "You start the Destination: it goes on from T")

    def flood(self) -> None:
        """Let very much change at once."""
        if not self._observations.flooding:
            self._tell("user", f"You let {STATIONS} stations report at once")
            self._flood = asyncio.create_task(self._observations.flood())

    def _tell(self, kind: str, text: str) -> None:
        self.story.tell(datetime.now(UTC), kind, text)

    # Looking

    async def run(self) -> None:
        """Look again and again until cancelled."""
        timeout = aiohttp.ClientTimeout(total=_HUB_SECONDS)
        async with aiohttp.ClientSession(timeout=timeout) as session:
            number = 0
            while True:
                if number % _ASK_HUB_EVERY == 0:
                    self._hub_facts = await self._ask_hub(session)
                await self.look()
                number += 1
                await asyncio.sleep(FRAME_INTERVAL)

    async def look(self) -> Frame:
        """Look once, and let the pages know."""
        difference = await asyncio.to_thread(self._comparison.look)
        frame = self.frame = self._frame(difference)
        self.past.append(frame.point)
        self._narrate(frame)
        async with self._looked:
            self._looked.notify_all()
        return frame

    async def next_frame(self) -> tuple[Frame, list[LoggedEvent]]:
        """Wait for the next look."""
        async with self._looked:
            await self._looked.wait()
        assert self.frame is not None
        return self.frame, list(self.story.sentences)

    def _frame(self, difference: CopyDifference) -> Frame:
        now = datetime.now(UTC)
        status, life = self._destination.status, self._destination.life
        running = life in (ProcessState.STARTING, ProcessState.RUNNING)
        through = status.through
        return Frame(
            at=now,
            changes=self._observations.changes,
            per_second=self._observations.per_second(asyncio.get_running_loop().time()),
            flooding=self._observations.flooding,
            whole=self._link.whole,
            carried=self._link.carried,
            hub=self._hub_facts,
            life=life,
            status=status,
            age=None if through is None else max(0.0, (now - through).total_seconds()),
            copy=difference,
            gap=self.story.open,
            flush_ms=self._disk.flush_ms,
            pulled=self.story.pulled,
            point=Point(difference.behind, self._link.whole, running),
        )

    def _narrate(self, frame: Frame) -> None:
        for text in self._destination.notes():
            self.story.note(frame.at, text)
        running = frame.life is ProcessState.RUNNING
        self.story.push(frame.at, frame.status.push if running else None)
        if frame.status.through is not None:  # else the first copy is still being made
            self.story.behind(frame.at, frame.copy.behind)

    async def _ask_hub(self, session: aiohttp.ClientSession) -> HubFacts:
        try:
            async with session.get(self._hub + "admin/status") as answer:
                answer.raise_for_status()
                return msgspec.json.decode(await answer.read(), type=HubFacts)
        except (aiohttp.ClientError, TimeoutError, msgspec.DecodeError):
            return HubFacts()
