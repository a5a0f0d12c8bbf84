"""Random Sources, sets of documents and histories: the copy ends right, or it states a doubt.

Many long histories find combinations that property tests, which prefer short ones, rarely reach.
"""

from __future__ import annotations

from datetime import timedelta
from random import Random

import pytest
from msgspec.structs import replace

from rsnotify.format.datetimes import MICROSECOND
from rsnotify.format.model import Document
from rsnotify.format.offer import Offer
from rsnotify.sync.doubts import DoubtKind
from rsnotify.sync.pull import change_documents, resource_documents
from tests.core.histories import history, play
from tests.core.world import EVERYTHING, OFFER, PACE, PATIENT, Destination, Source
from tests.examples_count import examples

DOCUMENTS = sorted({root.kind.name.lower() for root in change_documents(EVERYTHING)}) + sorted(
    root.kind.name.lower() for root in resource_documents(EVERYTHING)
)
#: The weight of each step.
WEIGHTS = {
    "change": 25, "work": 20, "wait": 4, "poll": 2, "crash": 4, "list_resources": 5,
    "dump_resources": 3,
}  # fmt: skip
#: Steps after which only a whole set has everything.
CLOSING = {"rotate": 3, "pack": 2, "archive": 2}
PUSHED = {"emit": 14, "deliver": 14, "double": 2, "lose": 3}
#: The doubts that may remain. The Source keeps no document with the missing changes, or a resource
#: was unavailable when the whole set was last compared.
LASTING = {DoubtKind.UNCOVERED_GAP, DoubtKind.UNAVAILABLE}
#: After caches have served old lists, a list may look older than one that was read before.
CACHED = {DoubtKind.OLD_LIST, DoubtKind.OLD_CHANGES}


def random_offer(random: Random) -> Offer:
    if random.random() < 0.3:
        return OFFER
    kept = random.sample(DOCUMENTS, random.randint(1, len(DOCUMENTS)))
    return replace(EVERYTHING, **{name: None for name in DOCUMENTS if name not in kept})


def check(seed: int, *, caches: bool) -> None:
    """Play a history, and check the copy at its end. `caches` serve old documents and old content.

    Without caches, the world checks T after each commit.
    """
    random = Random(seed)
    offer = random_offer(random)
    source = Source(
        granularity=random.choice([MICROSECOND, timedelta(seconds=1)]),
        per_list=random.randint(1, 5),
        kept=random.choice([0, 1, 3, 100] if offer.resource_list or offer.resource_dump else [100]),
        index=random.random() < 0.5,
        nested=random.random() < 0.5,
        terse=random.random() < 0.5,
    )
    destination = Destination(source, random, offer, random.choice([PATIENT, PATIENT, PACE]))
    destination.verifies = True
    destination.broken = random.choice([0.0, 0.1, 0.3])
    destination.stale = random.choice([0.2, 0.5]) if caches else 0.0
    destination.lied_to = caches
    # With whole seconds, fragments do not show whether one between them was lost.
    is_pushed = change_documents(offer) and source.granularity == MICROSECOND
    weights = WEIGHTS | (PUSHED if is_pushed else {})
    weights |= CLOSING if resource_documents(offer) else {}
    wire: list[Document] = []
    for step in history(random, weights, random.choice([20, 40, 80])):
        play(step, source, destination, wire)
    destination.broken = destination.stale = 0.0
    source.finish(offer)
    for fragment in wire:
        destination.push(fragment)
    settle(destination)
    destination.read_lists()  # which confirm the changes from push
    if settle(destination):
        assert destination.content == source.state


def settle(destination: Destination) -> bool:
    """Carry out everything, and return whether the copy is level. Otherwise, the doubt remains."""
    for _ in range(1_000):
        destination.work()
        if destination.follower.level:
            return True
        destination.tick()
    lasting = LASTING | CACHED if destination.lied_to else LASTING
    assert destination.follower.doubts_by_kind.keys() & lasting, destination.follower.doubts
    return False


@pytest.mark.parametrize("caches", [False, True])
@pytest.mark.parametrize("part", range(4))
def test_a_copy_ends_right_or_in_doubt(part: int, caches: bool) -> None:
    for seed in range(part, examples(800), 4):
        check(seed, caches=caches)


@pytest.mark.slow
@pytest.mark.parametrize("first", range(0, 100_000, 5_000))
def test_a_copy_ends_right_or_in_doubt_in_many_more_histories(first: int) -> None:
    for seed in range(first, first + 5_000):
        check(seed, caches=False)
