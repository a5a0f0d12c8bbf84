"""Recording changes, in batches of several sizes, in a small and in a large set.

Each batch is durable before the next, and updates the current set and its sum. The figures are
changes per second through `Publisher.record`, and processor time per change. In a set of a million
resources, a batch of a thousand changes is small: each change is in another page of the file.
Single changes take longer there at first, while the WAL still grows.
"""

from __future__ import annotations

import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from random import Random

import targets

from rsnotify.format.model import Resource
from rsnotify.format.vocabulary import ChangeType
from rsnotify_publisher import Options, Publisher

BASE = "https://source.example/data/"
SETS = (1_000, 1_000_000)
BATCHES = (1, 100, 5_000)
#: Seconds for each figure.
EACH = 3.0
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


def main(sets: tuple[int, ...] = SETS) -> None:
    """Measure and print."""
    print(f"recording changes; the floor is {FLOOR:,} a second in batches")
    costs: dict[int, list[float]] = {}
    print(f"{'resources':>10}{'batch':>8}{'changes/s':>12}{'µs of CPU':>12}")
    for size in sets:
        with tempfile.TemporaryDirectory(prefix="rsnotify-bench-") as name:
            publisher = loaded(Path(name), size)
            for count in BATCHES:
                rate, cost = measure(publisher, size, count)
                costs.setdefault(count, []).append(cost)
                print(f"{size:>10,}{count:>8,}{rate:>12,.0f}{cost:>12.1f}", flush=True)
            publisher.close()
    for count, (small, *_, large) in costs.items() if len(sets) > 1 else ():
        targets.compare(
            f"recording in a large set, batches of {count:,}, ratio", large / small, 1.2
        )


if __name__ == "__main__":
    main(tuple(map(int, sys.argv[1:])) or SETS)
