"""The events of the demo as sentences: for example, when a gap opened, and what closed it."""

from __future__ import annotations

import re
from collections import Counter, deque
from datetime import timedelta

from msgspec import Struct

from rsnotify.format.datetimes import Instant
from rsnotify.plural import counted

_PULLED = re.compile(r"^([\d,]+) changes? from the (.+) \S+$")
#: Messages of the Destination that have an event of their own, or that are harmless: a resource
#: has changed again while it was fetched.
_IGNORED = ("push is away", "could not apply")
#: How many events are kept.
_KEPT = 60
#: A gap opens when the copy lacks the changes of so many seconds, and so many changes.
_OPEN_SECONDS = 1.0
_OPEN_CHANGES = 8
#: It closes when in so many frames the copy lacks only changes that are still in transit.
_FRAMES_TO_CLOSE = 4
_IN_TRANSIT_SECONDS = 0.12
_IN_TRANSIT_CHANGES = 3
#: Pulls within this time share one event.
_PULLS_INTERVAL = timedelta(seconds=5)


class LoggedEvent(Struct, frozen=True):
    """An event: `user`, `push`, `pull`, `gap`, `level` or `note`; numbers begin at 1."""

    number: int
    at: Instant
    kind: str
    text: str


class EventLog:
    """Keeps the latest events, decides whether a gap is open, and counts pulled changes."""

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
        self.events: deque[LoggedEvent] = deque(maxlen=_KEPT)

    @property
    def open(self) -> bool:
        """Whether a gap is open: the copy lacks more than the changes in transit."""
        return self._opened is not None

    def add(self, at: Instant, kind: str, text: str) -> None:
        self._number += 1
        self.events.append(LoggedEvent(self._number, at, kind, text))

    def note(self, at: Instant, text: str) -> None:
        match = _PULLED.match(text)
        if match is not None:
            count, document = int(match.group(1).replace(",", "")), match.group(2)
            self.pulled += count
            self._read_in_gap.add(document)
            self._unreported[document] += count
        elif not text.startswith(_IGNORED):
            self.add(at, "note", f"Destination: {text}")

    def push(self, at: Instant, state: str | None) -> None:
        """Process the state of push at the Destination; None while it does not run."""
        if state == "up" and self._push != "up":
            self.add(at, "push", "Push is up: the hub first sends the changes after T")
        elif self._push == "up" and state not in ("up", None):
            self.add(at, "push", "Push is away: the Destination polls the Source")
        self._push = state

    def behind(self, at: Instant, changes: int) -> None:
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
        if self._unreported and reported and at - reported >= _PULLS_INTERVAL:
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
