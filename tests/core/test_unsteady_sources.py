"""What a follower requests if a document stays unreadable, or is announced all the time."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable

from rsnotify.errors import RsnotifyError, Unavailable
from rsnotify.format.model import Capability, ChangeType, Document, Resource
from rsnotify.format.offer import Offer
from rsnotify.sync.actions import (
    Action,
    Apply,
    Compare,
    Discover,
    DocumentKind,
    Fetch,
    FindUnlisted,
    Progress,
)
from tests.core.source import EPOCH, at
from tests.core.wire import Wire

PACE = {"poll": 10.0, "patience": 60.0, "gone_after": 600.0, "stale": 300.0}
CHANGES = Document(
    Capability.CHANGE_LIST,
    (Resource("http://a/1", change=ChangeType.UPDATED, datetime=at(1), hash="md5:1"),),
    from_=EPOCH,
)
#: The seconds until an action has its result.
DELAY = 0.05


class Play:
    """Answers all actions of a follower in virtual time, and counts its requests."""

    def __init__(self, wire: Wire, answer: Callable[[Fetch], Document | RsnotifyError]) -> None:
        self.wire, self._answer = wire, answer
        self.requests = Counter[DocumentKind | type[Discover]]()
        self._waiting: deque[Action] = deque(wire.actions)

    def take(self, actions: list[Action]) -> None:
        self._waiting += actions

    def run(self, seconds: float) -> None:
        wire = self.wire
        end = wire.now + seconds
        while wire.now < end:
            if self._waiting:
                wire.now += DELAY
                self.take(self._perform(self._waiting.popleft()))
            else:
                wire.now = min(end, max(wire.now, wire.follower.wakeup or end))
                self.take(wire.follower.tick(wire.now))

    def _perform(self, action: Action) -> list[Action]:
        follower, now = self.wire.follower, self.wire.now
        match action:
            case Fetch():
                self.requests[action.kind] += 1
                answer = self._answer(action)
                if isinstance(answer, Document):
                    return follower.fetched(action, answer, now)
                return follower.fetch_failed(action, answer, now)
            case Discover():
                self.requests[Discover] += 1
            case Apply():
                return follower.applied(action.changes, now)
            case Compare():
                return follower.differing([], now)
            case FindUnlisted():
                return follower.unlisted([], now)
        return []


def test_changes_are_read_although_the_resource_list_is_not_available_after_a_dump() -> None:
    def answer(fetch: Fetch) -> Document | RsnotifyError:
        if fetch.package is not None:
            return Document(Capability.RESOURCE_DUMP_MANIFEST, at=EPOCH)
        if fetch.kind is DocumentKind.RESOURCE_DUMP:
            return Document(Capability.RESOURCE_DUMP, (Resource("p.zip", length=1),), at=EPOCH)
        if fetch.kind is DocumentKind.RESOURCE_LIST:
            return Unavailable("r", "403", status=403)
        return CHANGES

    play = Play(Wire(Offer(change_list="c", resource_list="r", resource_dump="d"), **PACE), answer)
    play.run(3_600)
    assert play.requests[DocumentKind.CHANGE_LIST] > 100


def test_announcements_do_not_cause_more_requests_than_news() -> None:
    offer = Offer(change_list="c", capability_list="l")
    play = Play(Wire(offer, Progress(EPOCH, EPOCH), **PACE), lambda _: CHANGES)
    for number in range(600):
        play.run(0.1)
        listed = (
            Resource(uri, capability=kind, change=ChangeType.UPDATED, datetime=at(1_000 + number))
            for uri, kind in (("c", Capability.CHANGE_LIST), ("l", Capability.CAPABILITY_LIST))
        )
        notification = Document(Capability.FRAMEWORK_NOTIFICATION, tuple(listed))
        play.take(play.wire.follower.notified(notification, play.wire.now))
    most = 60 / (PACE["poll"] / 8) + 8
    assert play.requests[DocumentKind.CHANGE_LIST] <= most
    assert play.requests[Discover] <= most
