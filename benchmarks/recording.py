"""Recording changes, in batches of several sizes, in a small and in a large set.

Each batch is durable before the next. The figures are changes per second through
`Publisher.record`, processor time per change, and what it costs later to apply a change to the
current set. In a set of a million resources, each change is in another page of the file. The sets
are measured in turn, and the least figure counts, since other work of the machine only adds to it.
"""

from __future__ import annotations

import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from random import Random

import targets

from rsnotify.format.model import ChangeType, Resource
from rsnotify_publisher import Options, Publisher
from rsnotify_publisher.journal import Journal
from rsnotify_publisher.publisher import transact

BASE = "https://source.example/data/"
SETS = (1_000, 1_000_000)
BATCHES = (1, 100, 5_000)
#: Seconds for each figure, and how many times it is measured.
EACH, TIMES = 1.0, 4
#: The floor, changes a second in batches.
FLOOR = 20_000
#: Nothing else is to be written meanwhile.
QUIET = Options(refresh=3_600, resource_list_every=3_600, poll=600, grace=0)


def resource(number: int, content: int, change: ChangeType | None) -> Resource:
    """Make a resource as a live linked-data Source has it."""
    return Resource(
        f"{BASE}{number:07}/res.ttl",
        change=change,
        hash=f"sha-256:{content:064x}",
        length=1_000 + number,
        type="text/turtle",
    )


def batches(size: int, count: int) -> Iterator[list[Resource]]:
    """Make batches of changes, each of any resource, without end."""
    random = Random(1)
    while True:
        yield [
            resource(random.randrange(size), random.getrandbits(250), ChangeType.UPDATED)
            for _ in range(count)
        ]


def loaded(folder: Path, size: int) -> Publisher:
    """Start a publisher of a set."""
    publisher = Publisher(folder, BASE, options=QUIET)
    publisher.load(resource(number, number, None) for number in range(size))
    publisher.start()
    publisher.wait_published()
    return publisher


def measure(publisher: Publisher, size: int, count: int) -> tuple[float, float]:
    """Return changes a second, and microseconds of a processor for each."""
    made = wall = cpu = 0.0
    for batch in batches(size, count):
        wall -= time.perf_counter()
        cpu -= time.process_time()
        publisher.record(batch)
        wall += time.perf_counter()
        cpu += time.process_time()
        made += count
        if wall > EACH:
            return made / wall, cpu / made * 1e6
    raise AssertionError


def apply(publisher: Publisher) -> float:
    """Apply what was recorded to the current set; return microseconds for each change."""
    with publisher.source.open_journal() as journal:
        count = journal.count_changes(journal.state().applied)
    began = time.process_time()
    while transact(publisher, Journal.apply_changes).result():
        pass
    return (time.process_time() - began) / count * 1e6


def main(sets: tuple[int, ...] = SETS) -> None:
    """Measure and print."""
    print(f"recording changes; the floor is {FLOOR:,} a second in batches")
    print(f"{'resources':>10}{'batch':>8}{'changes/s':>12}{'µs of CPU':>12}{'later':>8}")
    with tempfile.TemporaryDirectory(prefix="rsnotify-bench-") as name, ExitStack() as stack:
        publishers = {size: loaded(Path(name, str(size)), size) for size in sets}
        for publisher in publishers.values():
            stack.callback(publisher.close)
        for count in BATCHES:
            costs: dict[int, list[tuple[float, float, float]]] = {size: [] for size in sets}
            for _ in range(TIMES):
                for size, publisher in publishers.items():
                    rate, cost = measure(publisher, size, count)
                    costs[size].append((cost, rate, apply(publisher)))
            least = {size: min(each) for size, each in costs.items()}
            for size, (cost, rate, later) in least.items():
                figures = f"{rate:>12,.0f}{cost:>12.1f}{later:>8.1f}"
                print(f"{size:>10,}{count:>8,}{figures}", flush=True)
            if len(sets) > 1:
                ratio = least[max(sets)][0] / least[min(sets)][0]
                work = f"recording in a large set, batches of {count:,}, ratio"
                targets.compare(work, ratio, 1.2)


if __name__ == "__main__":
    main(tuple(map(int, sys.argv[1:])) or SETS)
