"""A Source that records changes in several threads, and prints each once it is durable.

python -m tests.harnesses.power_cuts.recording_source FOLDER HUB
"""

from __future__ import annotations

import hashlib
import os
import sys
import threading
from pathlib import Path

from rsnotify.format.model import ChangeType, Resource
from rsnotify_publisher import Options, Publisher

BASE = "http://source.example/data/"
OPTIONS = Options(
    rotate="12 changes",
    refresh=0.01,
    heartbeat=0.05,
    resource_list_every=0.1,
    resource_list_archive=True,
    change_dump=True,
    linger=0,
    max_entries=20,
)
THREADS = 3
CHANGES = 12
#: What there is before the first change.
LOADED = ("one", "two")


def content(name: str) -> bytes:
    return f"the content of {name} ".encode() * (200 if name.endswith("7") else 3)


def stored(uri: str) -> bytes:
    return content(uri.removeprefix(BASE))


def hash_of(name: str) -> str:
    return "sha-256:" + hashlib.sha256(content(name)).hexdigest()


def say(word: str, *changes: Resource) -> None:
    """Print changes by one call of the system."""
    lines = [
        f"{word} {one.uri} {one.hash} {one.datetime and one.datetime.isoformat()}\n"
        for one in changes
    ]
    os.write(1, "".join(lines).encode())


def record(publisher: Publisher, run: str, thread: int) -> None:
    for number in range(CHANGES):
        names = [f"{run}-{thread}-{number}"]
        if number % 4 == 1:
            names += [f"{names[0]}-{more}" for more in range(3)]
        kind = ChangeType.DELETED if number % 5 == 4 else ChangeType.UPDATED
        changes = [
            Resource(BASE + name, change=kind, hash=None if kind == "deleted" else hash_of(name))
            for name in names
        ]
        say("recording", *changes)
        say("recorded", *publisher.record(changes))


def main() -> None:
    folder, hub = sys.argv[1:]
    for run in "ab":
        publisher = Publisher(Path(folder), BASE, hubs=[hub], options=OPTIONS, content=stored)
        if publisher.is_empty():
            publisher.load(Resource(BASE + name, hash=hash_of(name)) for name in LOADED)
            os.write(1, b"loaded\n")
        with publisher:
            publisher.wait_published()
            threads = [
                threading.Thread(target=record, args=(publisher, run, number))
                for number in range(THREADS)
            ]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()


if __name__ == "__main__":
    main()
