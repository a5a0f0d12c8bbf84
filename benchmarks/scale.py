"""How costs grow with the number of subscribers, resources, changes, Sources and log entries.

Prints each series, and writes a plot of each into `benchmarks/plots/`, which `README.md` shows. The
cost is processor time, so that other work of the machine does not distort it much.
"""

from __future__ import annotations

import asyncio
import tempfile
import time
from collections.abc import Callable
from contextlib import ExitStack
from functools import cache
from pathlib import Path

import fleet
import latency
import many_sets
import recording
import restart
from fanout import MeasuredHub, WebSocketClients, fragment, processor_seconds
from plots import Point, plot

PLOTS = Path(__file__).with_name("plots")
SUBSCRIBERS = (1, 10, 100, 1_000, 10_000)
RATES = (1, 10, 100, 1_000, 5_000)
RESOURCES = (1_000, 10_000, 100_000, 1_000_000)
ENTRIES = (1_000, 10_000, 100_000, 1_000_000)
SOURCES = (1, 10, 100, 500)

#: Changes a second, and for how many seconds.
LATENCY_RATES = {10: 10.0, 50: 6.0, 200: 5.0, 1_000: 5.0, 5_000: 5.0}

Lines = dict[str, list[Point]]


class LiveHub:
    """A hub with subscribers, and the number of the next fragment."""

    def __init__(self, folder: Path, stack: ExitStack, subscribers: int) -> None:
        self._hub = MeasuredHub(folder, stack)
        self._clients = WebSocketClients(self._hub, subscribers, folder, stack)
        self._number = 0

    def one_by_one(self, count: int) -> float:
        """Publish fragments, each once all have the one before; return seconds of CPU for each."""
        began = processor_seconds(self._hub.pid)
        for _ in range(count):
            self._publish(1)
        return (processor_seconds(self._hub.pid) - began) / count

    def at_rate(self, rate: float, seconds: float) -> float:
        """Publish at a rate; return seconds of CPU for each second."""
        began, due = processor_seconds(self._hub.pid), time.monotonic()
        end = due + seconds
        while due < end:
            # Above a thousand a second, a Source sends what has gathered in a millisecond.
            count = max(1, round(rate / 1_000))
            self._publish(count)
            due += count / rate
            time.sleep(max(0.0, due - time.monotonic()))
        return (processor_seconds(self._hub.pid) - began) / seconds

    def _publish(self, count: int) -> None:
        self._clients.expect(count)
        self._hub.publish([fragment(self._number + each) for each in range(count)])
        self._number += count
        self._clients.wait()


def with_subscribers() -> Lines:
    """Return the hub's milliseconds for a fragment."""
    line: list[Point] = []
    for count in SUBSCRIBERS:
        with tempfile.TemporaryDirectory() as name, ExitStack() as stack:
            hub = LiveHub(Path(name), stack, count)
            hub.one_by_one(10)
            line.append((count, hub.one_by_one(50) * 1e3))
    return {"WebSocket": line}


def with_rate() -> Lines:
    """Return the hub's milliseconds in each second."""
    line: list[Point] = []
    with tempfile.TemporaryDirectory() as name, ExitStack() as stack:
        hub = LiveHub(Path(name), stack, 1)
        for rate in RATES:
            cost = hub.at_rate(rate, max(3.0, 10 / rate))
            line.append((rate, cost * 1e3))
    return {"hub with one subscriber": line}


@cache
def _followed(rate: int, *, push: bool) -> tuple[float, float, float]:
    """Return p50 and p99 from `record` to visible, and milliseconds of CPU in each second."""
    with tempfile.TemporaryDirectory(prefix="rsnotify-bench-") as name:
        seconds = LATENCY_RATES[rate]
        # So many resources that hardly any changes again before a poll has fetched it.
        measured = latency.measure(Path(name), seconds, rate, 100_000, push=push)
        latencies, cpu = asyncio.run(measured)
    p50, p99 = latency.percentiles(list(latencies.found["visible"].values()))
    return p50, p99, sum(cpu.values()) * rate


def latency_with_rate() -> Lines:
    """Return the milliseconds until a change is visible."""
    with tempfile.TemporaryDirectory(prefix="rsnotify-bench-") as name:
        flush, _ = latency.percentiles(latency.rounds(Path(name))[0])
    pushed = {rate: _followed(rate, push=True) for rate in LATENCY_RATES}
    polled = {rate: _followed(rate, push=False) for rate in LATENCY_RATES}
    return {
        "polling, at least every second, p50": [(rate, found[0]) for rate, found in polled.items()],
        "push, p99": [(rate, found[1]) for rate, found in pushed.items()],
        "push, p50": [(rate, found[0]) for rate, found in pushed.items()],
        "one flush, p50": [(rate, flush) for rate in LATENCY_RATES],
    }


def cost_with_rate() -> Lines:
    """Return the milliseconds of CPU in each second, of all processes together."""
    return {
        name: [(rate, _followed(rate, push=push)[2]) for rate in LATENCY_RATES]
        for name, push in (("polling, at least every second", False), ("push", True))
    }


def with_resources() -> Lines:
    """Return the Source's microseconds for a change that is recorded, and applied later."""
    lines: Lines = {f"in batches of {batch}": [] for batch in recording.BATCHES}
    applied: list[Point] = []
    for size in RESOURCES:
        with tempfile.TemporaryDirectory(prefix="rsnotify-bench-") as name:
            publisher = recording.loaded(Path(name), size)
            for batch, line in zip(recording.BATCHES, lines.values(), strict=True):
                line.append((size, recording.measure(publisher, size, batch)[1]))
                later = recording.apply(publisher)
            applied.append((size, later))
            publisher.close()
    return {**lines, "applied to the set later": applied}


def with_entries() -> Lines:
    """Return the hub's milliseconds until it serves."""
    line: list[Point] = []
    for count in ENTRIES:
        with tempfile.TemporaryDirectory() as name:
            folder = Path(name, "hub")
            asyncio.run(restart.fill(folder, count, 100))
            took = min(asyncio.run(restart.start(folder))[1] for _ in range(restart.TRIES))
            line.append((count, took * 1e3))
    return {"hub": line}


def with_sources() -> Lines:
    """Return the milliseconds until all Sources are followed and have changed once."""
    line = [(count, asyncio.run(fleet.run(count, rest=0)) * 1e3) for count in SOURCES]
    return {"one process that follows all": line}


def with_sets() -> Lines:
    """Return the milliseconds until all sets are published, have changed once, and have ended."""
    line = [(count, asyncio.run(many_sets.run(count)) * 1e3) for count in SOURCES]
    return {"one process that publishes all": line}


#: Title, axes and measurement of each series, by its file name.
SERIES: dict[str, tuple[str, str, str, Callable[[], Lines]]] = {
    "subscribers": (
        "A fragment to WebSocket subscribers",
        "subscribers",
        "ms of CPU of the hub",
        with_subscribers,
    ),
    "latency": (
        "From record to visible",
        "changes a second",
        "ms",
        latency_with_rate,
    ),
    "polling": (
        "Push and polling: Source, hub and a Destination",
        "changes a second",
        "ms of CPU a second",
        cost_with_rate,
    ),
    "resources": (
        "Recording a change",
        "resources of the set",
        "µs of CPU of the Source",
        with_resources,
    ),
    "rate": ("Changes a second", "changes a second", "ms of CPU of the hub a second", with_rate),
    "sources": ("Sources in one process", "Sources", "ms of CPU of the Destination", with_sources),
    "sets": ("Sets in one process", "sets", "ms of CPU of the Source", with_sets),
    "entries": (
        "Start of a hub",
        "entries of the log",
        "ms of CPU until it serves",
        with_entries,
    ),
}


def main() -> None:
    """Measure, print and plot."""
    PLOTS.mkdir(exist_ok=True)
    for name, (title, x, y, measure) in SERIES.items():
        print(f"# {title}: {y}, by {x}", flush=True)
        lines = measure()
        for line_name, line in lines.items():
            points = "".join(f"{at:>12,} {value:<9.3g}" for at, value in line)
            print(f"{line_name:32}{points}", flush=True)
        (PLOTS / f"{name}.svg").write_text(plot(title, x, y, lines))


if __name__ == "__main__":
    main()
