"""The events of a follower, with a clock of the test's own."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

from rsnotify.errors import Unavailable
from rsnotify.format.coverage import Change
from rsnotify.format.model import Capability, ChangeType, Document, Resource
from rsnotify.format.offer import Offer
from rsnotify.sync.actions import Apply
from rsnotify.sync.follower import Follower
from rsnotify.sync.progress import Progress
from rsnotify_subscriber import Behind, Event, GapSeen, LevelReached
from rsnotify_subscriber.events import BEHIND_AFTER, Announcer, EventWatch
from rsnotify_subscriber.status import FollowCounters, StatusCounters
from tests.core.test_follower_broken import EPOCH
from tests.core.wire import Wire

STEP = timedelta(milliseconds=5)


class Watched:
    """A follower that is level at first, and its events."""

    def __init__(self, **pace: float) -> None:
        wire = Wire(Offer(change_list="c"), Progress(EPOCH, EPOCH), **pace)
        wire.answer(Document(Capability.CHANGE_LIST, from_=EPOCH))
        self.follower: Follower = wire.follower
        self.now = 0.0
        self.events: list[Event] = []
        announce = Announcer(self.events.append)
        self.watch = EventWatch(announce, StatusCounters(announce.counters))
        self.look()

    def look(self, after: float = 0.0) -> None:
        self.now += after
        self.watch.check(self.follower, self.now)

    def push(self, number: int, *, from_: int | None = None) -> Change | None:
        """Push the change of a number, as what follows the number before it or another one.

        Returns:
            What is to be applied.
        """
        before = number - 1 if from_ is None else from_
        change = Resource(
            f"http://source.example/{number}",
            change=ChangeType.UPDATED,
            datetime=EPOCH + number * STEP,
        )
        fragment = Document(
            Capability.CHANGE_NOTIFICATION,
            (change,),
            from_=EPOCH + before * STEP,
            until=EPOCH + number * STEP,
        )
        actions = self.follower.fragment(fragment, self.now)
        self.look()
        asked = [one.changes for one in actions if isinstance(one, Apply)]
        return next((one for changes in asked for one in changes if one.uri == change.uri), None)

    def applied(self, change: Change) -> None:
        self.follower.applied((change,), self.now)
        self.look()


def test_changes_that_are_applied_soon_cause_no_event() -> None:
    watched = Watched(in_flight=64)
    assert watched.events == [LevelReached(EPOCH)]
    late: list[Change] = []
    for number in range(1, 1001):  # always something is on its way, none of it for long
        work = watched.push(number)
        assert work is not None
        late.append(work)
        watched.look(after=0.005)
        if len(late) > 10:
            watched.applied(late.pop(0))
    assert not watched.follower.level
    assert watched.events == [LevelReached(EPOCH)]


def test_being_behind_is_announced_once_and_so_is_its_end() -> None:
    watched = Watched()
    work = watched.push(1)
    assert work is not None
    watched.look(after=BEHIND_AFTER - 0.1)
    assert watched.events == [LevelReached(EPOCH)]
    watched.look(after=0.2)
    watched.look(after=10)
    reason = "1 resource has changes that are not applied yet"
    assert watched.events == [LevelReached(EPOCH), Behind(1, (reason,))]
    watched.applied(work)
    assert watched.events == [LevelReached(EPOCH), Behind(1, (reason,)), LevelReached(EPOCH + STEP)]


def test_a_failing_change_leaves_the_copy_behind_though_others_are_applied() -> None:
    watched = Watched()
    bad = watched.push(1)
    assert bad is not None
    watched.follower.failed(bad, Unavailable("it", "away"), watched.now)
    for number in range(2, 500):
        work = watched.push(number)
        assert work is not None
        watched.applied(work)
        watched.look(after=0.005)
    assert Behind in [type(one) for one in watched.events]


def test_a_gap_is_announced_at_once_and_being_behind_if_it_stays() -> None:
    watched = Watched()
    assert watched.push(9, from_=8) is None
    assert watched.events == [LevelReached(EPOCH), GapSeen()]
    watched.look(after=BEHIND_AFTER)
    reason = "the Source's lists do not contain all pushed changes yet"
    assert watched.events == [LevelReached(EPOCH), GapSeen(), Behind(0, (reason,))]


def test_a_change_that_is_postponed_on_purpose_does_not_count_as_behind() -> None:
    watched = Watched(spread=20.0)
    watched.follower.audience(1_000_000)
    assert watched.push(1) is None
    for _ in range(10):
        watched.look(after=BEHIND_AFTER)
    assert watched.events == [LevelReached(EPOCH)]


def test_the_age_of_a_change_is_a_lag_only_if_the_copy_does_not_have_to_catch_up() -> None:
    counters = StatusCounters(FollowCounters())
    at = datetime.now(UTC) - timedelta(hours=1)
    missed = Change("a", ChangeType.UPDATED, at, Resource("a", change=ChangeType.UPDATED))
    counters.count([missed], is_current=False)
    assert (counters.applied, counters.lag_ms(), counters.lag_p99_ms()) == (1, None, None)
    counters.count([missed], is_current=True)
    lag = counters.lag_ms()
    assert lag is not None
    assert lag >= 3_600_000
