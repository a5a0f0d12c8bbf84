"""A Destination sends a Source in trouble no more requests than polling would cause.

Each shape of Source meets each trouble. While nothing changes at the Source, every URI is requested
a few times at first, and then at most once in each interval between polls. A run that only catches
up ends, and the copy is not level.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from datetime import timedelta
from heapq import heappop, heappush
from itertools import count, cycle, repeat
from random import Random

import pytest
from msgspec.structs import replace

from rsnotify.errors import (
    ContentMismatch,
    Gone,
    MalformedDocument,
    NotFound,
    RsnotifyError,
    Unavailable,
)
from rsnotify.format.coverage import Change
from rsnotify.format.model import Capability, ChangeType, Document, Resource
from rsnotify.format.offer import Offer
from rsnotify.sync.actions import Action, Apply, Compare, Discover, Fetch, FindUnlisted
from rsnotify.sync.follower import Follower
from rsnotify.sync.pace import Pace
from rsnotify.sync.progress import Progress
from tests.core.source import EPOCH, at

#: The seconds that a request takes, and one that is not answered.
DELAY, TIMEOUT = 0.05, 35.0
#: What a follower may request at first, before only time is a reason: some runs in a row, each of
#: which reads a document at most twice.
AT_FIRST = 24
PACE = Pace()
BAD, GOOD = "http://source.example/bad", "http://source.example/good"
OFFER = "http://source.example/capability-list"
BROKEN_PACKAGE = MalformedDocument("no ZIP file", source="package.zip")

Answer = Callable[[float], Document | RsnotifyError]


def entry(uri: str, *, hashed: bool = True, changed: bool = False) -> Resource:
    hash = f"md5:{uri}" if hashed else None
    if not changed:
        return Resource(uri, hash=hash)
    return Resource(uri, change=ChangeType.UPDATED, datetime=EPOCH + timedelta(1), hash=hash)


def resource_list(days: float, *, hashed: bool = True) -> Document:
    entries = (entry(BAD, hashed=hashed), entry(GOOD, hashed=hashed))
    return Document(Capability.RESOURCE_LIST, entries, at=EPOCH + timedelta(days))


def change_list(days: float = 0) -> Document:
    entries = (entry(BAD, changed=True), entry(GOOD, changed=True))
    return Document(Capability.CHANGE_LIST, entries, from_=EPOCH + timedelta(days))


def dated_now(now: float) -> Document:
    listed = tuple(Resource(uri, lastmod=EPOCH + timedelta(2, now)) for uri in (BAD, GOOD))
    return Document(Capability.RESOURCE_LIST, listed, at=EPOCH + timedelta(2, now))


def changed_now(now: float) -> Document:
    changed = tuple(
        Resource(uri, change=ChangeType.UPDATED, datetime=EPOCH + timedelta(1, now), hash="md5:0")
        for uri in (BAD, GOOD)
    )
    return Document(Capability.CHANGE_LIST, changed, from_=EPOCH)


def alternating() -> Answer:
    """Return a Resource List that two servers give by turns."""
    lists = cycle([Resource(BAD, hash="md5:0"), Resource(BAD, hash="md5:1")])
    at = EPOCH + timedelta(2)
    return lambda _: Document(Capability.RESOURCE_LIST, (next(lists), entry(GOOD)), at=at)


SHAPES: dict[str, dict[str, Answer]] = {
    "a Resource List whose entries are dated now": {"resource_list": dated_now},
    "a Resource List that alternates": {"resource_list": alternating()},
    "a Change List whose entries are dated now": {"change_list": changed_now},
    "a Resource List": {"resource_list": lambda _: resource_list(2)},
    "a Resource List without hashes": {"resource_list": lambda _: resource_list(2, hashed=False)},
    "a Resource List made for each request": {
        "resource_list": lambda now: resource_list(2 + now / 86_400)
    },
    "a Change List": {"change_list": lambda _: change_list()},
    "a Resource List and a Change List": {
        "resource_list": lambda _: resource_list(2),
        "change_list": lambda _: change_list(),
    },
    "a Resource List older than the Change List": {
        "resource_list": lambda _: resource_list(0),
        "change_list": lambda _: change_list(0.5),
    },
    "a Resource List and a Change List whose from moves": {
        "resource_list": lambda _: resource_list(0),
        "change_list": lambda now: Document(
            Capability.CHANGE_LIST, from_=EPOCH + timedelta(1, now + 1)
        ),
    },
    "a malformed Change List": {
        "resource_list": lambda _: resource_list(2),
        "change_list": lambda _: MalformedDocument("truncated", source="it"),
    },
    "a dump whose package is broken": {
        "resource_dump": lambda _: Document(
            Capability.RESOURCE_DUMP, (Resource("package.zip"),), at=EPOCH
        ),
    },
}
#: The shapes whose documents differ at each request.
UNSTEADY = list(SHAPES)[:3]
TROUBLES: dict[str, Callable[[], RsnotifyError] | None] = {
    "no trouble": None,
    "404": lambda: NotFound(BAD, "404"),
    "410": lambda: Gone(BAD, "410"),
    "403": lambda: Unavailable(BAD, "403", status=403),
    "500": lambda: Unavailable(BAD, "500", status=500),
    "no answer": lambda: Unavailable(BAD, "no answer in time"),
    "wrong content": lambda: ContentMismatch(BAD, "wrong hash"),
}


class World:
    """A Destination on a virtual clock, and the times at which it has requested each URI.

    `offers` are what the Source offers at each request of its Capability List.
    """

    def __init__(
        self,
        answers: dict[str, Answer],
        trouble: str = "no trouble",
        *,
        package: Document | RsnotifyError = BROKEN_PACKAGE,
        offers: Iterator[Offer] | None = None,
        progress: Progress | None = None,
    ) -> None:
        self._answers, self._trouble, self._package = answers, TROUBLES[trouble], package
        self._offers = offers or repeat(Offer(**{kind: kind for kind in answers}))
        self.follower = Follower(next(self._offers), progress, pace=PACE, random=Random(1))
        self.now = 0.0
        self.requests: dict[str, list[float]] = {}
        self._held: dict[str, str | None] = {}
        self._number = count()
        self._events: list[tuple[float, int, Callable[[], list[Action]]]] = []
        self._perform(self.follower.start(0.0))

    def notify(self, notification: Document) -> None:
        self._perform(self.follower.notified(notification, self.now))

    def run(self, seconds: float, *, until_ended: bool = False) -> None:
        end = self.now + seconds
        while not (until_ended and (self.follower.level or self.follower.is_stuck(self.now))):
            wakeup = self.follower.wakeup
            event = self._events[0][0] if self._events else None
            due = min(time for time in (wakeup, event, end) if time is not None)
            self.now = max(self.now, due)
            if self.now >= end:
                return
            if event == due:
                self._perform(heappop(self._events)[2]())
            else:
                self._perform(self.follower.tick(self.now))

    def _later(self, uri: str, answer: Callable[[], list[Action]]) -> None:
        self.requests.setdefault(uri, []).append(self.now)
        heappush(self._events, (self.now + self._delay(uri), next(self._number), answer))

    def _delay(self, uri: str) -> float:
        return TIMEOUT if uri == BAD and self._trouble is TROUBLES["no answer"] else DELAY

    def _perform(self, actions: list[Action]) -> None:
        for action in actions:
            match action:
                case Fetch():
                    self._later(action.uri, lambda fetch=action: self._fetched(fetch))
                case Apply():
                    for change in action.changes:
                        self._later(change.uri, lambda change=change: self._applied(change))
                case Compare():
                    self._perform(self._compared(action))
                case FindUnlisted():
                    self._perform(self.follower.unlisted((), self.now))
                case Discover():
                    self._later(OFFER, lambda: self.follower.offered(next(self._offers), self.now))
                case _:
                    pass

    def _fetched(self, fetch: Fetch) -> list[Action]:
        answer = self._package if fetch.package else self._answers[fetch.uri](self.now)
        if isinstance(answer, Document):
            return self.follower.fetched(fetch, answer, self.now)
        return self.follower.fetch_failed(fetch, answer, self.now)

    def _applied(self, change: Change) -> list[Action]:
        if change.uri == BAD and self._trouble is not None:
            if change.change is not ChangeType.DELETED:
                return self.follower.failed(change, self._trouble(), self.now)
            self._held.pop(change.uri, None)
        else:
            self._held[change.uri] = change.resource.hash
        return self.follower.applied([change], self.now)

    def _compared(self, action: Compare) -> list[Action]:
        differing = [
            one for one in action.resources if one.uri in self._held and not self._is_held(one)
        ]
        absent = [one for one in action.resources if one.uri not in self._held]
        return self.follower.differing(differing, self.now, absent)

    def _is_held(self, resource: Resource) -> bool:
        return resource.hash is not None and self._held[resource.uri] == resource.hash


@pytest.mark.parametrize("trouble", TROUBLES)
@pytest.mark.parametrize("shape", SHAPES)
def test_no_uri_is_requested_more_often_than_polling_allows(shape: str, trouble: str) -> None:
    world = World(SHAPES[shape], trouble)
    world.run(3_600)
    most = AT_FIRST + 3_600 / PACE.poll
    most += AT_FIRST * (shape in UNSTEADY)  # news at first causes further polls
    counted = Counter({uri: len(times) for uri, times in world.requests.items()})
    assert counted.most_common(1)[0][1] <= most
    for times in world.requests.values():
        late = [time for time in times if time > 600]
        rate = len(late) / 3_000 * PACE.poll
        assert rate <= 1.1, f"{rate:.1f} requests in each interval between polls"


@pytest.mark.parametrize("trouble", [name for name in TROUBLES if name != "no trouble"])
@pytest.mark.parametrize("shape", [name for name in SHAPES if "dump" not in name])
def test_a_run_that_only_catches_up_ends_and_a_copy_without_a_resource_is_not_level(
    shape: str, trouble: str
) -> None:
    world = World(SHAPES[shape], trouble)
    world.run(300, until_ended=True)
    assert world.now < (90 if trouble != "no answer" else 90 + 2 * TIMEOUT)
    assert not world.follower.level


@pytest.mark.parametrize("trouble", ["404", "403", "500", "wrong content"])
@pytest.mark.parametrize("shape", ["a Resource List", "a Change List"])
def test_t_passes_a_resource_that_stays_unavailable_and_the_next_run_knows_it(
    shape: str, trouble: str
) -> None:
    world = World(SHAPES[shape], trouble)
    world.run(120)
    progress = world.follower.progress
    assert progress is not None, "it is synced"
    assert [one.uri for one in progress.missing] == [BAD]
    assert GOOD in world._held
    again = Follower(Offer(change_list="c", resource_list="r"), progress, pace=PACE)
    actions = again.start(0.0)
    applied = [one.uri for action in actions if isinstance(action, Apply) for one in action.changes]
    assert applied == [BAD]
    assert not again.level


def test_changes_are_read_although_the_resource_list_is_not_available_after_a_dump() -> None:
    answers: dict[str, Answer] = {
        "change_list": lambda _: change_list(),
        "resource_list": lambda _: Unavailable("resource_list", "403", status=403),
        "resource_dump": SHAPES["a dump whose package is broken"]["resource_dump"],
    }
    world = World(answers, package=Document(Capability.RESOURCE_DUMP_MANIFEST, at=EPOCH))
    world.run(3_600)
    assert len(world.requests["change_list"]) > 3_000 / PACE.poll


def test_announcements_do_not_cause_more_requests_than_news() -> None:
    offers = repeat(Offer(change_list="c", capability_list="l"))
    world = World({"c": lambda _: change_list()}, offers=offers, progress=Progress(EPOCH, EPOCH))
    for number in range(600):
        world.run(0.1)
        announced = (
            Resource(uri, capability=kind, change=ChangeType.UPDATED, datetime=at(1_000 + number))
            for uri, kind in (("c", Capability.CHANGE_LIST), ("l", Capability.CAPABILITY_LIST))
        )
        world.notify(Document(Capability.FRAMEWORK_NOTIFICATION, tuple(announced)))
    most = 60 / (PACE.poll / 8) + 8
    assert len(world.requests["c"]) <= most
    assert len(world.requests[OFFER]) <= most


@pytest.mark.parametrize("has_at", [True, False])
def test_the_parts_of_an_index_are_read_again_when_they_may_close_a_gap(has_at: bool) -> None:
    parts = tuple(Resource(f"r{number}") for number in range(3))
    index = Document(Capability.RESOURCE_LIST, parts, index=True)

    def age(now: float) -> float:
        return 0 if now < 3_600 else 2

    def root(now: float) -> Document:
        return replace(index, at=EPOCH + timedelta(age(now)) if has_at else None)

    answers: dict[str, Answer] = {"resource_list": root, "change_list": lambda _: change_list(0.5)}
    answers |= {part.uri: lambda now: resource_list(age(now)) for part in parts}
    offers = repeat(Offer(resource_list="resource_list", change_list="change_list"))
    world = World(answers, offers=offers)
    world.run(3_600)
    assert not world.follower.level
    assert len(world.requests["r0"]) < AT_FIRST
    world.run(PACE.poll + PACE.repair * (not has_at))
    assert world.follower.level
