"""Continuous audit: is what is held what the Source says that its set is (docs/audit.md)?

Theory of operation. A fragment may say how many resources the Source has as of its `until`, and
their digest. That can be compared with what is held at this very instant only: everything up to
it is applied, nothing later is, and nothing is on its way. It mostly is so for a moment, sooner or
later; if not, the next one is waited for. Where they differ:

    said ──differs──> the Change Lists are read from what they last confirmed, as a hub may have
                      withheld something; with each that is said, for as long as lists may lag
         ──still────> everything is compared with the Resource List; and so again as long as it
                      does not help, but ever less often
         ──agrees───> in step
"""

from __future__ import annotations

from enum import Enum
from typing import Protocol

from msgspec import Struct

from rsnotify.errors import InvalidDocument
from rsnotify.format.coverage import EARLIEST
from rsnotify.format.datetimes import Instant, format_datetime
from rsnotify.format.digest import ALGORITHM, SetDigest, SetSum, set_digest
from rsnotify.format.model import Document
from rsnotify.plural import counted
from rsnotify.sync.pace import Pace

#: How much longer than the first time it waits at most until everything is compared again.
_MOST = 64


class Remedy(Enum):
    """What is to be done about a difference."""

    NOTHING = "nothing"
    PULL = "read the Change Lists"
    COMPARE = "compare everything"


class WriteNote(Protocol):
    """Takes a sentence for the log."""

    def __call__(self, text: str, *, warning: bool = False) -> None:
        """Note it."""


class _Said(Struct, frozen=True):
    """What was said of the set.

    Args:
        until: As of when.
        digest: What it is.
        again: Whether it was compared before, and something was done since.
    """

    until: Instant
    digest: SetDigest
    again: bool = False


class ContinuousAudit:
    """The audit of one set of resources.

    Args:
        pace: How long lists may lag, and how often everything may be compared.
        note: Takes what the log should tell.
        incomparable: Why what is held is not the whole set as it is, in a sentence; empty if
            it is.
    """

    def __init__(self, pace: Pace, note: WriteNote, incomparable: str = "") -> None:
        self._pace = pace
        self._note = note
        self._incomparable = incomparable
        self._said: _Said | None = None
        self._listed = EARLIEST
        self._since: float | None = None
        self._compared = self._told = False
        self._found = 0
        self._next = 0.0
        self._wait = pace.repair
        #: Whether they agreed when they were last compared; None if they never were.
        self.in_step: bool | None = None
        #: What differs, or why nothing can be compared; empty if all is well.
        self.reason = ""

    @property
    def repairing(self) -> bool:
        """Whether everything was compared for a difference that is still there."""
        return self._compared

    def hear(self, document: Document, until: Instant | None, known: Instant | None) -> None:
        """Hear a fragment.

        Args:
            document: The fragment.
            until: Where what it covers ends; None if it covers nothing.
            known: Through where every change is known by now.
        """
        try:
            said = set_digest(document)
        except InvalidDocument as error:
            self._cannot(f"what a fragment says of the set cannot be read: {error}")
            return
        if until is None:
            self._said = None  # what it tells may be later than all that is known
        elif said is not None and known is not None and until >= known:
            self._take(_Said(until, said))

    def _take(self, said: _Said) -> None:
        if self._incomparable:
            self._cannot(self._incomparable)
        elif said.digest.hash != ALGORITHM:
            self._cannot("the digest of the Source is not made of SHA-256 hashes")
        else:
            self._said = said

    def _cannot(self, reason: str) -> None:
        if reason != self.reason:
            is_wanted = reason == self._incomparable  # nothing has to be mended then
            self._note(f"the copy cannot be audited: {reason}", warning=not is_wanted)
        self.in_step, self.reason = None, reason

    def listed(self, document: Document) -> None:
        """Hear a document that lists resources: it may tell what is later than its `at`."""
        latest = document.completed or document.at
        self._listed = max(self._listed, latest or EARLIEST)

    def forget(self) -> None:
        """Forget what was said and listed, as the time of the Source has gone back."""
        self._said, self._listed, self.in_step = None, EARLIEST, None

    def found(self, differing: int) -> None:
        """Hear of how many resources a comparison of everything showed that they differ."""
        self._found += differing

    def speaks_of(self, known: Instant | None) -> bool:
        """Tell whether something was said of the set at this very instant."""
        return self._said is not None and self._said.until == known

    def compare(self, held: SetSum, latest: Instant, now: float, *, listed: bool = True) -> Remedy:
        """Compare what was said with what is held.

        Args:
            held: The sum over all that is held.
            latest: The datetime of the latest change in it.
            now: The time, in seconds of any clock that does not jump.
            listed: Whether the Source has a list of all its resources.
        """
        said, self._said = self._said, None
        if said is None or said.until < latest or said.until < self._listed:
            return Remedy.NOTHING
        ours = held.digest()
        if ours is None:
            self._cannot("of a resource that is held no SHA-256 is known")
        elif ours == said.digest:
            self._agree()
        else:
            remedy = self._differ(ours, said, now, listed)
            self._said = None if remedy is Remedy.NOTHING else _again(said)
            return remedy
        return Remedy.NOTHING

    def _agree(self) -> None:
        if self.in_step is False:
            self._note("what is held is again what the Source says of its set")
        self.in_step, self.reason = True, ""
        self._since, self._compared, self._wait = None, False, self._pace.repair

    def _differ(self, ours: SetDigest, said: _Said, now: float, listed: bool) -> Remedy:
        if self._since is None:
            self._since = now
            self.in_step, self.reason = False, _difference(ours, said)
            self._note(f"{self.reason}; the Change Lists are read", warning=True)
            return Remedy.PULL
        self._tell_of_comparison(now)
        if said.again:
            return Remedy.NOTHING
        if now - self._since < self._pace.poll:
            return Remedy.PULL
        return self._go_further(now, listed) if now >= self._next else Remedy.NOTHING

    def _go_further(self, now: float, listed: bool) -> Remedy:
        self._next = now + self._wait
        self._wait = min(2 * self._wait, _MOST * self._pace.repair)
        unknown = "the Change Lists do not tell what differs, "
        if not listed:
            self._note(unknown + "and the Source has no list of all its resources", warning=True)
            return Remedy.PULL
        self._note(unknown + "so all resources are compared")
        self._compared, self._told = True, False
        self._found = 0
        return Remedy.COMPARE

    def _tell_of_comparison(self, now: float) -> None:
        if self._compared and not self._told:
            self._told = True
            found = counted(self._found, "resource") if self._found else "nothing"
            wait = max(0.0, self._next - now)
            self._note(
                f"{found} differed from what the Source lists, but the digests still do: "
                f"{self.reason}; all is compared again in {wait:.0f} s at the earliest",
                warning=True,
            )


def _again(said: _Said) -> _Said:
    return _Said(said.until, said.digest, again=True)


def _difference(ours: SetDigest, said: _Said) -> str:
    at = format_datetime(said.until)
    if ours.count != said.digest.count:
        theirs = counted(said.digest.count, "resource")
        return f"at {at} the Source has {theirs}, and {ours.count:,} are held"
    return f"at {at} as many resources are held as the Source has, {ours.count}, but not the same"
