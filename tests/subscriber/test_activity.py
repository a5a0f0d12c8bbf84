"""What a subscriber, an audit and a repair say of long work while it is under way."""

from __future__ import annotations

from collections.abc import Callable

from rsnotify_subscriber import ActivityKind, Subscriber, SyncActivity, audit, repair
from tests.subscriber.destination import CHANGE_LIST, Destination
from tests.subscriber.source import SmallSource
from tests.waiting import until


async def seen(subscriber: Subscriber, condition: Callable[[SyncActivity], bool]) -> SyncActivity:
    """Return the activity of a subscriber once a condition holds for it."""
    found: list[SyncActivity] = []

    def holds() -> bool:
        activity = subscriber.status.activity
        if activity is not None and condition(activity):
            found.append(activity)
        return bool(found)

    await until(holds)
    return found[0]


async def test_a_first_copy_and_what_was_missed_are_counted(
    source: SmallSource, destination: Destination
) -> None:
    source.put_some(20)
    last = source.hold("/data/r19")
    async with destination.subscriber() as subscriber:
        # What was just stored is for a moment counted among the pending, too.
        copying = await seen(subscriber, lambda one: (one.done, one.total) == (19, 20))
        assert (copying.kind, copying.is_estimate) == (ActivityKind.COPYING, False)
        assert 0 < copying.bytes <= subscriber.status.received
        last.set()
        await destination.until(lambda: subscriber.status.level)
        assert subscriber.status.activity is None
        # A change of the copy that is late: it is behind.
        held = source.hold("/data/r3")
        source.put("r3", b"other")
        behind = await seen(subscriber, lambda one: one.kind is ActivityKind.CATCHING_UP)
        assert behind.total == behind.done + 1
        held.set()
        await destination.until_equal()


async def test_a_document_that_takes_long_is_named(
    source: SmallSource, destination: Destination
) -> None:
    source.put_some(3)
    held = source.hold(CHANGE_LIST)
    async with destination.subscriber() as subscriber:
        reading = await seen(subscriber, lambda one: one.document == "Change List")
        assert reading.kind is ActivityKind.READING
        held.set()
        await destination.until(lambda: subscriber.status.level)


async def test_an_audit_and_a_repair_change_the_activity_that_they_are_given(
    source: SmallSource, destination: Destination
) -> None:
    source.put_some(20)
    await destination.become_equal()
    (destination.folder / "r3").unlink()
    activity = SyncActivity(ActivityKind.FINDING)
    found = await audit(source.url, destination.folder, pause=0, activity=activity)
    assert len(found.created) == 1
    # Differences are compared again: at last only one file.
    assert activity == SyncActivity(
        ActivityKind.COMPARING, "Source's documents again", done=1, total=1
    )
    seen: list[tuple[ActivityKind, int, int | None]] = []

    class Watched(SyncActivity):
        def __setattr__(self, name: str, value: object) -> None:
            super().__setattr__(name, value)
            seen.append((self.kind, self.done, self.total))

    activity = Watched(ActivityKind.FINDING)
    await repair(source.url, destination.folder, pause=0, activity=activity)
    compared = (ActivityKind.COMPARING, 20, 20)
    kinds = [kind for kind, _, _ in seen]
    assert seen.index(compared) < kinds.index(ActivityKind.REPAIRING)
    assert (activity.kind, activity.done, activity.total) == compared
    assert activity.bytes == 10 * 1 + 10 * 2
    assert destination.equals_source()
