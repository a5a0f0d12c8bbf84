"""Handles what arrives by push: fragments, and whether push works."""

from __future__ import annotations

from rsnotify.errors import DocumentError, RsnotifyError
from rsnotify.format.coverage import fragment_coverage
from rsnotify.format.datetimes import Instant
from rsnotify.format.model import Document
from rsnotify.selection.representations import has_inline_content
from rsnotify.sync.catch_up import CatchUp
from rsnotify.sync.continuous_audit import ContinuousAudit
from rsnotify.sync.sync_state import SyncState


class PushIntake:
    """Adds the changes of fragments to the pending changes, and notices gaps."""

    def __init__(self, state: SyncState, catch_up: CatchUp, audit: ContinuousAudit) -> None:
        self._state = state
        self._catch_up = catch_up
        self._audit = audit
        #: How many subscribers receive the same fragments, as far as is known.
        self.listeners = 0
        #: When a gap is to be pulled, if there is one.
        self.gap_due: float | None = None

    def spread(self) -> float:
        """Return how long to wait before a request that all subscribers have a reason for now."""
        state = self._state
        return state.random.uniform(0.0, state.pace.spread_among(self.listeners))

    def add(self, document: Document, now: float, today: Instant | None) -> None:
        """Add the changes of a fragment; `today` comes from a clock that may be wrong."""
        try:
            coverage = fragment_coverage(document)
        except DocumentError as error:
            self.refuse(error, now)
            return
        state = self._state
        joined = state.frontiers.push(coverage, today)
        state.unconfirmed.add(joined, now)
        until = None if coverage.from_ is None else coverage.until
        self._audit.read_fragment(document, until, state.frontiers.known)
        # The same time for all: they are on one host, and its connections can be reused.
        later = now + self.spread()
        for change in joined:
            state.pending.add(
                change, due=None if later == now or has_inline_content(change) else later
            )
        if coverage.from_ is None:
            state.schedule.catch_up_by(later + state.pace.gap_grace)
        elif not state.frontiers.has_push_gap:
            self.gap_due = None
        elif self.gap_due is None and not self._catch_up.busy:
            self.gap_due = later + state.pace.gap_grace

    def refuse(self, error: RsnotifyError, now: float) -> None:
        """Read the Change List, as a message is no fragment."""
        state = self._state
        text = f"a fragment was refused, so the Change List is read: {error}"
        state.actions.note(text, warning=True)
        state.schedule.catch_up_by(now + self.spread() + state.pace.gap_grace)
