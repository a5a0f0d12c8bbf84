"""The follower: how a Destination stays in step with one set of resources.

Theory of operation
-------------------

The follower receives events and returns actions; the surrounding program does the I/O. Times
called `now` are seconds of any clock that does not jump; instants are the Source's.

Its `SyncFrontiers` say how far a Destination is: T, `known` and `confirmed`. A fragment whose
interval reaches `known` advances it. A fragment that begins later reveals a gap: it is held
(bounded) for a moment, as it may only be out of order, and then the gap is pulled (`CatchUp`).
Push is trusted at once but not forever: each pull starts from `confirmed`, so a change that a hub
withheld is found at the next poll. Applying a change twice does nothing.

    push                                         pull (from `confirmed`)

    fragment --reaches known--> apply            poll due, gap, push lost
       |                          ^                 |
       begins later               |                 v
       v                          |              Change List (or Index) --reaches--> apply
     held --grace over--> pull    |                 | begins later
       |                          |                 v
       +---- known advanced ------+              Change List Archive   each --reaches--> its
                                                 Change Dump           lists or packages, then
                                                 Change Dump Archive   again the Change List
                                                    | each begins later, or none
                                                    v
                                                 Resource List or Dump: compare, delete what is
                                                 not listed, known = its `at`; then again the
                                                 Change List

Each arrow down costs more than the one before, and may lead to an index, whose members are then
read. An empty copy begins at the bottom, with the Resource Dump, as one download costs less than a
GET for each resource; any other copy is compared with the Resource List. If one of these two cannot
be used, the other is read, and finally an archived one. A Source need not offer all of this: the
first document that it offers takes the place of the Change List.

A document that cannot be fetched or read ends the pull, which is retried with backoff; the changes
read before it are kept. Documents of the past are given up at once, and the next kind is read.
Documents of the present are given up after some attempts; if the Change List itself stays broken,
the others are read in its place, and now and then everything is compared. The last fallback is
always the whole set of resources, which is right in any case and costs most.

Packages are requested one at a time, the next when most changes of the last are applied. A change
names the package that has its content; content that is not available from it is fetched.

Changes that are known but not applied are in the `PendingChanges`. T is just before the earliest of
them; if there is none, T is `known`, or where a gap begins that no document covers. T passes a
resource that stays unavailable, which is stored with the progress and retried less and less often.
Documents may list changes of a time that T has passed: a hub withheld them, or they are repeated.
Until these are applied they hold up `confirmed` in place of T, so that the next run reads them
again.

The `Schedule` decides when to pull: soon after news, then less and less often, rarely while push
works, and never before the Source's `Retry-After` is over. Without news, its `Allowance` bounds
how often the documents are read, whatever the reason. A Framework Notification
(`DocumentNotices`) is a reason to read documents sooner, and no more. Requests that many
subscribers have a reason for at once are spread at random (`Pace.spread`).

A fragment may state the size and the digest of the whole set. Whenever the copy is at that very
instant (`audit_due`), the program passes the sum over it, and the `ContinuousAudit` compares them:
a difference is searched for in the lists, and if they do not have it, everything is compared.

The program must answer each `Fetch`, `Apply`, `Compare` and `FindUnlisted`, in any order, and may
stop at any point: started again from the last stored `progress`, it ends with the same result.
"""

from __future__ import annotations

from collections.abc import Iterable
from random import Random

from rsnotify.errors import DocumentError, RsnotifyError
from rsnotify.format.coverage import Change
from rsnotify.format.datetimes import Instant
from rsnotify.format.digest import SetSum
from rsnotify.format.model import Document, Resource
from rsnotify.format.offer import Offer
from rsnotify.sync.actions import Action, Apply, Discover, Fetch, ForgetDatetimes, Progress
from rsnotify.sync.apply_results import ApplyResults
from rsnotify.sync.catch_up import CatchUp
from rsnotify.sync.continuous_audit import ContinuousAudit, Remedy
from rsnotify.sync.document_notices import DocumentNotices, DocumentsToRead
from rsnotify.sync.fallback_order import RESOURCE_KINDS
from rsnotify.sync.follower_view import FollowerView
from rsnotify.sync.pace import Pace
from rsnotify.sync.pending_changes import UNWAITED
from rsnotify.sync.push_intake import PushIntake
from rsnotify.sync.sync_state import SyncState


class Follower(FollowerView):
    """Follows one set of resources. Call `start` first, then one method for each event.

    Every event returns the actions to perform, to be begun in this order; `wakeup` is the time at
    which `tick` is due. Store the changes that were applied in one transaction with the `progress`
    after `applied`; or with `progress_after`, if `applied` is called only once they are durable.

    Args:
        offer: What the Source offers.
        progress: Where an earlier run stopped; None to begin with a baseline.
        pace: How fast, and how much at once.
        random: The source of jitter.
        compared: When the copy was last compared with the whole set, by the clock of `now`.
        pushed: The changes that an earlier run applied and are later than `progress.confirmed`.
        incomparable: Why the copy cannot be compared with the Source's statements about its whole
            set, in a sentence; empty if it can.
    """

    def __init__(
        self,
        offer: Offer,
        progress: Progress | None = None,
        *,
        pace: Pace | None = None,
        random: Random | None = None,
        compared: float = 0.0,
        pushed: Iterable[Change] = (),
        incomparable: str = "",
    ) -> None:
        pace = pace or Pace()
        self._state = SyncState(progress, pace, random or Random(), pushed)
        self._catch_up = CatchUp(offer, self._state, compared)
        self._audit = ContinuousAudit(pace, self._state.actions, incomparable)
        self._push = PushIntake(self._state, self._catch_up, self._audit)
        missing = progress.missing if progress is not None else ()
        self._results = ApplyResults(self._state, self._catch_up, self._audit, missing)
        self._notices = DocumentNotices(self._state.frontiers)

    def _next_actions(self, now: float) -> list[Action]:
        self._catch_up.proceed()
        changes = self._state.pending.dispatch(self._state.pace.in_flight, now)
        if changes:
            self._state.actions.append(Apply(tuple(changes)))
        actions = self._state.actions.remove_all()
        if any(isinstance(action, ForgetDatetimes) and action.entirely for action in actions):
            self._audit.reset()
        return actions

    # Time, and the Source's offer

    def start(self, now: float) -> list[Action]:
        """Begin: with a baseline if there is no progress, else with a pull."""
        self._results.start(now)
        self._catch_up.begin(now)
        return self._next_actions(now)

    def tick(self, now: float) -> list[Action]:
        """Do what has become due."""
        schedule, push = self._state.schedule, self._push
        if push.gap_due is not None and push.gap_due <= now:
            push.gap_due = None
            schedule.catch_up_by(now)
        if schedule.due is not None and schedule.due <= now and not self._catch_up.busy:
            push.gap_due = None
            self._catch_up.begin(now)
        if schedule.is_offer_due(now):
            self._state.actions.append(Discover())
        return self._next_actions(now)

    def offered(self, offer: Offer, now: float) -> list[Action]:
        """Use what the Source offers now from the next pull on."""
        self._catch_up.set_offer(offer, now)
        return self._next_actions(now)

    # Push

    def fragment(
        self, document: Document, now: float, today: Instant | None = None
    ) -> list[Action]:
        """Add the changes of a fragment that was pushed.

        `today` comes from the clock of the Destination, if it has one; that may be wrong.
        """
        self._push.add(document, now, today)
        return self._next_actions(now)

    def fragment_unreadable(self, error: RsnotifyError, now: float) -> list[Action]:
        """Read the Change List, as something was pushed that is no fragment."""
        self._push.refuse(error, now)
        return self._next_actions(now)

    def audience(self, listeners: int) -> None:
        """Set how many subscribers receive the fragments that arrive here."""
        self._push.listeners = listeners

    def push_up(self, now: float) -> list[Action]:
        """Poll less often, as fragments arrive from `since` on."""
        self._state.schedule.push_works = True
        return self._next_actions(now)

    def push_gap(self, now: float) -> list[Action]:
        """Read the Change List, as the hub cannot replay from `since` on."""
        self._state.actions.note(
            "the hub's log does not reach back far enough, so the Change List is read"
        )
        self._state.schedule.catch_up_by(now)
        return self.tick(now)

    def push_down(self, now: float) -> list[Action]:
        """Poll more often, as no fragments arrive any more."""
        self._state.schedule.push_lost(now)
        return self._next_actions(now)

    # Framework Notifications

    @property
    def notified_through(self) -> Instant | None:
        """Every Framework Notification up to here was received; None before the first."""
        return self._notices.through

    def notified(self, document: Document, now: float) -> list[Action]:
        """Read soon the documents that a Framework Notification announces, if they may help."""
        failing = self.failures > 0
        try:
            to_read = self._notices.read(document, self._catch_up.offer, failing=failing)
        except DocumentError as error:
            self._state.actions.note(f"a notification about documents was ignored: {error}")
            to_read = DocumentsToRead()
        self._state.schedule.documents_changed(to_read, now, self._push.listeners)
        return self._next_actions(now)

    # Resources that the copy has lost

    def verify(self, changes: Iterable[Change], now: float) -> list[Action]:
        """Fetch resources again, in place of what is pending for them.

        T does not wait for them: the program stores which resources the copy has lost.
        """
        for change in changes:
            if not self._state.pending.is_watched(change.uri):
                self._state.pending.add(change, since=UNWAITED)
        return self._next_actions(now)

    def compare_lost(self, now: float) -> list[Action]:
        """Read what the lists say of all resources, as a `verify` met other content, or none."""
        self._catch_up.compare_lost(now)
        return self._next_actions(now)

    # Answers to `Fetch`, `Compare` and `FindUnlisted`

    def fetched(
        self, fetch: Fetch, document: Document, now: float, sent: Instant | None = None
    ) -> list[Action]:
        """Use a document that was requested, read to its end.

        `sent` is when it was sent, by the clock of the Source; None if that is not known.
        """
        try:
            self._catch_up.fetched(fetch, document, now, sent)
            if fetch.kind in RESOURCE_KINDS:
                self._audit.read_list(document)
        except DocumentError as error:
            return self.fetch_failed(fetch, error.at(fetch.uri), now)
        return self._next_actions(now)

    def fetch_failed(self, fetch: Fetch, error: RsnotifyError, now: float) -> list[Action]:
        """Retry or use other documents, as one could not be fetched or read; none of it counts."""
        self._catch_up.failed(fetch, error, now)
        return self._next_actions(now)

    def differing(
        self,
        resources: Iterable[Resource],
        now: float,
        absent: Iterable[Resource] = (),
        unproven: Iterable[Resource] = (),
        checkable: Iterable[Resource] = (),
    ) -> list[Action]:
        """Add the resources of the last `Compare` that are stored differently, or not at all.

        Those that are `unproven` are requested now and then, as their entries do not show whether
        they have changed. Those that are `checkable`, too, and a conditional request shows it.
        """
        resources, absent = list(resources), list(absent)
        self._audit.differences += len(resources) + len(absent)
        self._catch_up.add_differing(resources, absent, now, list(unproven), list(checkable))
        return self._next_actions(now)

    def unlisted(self, uris: Iterable[str], now: float) -> list[Action]:
        """Remove the resources of the last `FindUnlisted`, which are stored but not listed."""
        uris = list(uris)
        self._audit.differences += len(uris)
        self._catch_up.add_unlisted(uris, now)
        return self._next_actions(now)

    # Answers to `Apply` and `audit_due`

    def applied(self, changes: Iterable[Change], now: float) -> list[Action]:
        """Record that changes of an `Apply` are committed, or about to be."""
        self._results.applied(changes, now)
        return self._next_actions(now)

    def failed(self, change: Change, error: RsnotifyError, now: float) -> list[Action]:
        """Retry a change of an `Apply` later, as it could not be applied."""
        self._results.failed(change, error, now)
        return self._next_actions(now)

    def audited(self, held: SetSum, latest: Instant, now: float) -> list[Action]:
        """Compare the copy with the Source's statement; call it while `audit_due`.

        `held` is the sum over the copy, whose applied changes must all be committed; `latest` is
        the datetime of the latest change in it.
        """
        can_list = self._catch_up.can_compare
        remedy = self._audit.compare(held, latest, now, can_list=can_list)
        if self._audit.in_step:
            self._catch_up.comparisons.compared = now
        if remedy is not Remedy.NOTHING:
            # A change that a hub withheld is missing at all its subscribers, at the same time.
            when = now + self._push.spread()
            self._catch_up.check(now, when, everything=remedy is Remedy.COMPARE)
        return self._next_actions(now)
