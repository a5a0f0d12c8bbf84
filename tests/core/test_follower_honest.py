"""Whatever documents, caches and hubs say: a copy is right, or the follower says why it may not be.

Faults of the Source's documents last; a hub's lies, old answers of caches and failures end before
the copy is looked at. Lists may lag behind what was pushed for a while (`Pace.poll`), so that more
time than that passes before each look.
"""

from __future__ import annotations

from datetime import timedelta
from random import Random

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from rsnotify.model import Document
from rsnotify.vocabulary import ChangeType
from tests.core.faulty import Faults, FaultySource, Liar
from tests.core.world import PACE, Destination

#: Nothing but what the documents contradict leads to a comparison of everything.
HONEST = replace(PACE, compare=1e9, repair=1.0)
AHEAD = st.sampled_from([timedelta(), timedelta(seconds=12), timedelta(hours=1)])
NAMES = st.sampled_from("abcd")
FAULTS = st.one_of(
    st.builds(
        Faults,
        order=st.sampled_from(["as it came", "newest first", "shuffled"]),
        rotates=st.booleans(),
    ),
    st.builds(Faults, until_ahead=AHEAD, rotates=st.booleans()),
    # Of a list whose time is not known nothing tells what was closed since it was made.
    st.builds(
        Faults,
        at_ahead=AHEAD,
        at_end=st.booleans(),
        dateless=st.booleans(),
        until_ahead=st.none() | AHEAD,
        rotates=st.just(False),
    ),
)
CHANGE = st.tuples(st.just("change"), NAMES, st.booleans())
STEPS = st.one_of(
    *[CHANGE] * 3,
    st.tuples(st.sampled_from(["list_resources", "list_resources", "rotate"])),
    st.tuples(st.just("move_here"), NAMES),
    st.tuples(st.just("begin_transaction"), NAMES, st.booleans()),
    st.tuples(st.just("commit")),
    st.tuples(st.sampled_from(["back_up", "restore"])),
    st.tuples(st.just("emit")),
    st.tuples(st.just("deliver"), st.integers(0, 5)),
    st.tuples(
        st.just("invent"),
        NAMES,
        st.sampled_from([ChangeType.DELETED, ChangeType.UPDATED]),
        AHEAD,
        st.booleans(),
    ),
    st.tuples(st.just("withhold"), st.integers(0, 2)),
    st.tuples(st.just("spoil"), st.sampled_from([0.0, 0.3]), st.sampled_from([0.0, 0.3])),
    st.tuples(st.just("work"), st.integers(1, 6)),
    st.tuples(st.just("wait"), st.sampled_from([0.3, 2.0])),
    *[st.tuples(st.sampled_from(["crash", "look", "look"]))] * 2,
)


class Play:
    """One history: a Source, what lies between, and a Destination."""

    def __init__(self, faults: Faults, seed: int) -> None:
        self.source = FaultySource(faults)
        self.destination = Destination(self.source, Random(seed), pace=HONEST, verifies=True)
        self.destination.lied_to = True
        self.hub = Liar(self.source, self.destination)
        self.wire: list[Document] = []

    def step(self, step: tuple) -> None:
        destination = self.destination
        match step:
            case ("emit",):
                self.wire.append(self.source.fragment(3))
            case "deliver", place if self.wire:
                destination.push(self.wire.pop(place % len(self.wire)))
            case "deliver", _:
                pass
            case (("invent" | "withhold" as lie), *details):
                getattr(self.hub, lie)(*details)
            case "spoil", broken, stale:
                destination.broken, destination.stale = broken, stale
            case "work", count:
                for _ in range(count):
                    destination.step()
            case "wait", seconds:
                destination.tick(seconds)
            case ("crash",):
                destination.restart()
            case ("look",):
                self.look()
            case what, *details:
                getattr(self.source, what)(*details)

    def look(self) -> bool:
        """Let time pass in which nothing goes wrong; return whether the copy counts as right."""
        destination, follower = self.destination, self.destination.follower
        destination.broken = destination.stale = 0.0
        ends = destination.now + 20 * PACE.poll
        while destination.now < ends:
            wakeup = follower.wakeup or ends
            destination.tick(min(PACE.poll / 2, max(0.0, wakeup - destination.now)))
            destination.work()
        assert follower.level or follower.doubts
        if follower.level:
            assert destination.content == self.source.state, destination.notes[-8:]
        return follower.level


@settings(max_examples=400, suppress_health_check=[HealthCheck.too_slow])
@given(faults=FAULTS, steps=st.lists(STEPS, max_size=30), seed=st.integers(0, 2**16))
def test_a_copy_that_counts_as_level_is_what_the_source_has(
    faults: Faults, steps: list[tuple], seed: int
) -> None:
    play = Play(faults, seed)
    for step in steps:
        play.step(step)
    play.look()
