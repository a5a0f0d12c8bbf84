"""A Destination in which doubles would show: it has a line for each effect, committed with T.

    python tests/end_to_end/counting.py SOURCE-URL FOLDER [--via VIA] [--poll SECONDS]

It mirrors into the folder as `rsnotify follow` does. By which ways it hears of changes it prints
as JSON, each time that this changes; how late it was it writes beside its state.
"""

from __future__ import annotations

import argparse
import asyncio
import sqlite3
import sys
import time
from collections import defaultdict
from collections.abc import Callable, Sequence
from pathlib import Path
from statistics import quantiles

import msgspec

from rsnotify.format.coverage import Change
from rsnotify.format.datetimes import to_microseconds
from rsnotify.runtime.command_line import run
from rsnotify.sync.pace import Pace
from rsnotify_subscriber import (
    Event,
    FolderMirror,
    FollowOptions,
    PushDown,
    PushUp,
    Received,
    Subscriber,
    Via,
    default_state,
)
from rsnotify_subscriber.commands.follow_options import CallbackServer
from tests.ports import free_port
from tests.prosody import login_in_environment

_EFFECTS = "CREATE TABLE IF NOT EXISTS effects (uri, at, change, hash)"
_DOUBLES = """
SELECT uri, at, change, count(*) FROM effects GROUP BY uri, at, change HAVING count(*) > 1
"""
#: What is called a way while there is none.
POLL = "poll"
#: And what it is of a change that came while this was away itself.
AWAY = "away"


class Counting:
    """A mirror, and a line for each effect in the database of the state."""

    def __init__(self, folder: Path) -> None:
        self._mirror = FolderMirror(folder)

    def prepare(self, base: str, temporary: Path) -> None:
        self._mirror.prepare(base, temporary)

    def held_content(self, uri: str) -> Path | None:
        return self._mirror.held_content(uri)

    def apply_within(self, connection: sqlite3.Connection, changes: Sequence[Received]) -> None:
        self._mirror.apply(changes)
        connection.execute(_EFFECTS)
        connection.executemany(
            "INSERT INTO effects VALUES (?, ?, ?, ?)",
            [(one.uri, to_microseconds(one.at), one.change, one.hash) for one in changes],
        )


class Diary:
    """Writes by which ways changes are heard of, and how late they were."""

    def __init__(self, lags: Path) -> None:
        self._lags = lags.open("a", buffering=1)
        self._up: list[Via] = []
        self._began = _now()

    def heard(self, event: Event) -> None:
        if isinstance(event, PushUp | PushDown) and event.topic.endswith("/channel.xml"):
            up = set(self._up) - {event.transport}
            if isinstance(event, PushUp):
                up.add(event.transport)
            self._up = [way for way in Via if way in up]
            print(msgspec.json.encode({"hears_by": self._up or [POLL]}).decode(), flush=True)

    def committed(self, changes: Sequence[Change]) -> None:
        told = [one for one in changes if one.resource.change is not None]
        self._lags.write("".join(self._line(to_microseconds(one.at)) for one in told))

    def _line(self, at: int) -> str:
        way = self._up[0] if self._up else POLL
        return f"{AWAY if at < self._began else way} {_now() - at}\n"


def _now() -> int:
    return time.time_ns() // 1000


async def follow(
    arguments: argparse.Namespace, server: CallbackServer, stop: asyncio.Event
) -> None:
    state = default_state(arguments.folder)
    diary = Diary(lags_of(arguments.folder))
    subscriber = Subscriber(
        arguments.url,
        Counting(arguments.folder),
        state=state,
        options=FollowOptions(
            via=Via(arguments.via),
            pace=Pace(poll=arguments.poll),
            hubs=arguments.hubs,
            callbacks=server.callbacks,
            allow_private_addresses=True,
            logins={"xmpp": login_in_environment()},
        ),
        on_committed=diary.committed,
        on_event=diary.heard,
    )
    async with server.serving(), subscriber:
        await stop.wait()


# What it leaves behind


def lags_of(folder: Path) -> Path:
    return folder.with_name(folder.name + ".lags")


def doubles(folder: Path) -> list[tuple[str, int, str, int]]:
    with sqlite3.connect(default_state(folder) / "state.sqlite") as database:
        found = database.execute(_DOUBLES).fetchall()
    database.close()
    return found


def lateness(folder: Path) -> dict[str, list[float]]:
    found = defaultdict(list)
    for line in lags_of(folder).read_text().splitlines():
        way, _, lag = line.partition(" ")
        found[way].append(int(lag) / 1000)
    return found


def table(folder: Path) -> str:
    lines = [f"{'heard of by':12}{'changes':>9}{'median ms':>11}{'p99 ms':>9}"]
    for way, lags in lateness(folder).items():
        cuts = quantiles(lags, n=100) if len(lags) > 1 else lags * 99
        lines.append(f"{way:12}{len(lags):>9}{cuts[49]:>11.1f}{cuts[98]:>9.0f}")
    return "\n".join(lines)


def counting(*options: str) -> Callable[[str, Path], list[str]]:
    """Return how to run it."""
    callback = ("--callback-url", f"http://127.0.0.1:{free_port()}/")
    return lambda url, folder: [sys.executable, __file__, url, str(folder), *callback, *options]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("url")
    parser.add_argument("folder", type=Path)
    parser.add_argument("--via", default="auto")
    parser.add_argument("--poll", type=float, default=10)
    parser.add_argument("--hubs", type=int, default=1)
    parser.add_argument("--callback-url")
    arguments = parser.parse_args()
    with CallbackServer(arguments.callback_url, "127.0.0.1", None) as server:
        run(lambda stop: follow(arguments, server, stop))


if __name__ == "__main__":
    main()
