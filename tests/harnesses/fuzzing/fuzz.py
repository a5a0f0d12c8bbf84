"""Fuzzes one surface with atheris, guided by coverage: `make fuzz SURFACE=form SECONDS=120`.

Without SURFACE, each surface is fuzzed in turn. The program is instrumented once; each surface runs
in a forked process, within limits for memory and for the time of one input. What it learns stays in
a folder that git ignores; what ends it is written to `tests/harnesses/fuzzing/found/<surface>/`,
where the test suite reads it from then on.
"""

from __future__ import annotations

import argparse
import logging
import os
import re
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:  # not before it can be instrumented
    from tests.harnesses.fuzzing.surface import Surface

ROOT = Path(__file__).parents[3]
FOUND = Path(__file__).parent / "found"
CORPUS = ROOT / ".fuzzing"
#: The limits of one input: seconds of processor time, and of any time where it does not end.
_SECONDS = 1.0
_MOST_SECONDS = 30
_MEGABYTES = 1024
_PACKAGES = [
    "rsnotify", "rsnotify_hub", "rsnotify_publisher", "rsnotify_subscriber", "rsnotify_gateway",
    "feedparser", "jsonpatch", "jsonpointer", "zipfile",
]  # fmt: skip


def _fuzz(surface: Surface, arguments: list[str], log: Path) -> None:
    import atheris

    with log.open("wb") as file:
        os.dup2(file.fileno(), 1)
        os.dup2(file.fileno(), 2)

    def attempt(data: bytes) -> None:
        begun = time.thread_time()
        surface.attempt(bytes(data))
        taken = time.thread_time() - begun
        assert taken < _SECONDS, f"{len(data)} bytes take {taken:.1f} seconds"

    atheris.Setup([sys.argv[0], *arguments], attempt)
    atheris.Fuzz()


def _run(name: str, surface: Surface, seconds: int) -> bool:
    corpus, found = CORPUS / name, FOUND / name
    found.mkdir(parents=True, exist_ok=True)
    arguments = [
        str(corpus),
        f"-dict={CORPUS / name}.dict",
        f"-max_total_time={seconds}",
        f"-timeout={_MOST_SECONDS}",
        f"-rss_limit_mb={_MEGABYTES}",
        f"-artifact_prefix={found}/",
        "-max_len=8192",
        "-print_final_stats=1",
    ]
    log = CORPUS / f"{name}.log"
    sys.stdout.flush()
    child = os.fork()
    if child == 0:
        _fuzz(surface, arguments, log)
        os._exit(0)
    code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    text = log.read_text(errors="replace")
    coverage = re.findall(r"cov: (\d+) ft: (\d+)", text) or [("0", "0")]
    runs = re.findall(r"number_of_executed_units: (\d+)", text) or ["?"]
    first, last = coverage[0], coverage[-1]
    outcome = "nothing found" if code == 0 else f"FOUND something, see {log}"
    print(
        f"{name}: {runs[-1]} inputs, coverage {first[0]} to {last[0]}, "
        f"features {first[1]} to {last[1]}, {outcome}",
        flush=True,
    )
    if not any(found.iterdir()):
        found.rmdir()
    return code == 0


def _seed(surfaces: dict[str, Surface]) -> None:
    for name, surface in surfaces.items():
        folder = CORPUS / name
        folder.mkdir(parents=True, exist_ok=True)
        for number, seed in enumerate(surface.seeds):
            (folder / f"seed-{number}").write_bytes(seed)
        words = sorted({*re.findall(r"[\w.:/#-]{2,40}", repr(surface.seeds))})
        (CORPUS / f"{name}.dict").write_text("".join(f'"{word}"\n' for word in words))


def main() -> None:
    import atheris

    parser = argparse.ArgumentParser()
    parser.add_argument("--surface", default="")
    parser.add_argument("--seconds", type=int, default=120)
    options = parser.parse_args()
    os.nice(10)
    with atheris.instrument_imports(include=_PACKAGES):
        from tests.harnesses.fuzzing.surfaces import SURFACES
    logging.disable()
    wanted = options.surface.split() or [*SURFACES]
    if unknown := {*wanted} - {*SURFACES}:
        names = ", ".join(SURFACES)
        parser.error(f"there is no surface {', '.join(unknown)}; there are {names}")
    _seed(SURFACES)
    results = [_run(name, SURFACES[name], options.seconds) for name in wanted]
    sys.exit(not all(results))


if __name__ == "__main__":
    main()
