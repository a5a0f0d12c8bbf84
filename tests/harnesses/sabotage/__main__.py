"""Plants each bug in a copy of the project, and reports which test finds it.

The tests are run without any bug first; if one of them fails, nothing is planted. A run that was
interrupted is continued with the same `--report`: what was found is not examined again, unless the
entry, its module or its tests have changed since.
"""

from __future__ import annotations

import argparse
import signal
import sys
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import ExitStack
from itertools import groupby
from pathlib import Path
from queue import SimpleQueue

from msgspec import json
from msgspec.structs import replace

from tests.harnesses.sabotage.bugs import Bug, bugs
from tests.harnesses.sabotage.planting import Verdict, copied_project, examine, failing_without_bug


def main() -> int:
    parser = argparse.ArgumentParser(
        "make sabotage",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("words", nargs="*", help="only bugs whose name or file has one of these")
    parser.add_argument("--jobs", type=int, default=2, help="how many at once")
    parser.add_argument("--report", type=Path, help="JSON lines, one for each bug")
    parser.add_argument("--errors", action="store_true", help="also print the failed assertions")
    parser.add_argument("--tests", nargs="+", help="run these instead of those of the entries")
    options = parser.parse_args()
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    words = options.words or [""]
    chosen = [bug for bug in bugs() if any(word in bug.name + bug.file for word in words)]
    if options.tests:
        chosen = [replace(bug, tests=options.tests) for bug in chosen]
    planted = [bug for bug in chosen if bug.tests]
    verdicts = found_before(planted, options.report)
    if verdicts:
        print(f"{len(verdicts)} were found before, says {options.report}", file=sys.stderr)
    try:
        for verdict in _examine([bug for bug in planted if bug.name not in verdicts], options.jobs):
            verdicts[verdict.bug] = verdict
            outcome = f"{verdict.seconds:5.0f} s: {verdict.problem or 'found'} - {verdict.bug}"
            print(f"{len(verdicts)} of {len(planted)}, {outcome}", file=sys.stderr, flush=True)
            if options.report:
                with options.report.open("ab") as file:
                    file.write(json.encode(verdict) + b"\n")
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
    _print_report(list(verdicts.values()), options.errors)
    for bug in chosen:
        if bug.left_to:
            print(f"Left to {bug.left_to}: {bug.name}")
    missed = sum(bool(verdict.problem) for verdict in verdicts.values())
    unknown = len(planted) - len(verdicts)
    print(f"{len(verdicts) - missed} found, {missed} not found, {unknown} not examined")
    return 1 if missed or unknown else 0


def found_before(chosen: Sequence[Bug], report: Path | None) -> dict[str, Verdict]:
    """Return what an earlier run has found of these bugs, as they are now."""
    if report is None or not report.exists():
        return {}
    versions = {bug.name: bug.version() for bug in chosen}
    noted = json.Decoder(Verdict).decode_lines(report.read_bytes())
    last = {verdict.bug: verdict for verdict in noted}
    return {
        name: verdict
        for name, verdict in last.items()
        if not verdict.problem and verdict.version == versions.get(name)
    }


def _examine(chosen: Sequence[Bug], jobs: int) -> Iterator[Verdict]:
    """Yield the verdict of each bug as soon as it is known.

    Raises:
        SystemExit: A test fails without any bug.
    """
    tests = sorted({test for bug in chosen for test in bug.tests})
    with ExitStack() as stack:
        projects = [stack.enter_context(copied_project()) for _ in range(jobs)]
        pool = stack.enter_context(ThreadPoolExecutor(jobs))
        # Otherwise an interruption would wait until all bugs have been examined.
        stack.callback(pool.shutdown, cancel_futures=True)
        shares = [tests[number::jobs] for number in range(jobs)]
        failing = [one for part in pool.map(failing_without_bug, shares, projects) for one in part]
        if failing:
            sys.exit("These tests fail without any planted bug:\n" + "\n".join(failing))
        free: SimpleQueue[Path] = SimpleQueue()
        for project in projects:
            free.put(project)

        def work(bug: Bug) -> Verdict:
            project = free.get()
            try:
                return examine(bug, project)
            finally:
                free.put(project)

        for done in as_completed([pool.submit(work, bug) for bug in chosen]):
            yield done.result()


def _print_report(verdicts: list[Verdict], errors: bool) -> None:
    verdicts.sort(key=lambda verdict: verdict.file)
    for file, group in groupby(verdicts, key=lambda verdict: verdict.file):
        of_file = list(group)
        found = sum(not verdict.problem for verdict in of_file)
        seconds = sum(verdict.seconds for verdict in of_file)
        print(f"{file}: {found} of {len(of_file)} found in {seconds:.0f} s")
        for verdict in of_file:
            found_by = "NOT FOUND" if verdict.problem else verdict.found_by
            print(f"  {verdict.seconds:4.0f} s  {verdict.bug}\n          {found_by}")
            if verdict.problem or errors:
                print(f"          {verdict.problem or verdict.error}")


if __name__ == "__main__":
    sys.exit(main())
