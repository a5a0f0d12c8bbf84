"""Prints how much memory each surface takes for long input: its name, and KiB.

Each input is read in a process of its own, since a process seldom returns memory.
"""

from __future__ import annotations

import logging
import os
import sys

from tests.harnesses.fuzzing.surfaces import SURFACES

#: The bytes of each input.
_SIZE = 50_000
#: The most KiB that an input may take, which is 600 times its size.
MOST = 600 * _SIZE // 1024


def _peak() -> int:
    with open("/proc/self/status") as status:
        return next(int(line.split()[1]) for line in status if line.startswith("VmHWM"))


def main() -> None:
    logging.disable()
    for name, surface in SURFACES.items():
        reading, writing = os.pipe()
        if os.fork() == 0:
            before = _peak()
            for shape in (*surface.shapes[::4], *surface.long_values):
                surface.attempt(shape.of(_SIZE))
            os.write(writing, str(_peak() - before).encode())
            os._exit(0)
        os.wait()
        print(name, os.read(reading, 100).decode())
        os.close(reading)
        os.close(writing)
    sys.stdout.flush()


if __name__ == "__main__":
    main()
