"""Fuzzes one surface with atheris, guided by coverage: `make fuzz SURFACE=form SECONDS=120`.

Without SURFACE, each surface is fuzzed in turn. Each runs in a process of its own, within limits
for memory and for the time of one input. What it learns stays in a folder that git ignores; what
ends it is written to `tests/fuzzing/found/<surface>/`, where the test suite reads it from then on.
"""

from __future__ import annotations

import argparse
import logging
import os
import re
import subprocess
import sys
import time
from pathlib import Path

ROOT = Path(__file__).parents[2]
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


def _fuzz(name: str, arguments: list[str]) -> None:
    import atheris

    with atheris.instrument_imports(include=_PACKAGES):
        from tests.fuzzing.surfaces import SURFACES
    surface = SURFACES[name]
    logging.disable()

    def attempt(data: bytes) -> None:
        begun = time.thread_time()
        surface.attempt(bytes(data))
        taken = time.thread_time() - begun
        assert taken < _SECONDS, f"{len(data)} bytes take {taken:.1f} seconds"

    atheris.Setup([sys.argv[0], *arguments], attempt)
    atheris.Fuzz()


def _run(name: str, seconds: int) -> bool:
    """Fuzz a surface in another process; return whether nothing was found."""
    corpus, found = CORPUS / name, FOUND / name
    corpus.mkdir(parents=True, exist_ok=True)
    found.mkdir(parents=True, exist_ok=True)
    command = [sys.executable, "-m", "tests.fuzzing.fuzz", "--inside", name, str(corpus)]
    command += [
        f"-dict={CORPUS / name}.dict",
        f"-max_total_time={seconds}",
        f"-timeout={_MOST_SECONDS}",
        f"-rss_limit_mb={_MEGABYTES}",
        f"-artifact_prefix={found}/",
        "-max_len=8192",
        "-print_final_stats=1",
    ]
    log = CORPUS / f"{name}.log"
    with log.open("w") as file:
        code = subprocess.run(command, cwd=ROOT, stdout=file, stderr=file).returncode
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


def _seed() -> list[str]:
    """Write the seeds of each surface and their words; return the names of all surfaces."""
    from tests.fuzzing.surfaces import SURFACES

    for name, surface in SURFACES.items():
        folder = CORPUS / name
        folder.mkdir(parents=True, exist_ok=True)
        for number, seed in enumerate(surface.seeds):
            (folder / f"seed-{number}").write_bytes(seed)
        words = sorted({*re.findall(r"[\w.:/#-]{2,40}", repr(surface.seeds))})
        (CORPUS / f"{name}.dict").write_text("".join(f'"{word}"\n' for word in words))
    return list(SURFACES)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--surface", default="")
    parser.add_argument("--seconds", type=int, default=120)
    parser.add_argument("--inside", nargs=argparse.REMAINDER)
    options = parser.parse_args()
    if options.inside:
        _fuzz(options.inside[0], options.inside[1:])
        return
    os.nice(10)
    names = _seed()
    wanted = options.surface.split() or names
    if unknown := {*wanted} - {*names}:
        parser.error(f"there is no surface {', '.join(unknown)}; there are {', '.join(names)}")
    results = [_run(name, options.seconds) for name in wanted]
    sys.exit(not all(results))


if __name__ == "__main__":
    main()
