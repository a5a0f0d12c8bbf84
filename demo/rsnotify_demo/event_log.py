"""What happened, in sentences: when a gap opened, and what closed it."""

from __future__ import annotations

import re
from collections import Counter, deque
from datetime import timedelta

from msgspec import Struct

from rsnotify.format.datetimes import Instant
from rsnotify.plural import counted

_PULLED = re.compile(r"^([\d,]+) changes? from the (.+) \S+$")
#: What the Destination writes that is told otherwise, or that only a resource that has changed
#: again meanwhile has brought about.
_UNTOLD = ("push is away", "could not apply")
#: How many sentences are kept.
_KEPT = 60
#: A gap is open from so many seconds' worth of changes on, and from so many changes.
_OPEN_SECONDS = 1.0
_OPEN_CHANGES = 8
#: It is closed when for so many looks no more is lacking than what is just on its way.
_LOOKS = 4
_ON_THE_WAY_SECONDS = 0.12
_ON_THE_WAY_CHANGES = 3
#: Pulls are told of together, as often as this.
_PULLS_EVERY = timedelta(seconds=5)


class LoggedEvent(Struct, frozen=True):
    """Something that happened.

    Args:
        number: Counts the sentences.
        at: When.
        kind: `user`, `push`, `pull`, `gap`, `level` or `note`.
        text: What.
    """

    number: int
    at: Instant
    kind: str
    text: str


class EventLog:
    """Keeps what happened last, and knows whether a gap is open.

    Args:
        rate: Changes a second, as they usually are.

    Attributes:
        sentences: The newest last.
        pulled: How many changes the Destination has read of in documents.
    """

    def __init__(self, rate: float) -> None:
        self._opens_at = max(_OPEN_CHANGES, _OPEN_SECONDS * rate)
        self._on_the_way = max(_ON_THE_WAY_CHANGES, _ON_THE_WAY_SECONDS * rate)
        self._number = 0
        self._opened: Instant | None = None
        self._deepest = 0
        self._quiet = 0
        self._in_gap: set[str] = set()
        self._untold: Counter[str] = Counter()
        self._told_pulls: Instant | None = None
        self._push: str | None = None
        self.pulled = 0
        self.sentences: deque[LoggedEvent] = deque(maxlen=_KEPT)

    @property
    def open(self) -> bool:
        """Tell whether the copy lacks more than what is just on its way."""
        return self._opened is not None

    def tell(self, at: Instant, kind: str, text: str) -> None:
        """Add a sentence."""
        self._number += 1
        self.sentences.append(LoggedEvent(self._number, at, kind, text))

    def note(self, at: Instant, text: str) -> None:
        """Take what the Destination has written into its log."""
        match = _PULLED.match(text)
        if match is not None:
            count, document = int(match.group(1).replace(",", "")), match.group(2)
            self.pulled += count
            self._in_gap.add(document)
            self._untold[document] += count
        elif not text.startswith(_UNTOLD):
            self.tell(at, "note", f"Destination: {text}")

    def push(self, at: Instant, state: str | None) -> None:
        """Take whether the Destination hears of changes by push; None while it does not run."""
        if state == "up" and self._push != "up":
            self.tell(at, "push", "Push is up: the hub begins with what came after T")
        elif self._push == "up" and state not in ("up", None):
            self.tell(at, "push", "Push is away: the Destination polls the Source")
        self._push = state

    def behind(self, at: Instant, changes: int) -> None:
        """Take how many changes the copy lacks now."""
        if self._opened is not None:
            self._deepest = max(self._deepest, changes)
            self._quiet = self._quiet + 1 if changes <= self._on_the_way else 0
            self._tell_pulls(at)
            if self._quiet == _LOOKS:
                self._close(at, self._opened)
        elif changes >= self._opens_at:
            self._opened, self._deepest, self._quiet = at, changes, 0
            self._in_gap.clear()
            self._untold.clear()
            self._told_pulls = at
            self.tell(at, "gap", "A gap opens")

    def _tell_pulls(self, at: Instant) -> None:
        if self._untold and self._told_pulls and at - self._told_pulls >= _PULLS_EVERY:
            read = (
                f"{counted(count, 'change')} in the {name}" for name, count in self._untold.items()
            )
            self.tell(at, "pull", f"The Destination reads of {' and '.join(read)}")
            self._untold.clear()
            self._told_pulls = at

    def _close(self, at: Instant, opened: Instant) -> None:
        self._opened = None
        seconds = (at - opened).total_seconds()
        by = f"what push left out is in the {' and the '.join(self._in_gap)}"
        self.tell(
            at,
            "level",
            f"The gap is closed after {seconds:.1f} s. The copy lacked at most "
            f"{counted(self._deepest, 'change')}; {by if self._in_gap else 'all came by push'}",
        )
