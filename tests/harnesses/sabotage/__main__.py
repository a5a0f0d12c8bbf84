"""Plants each bug in a copy of the project, and reports which test finds it."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import ExitStack
from queue import SimpleQueue

from msgspec.structs import replace

from tests.harnesses.sabotage.bugs import Bug, bugs
from tests.harnesses.sabotage.planting import Verdict, confirm, copied_project, examine


def main() -> int:
    parser = argparse.ArgumentParser("make sabotage", description=__doc__)
    parser.add_argument("words", nargs="*", help="only bugs whose name or file has one of these")
    parser.add_argument("--jobs", type=int, default=2, help="how many at once")
    parser.add_argument("--errors", action="store_true", help="also print the failed assertions")
    parser.add_argument("--tests", nargs="+", help="run these instead of those of the entries")
    options = parser.parse_args()
    words = options.words or [""]
    chosen = [bug for bug in bugs() if any(word in bug.name + bug.file for word in words)]
    if options.tests:
        chosen = [replace(bug, tests=options.tests) for bug in chosen]
    verdicts = _examine_all([bug for bug in chosen if bug.tests], options.jobs)
    print(f"{'found by':60} seconds  bug")
    for verdict in verdicts:
        failure = verdict.failure
        found = failure.test if failure and not verdict.problem else "NOT FOUND"
        print(f"{found:60} {verdict.seconds:7.0f}  {verdict.bug.name}")
        if verdict.problem or options.errors:
            print(f"    {verdict.problem or (failure and failure.error)}")
    left = [bug for bug in chosen if not bug.tests]
    for bug in left:
        print(f"{bug.left_to:60} {'':7}  {bug.name}")
    missed = sum(bool(verdict.problem) for verdict in verdicts)
    print(f"{len(verdicts) - missed} found, {missed} not found, {len(left)} left to others")
    return 1 if missed else 0


def _examine_all(chosen: Iterable[Bug], jobs: int) -> list[Verdict]:
    """Return the verdicts in the order of the bugs; report each on standard error at once."""
    with ExitStack() as stack, ThreadPoolExecutor(jobs) as pool:
        projects = [stack.enter_context(copied_project()) for _ in range(jobs)]
        free: SimpleQueue = SimpleQueue()
        for project in projects:
            free.put(project)

        def work(bug: Bug) -> Verdict:
            project = free.get()
            try:
                return examine(bug, project)
            finally:
                free.put(project)

        waiting = [pool.submit(work, bug) for bug in chosen]
        for done in as_completed(waiting):
            verdict = done.result()
            outcome = f"{verdict.seconds:5.0f} s: {verdict.problem or 'found'} - {verdict.bug.name}"
            print(outcome, file=sys.stderr, flush=True)
        verdicts = [done.result() for done in waiting]
        confirm(verdicts, projects[0])
    return verdicts


if __name__ == "__main__":
    sys.exit(main())
