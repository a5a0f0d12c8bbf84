"""Plants one small bug after the other, and reports which of them no test finds: `make mutants`.

mutmut keeps all mutants of a module in one file, and one of them is active. The tests are imported
once; a process is forked for each mutant. It runs the tests that reach the mutated function, those
that reach few functions first, and ends at the first failure. Mutants that `make check` refuses
count as killed; those killed before are run again once their function has changed.
"""

from __future__ import annotations

import argparse
import functools
import gc
import json
import os
import re
import resource
import signal
import sys
import time
from collections import Counter, defaultdict
from collections.abc import Sequence
from fnmatch import fnmatch
from itertools import product
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[2]
WORK = ROOT / "build/mutants"
#: What each test reaches, as of its last version.
TRACE = WORK / "trace.json"
#: What mutmut notes of a mutant.
KILLED, SURVIVED, NO_TESTS, TIMEOUT, REFUSED = 1, 0, 33, 36, 37
#: Bytes that a mutant may use.
MEMORY = 4 << 30

#: mutmut leaves decorated functions alone: a property becomes one that calls a method.
_PROPERTY = re.compile(r"^( *)@property\n *def (\w+)\(self\) -> (.+):\n", re.MULTILINE)
_CALLING = (
    r"\1@property\n\1def \2(self) -> \3:\n\1    return self.get_\2()\n\n\1def get_\2(self) -> \3:\n"
)


def prepare() -> None:
    """Copy the package, and what the tests need beside it, where that has changed."""
    for source in ROOT.glob("rsnotify/**/*.py"):
        target = WORK / source.relative_to(ROOT)
        text = _PROPERTY.sub(_CALLING, source.read_text())
        if not target.exists() or target.read_text() != text:
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_text(text)
    for name in ("pyproject.toml", "tests", "docs"):
        if not (WORK / name).exists():
            (WORK / name).symlink_to(ROOT / name)


def generate() -> dict[str, Any]:
    """Write the mutants of the modules that have changed; return what is noted of all, by file."""
    from mutmut import __main__ as mutmut
    from mutmut.mutation.data import SourceFileMutationData
    from mutmut.mutation.file_mutation import filter_mutants_with_type_checker

    Path("mutants").mkdir(exist_ok=True)
    mutmut.copy_src_dir()
    mutmut.copy_also_copy_files()
    mutmut.setup_source_paths()
    changed = mutmut.create_mutants(1).mutated
    noted = {}
    for path in mutmut.walk_mutatable_files():
        noted[str(path)] = data = SourceFileMutationData(path=path)
        data.load()
    refused = filter_mutants_with_type_checker() if changed else {}
    for data in noted.values():
        for name, code in data.exit_code_by_key.items():
            if name in refused and code != REFUSED:
                data.exit_code_by_key[name] = REFUSED
        data.save()
    return noted


class Mutants:
    """A plugin of pytest that runs the collected tests for each mutant."""

    def __init__(self, noted: dict[str, Any], chosen: Sequence[str], seconds: float) -> None:
        self._noted = noted
        self._chosen = chosen
        self._seconds = seconds
        self._reached: dict[pytest.Item, set[str]] = {}
        self._taken: dict[pytest.Item, float] = {}
        #: The tests that killed mutants of a function, the latest last.
        self._killers = defaultdict[str, list[pytest.Item]](list)
        #: Those that were run without a mutant in a process of their own.
        self._confirmed: set[pytest.Item] = set()
        self._failed = False

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        self._failed = self._failed or report.failed

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtestloop(self, session: pytest.Session) -> bool:
        from mutmut.mutation import trampoline
        from mutmut.utils.format_utils import mangled_name_from_mutant_name

        # Faster: without the environment, which only other processes need.
        trampoline.get_mutant_under_test = lambda: trampoline._mutant_under_test or ""
        self._trace(session.items)
        for cached in gc.get_objects():
            if isinstance(cached, functools._lru_cache_wrapper):
                cached.cache_clear()  # what it returns may depend on a mutant
        gc.freeze()
        os.chdir(WORK)
        for pattern, path in product(self._chosen, self._noted):
            data = self._noted[path]
            for name, code in data.exit_code_by_key.items():
                if not fnmatch(name, pattern) or code in (KILLED, TIMEOUT, REFUSED):
                    continue
                begun = time.monotonic()
                function = mangled_name_from_mutant_name(name)
                reaching = [item for item in session.items if function in self._reached[item]]
                code = self._run(name, reaching, self._killers[function], self._seconds)
                data.exit_code_by_key[name] = code
                data.durations_by_key[name] = time.monotonic() - begun
                data.save()
                _report(name, code, data.durations_by_key[name], path)
        return True

    def _trace(self, items: list[pytest.Item]) -> None:
        """Note which functions each test reaches, and how long it takes.

        Tests are run for that if they, or the program, have changed since they were last.
        """
        from mutmut.mutation.trampoline import set_mutant_under_test
        from mutmut.state import state

        is_new = not TRACE.exists() or any(
            path.stat().st_mtime > TRACE.stat().st_mtime for path in WORK.glob("rsnotify/**/*.py")
        )
        known = {} if is_new else json.loads(TRACE.read_text())
        set_mutant_under_test("stats")
        for item, following in zip(items, [*items[1:], None], strict=True):
            version = item.path.stat().st_mtime
            if item.nodeid not in known or known[item.nodeid][0] != version:
                begun = time.process_time()
                item.config.hook.pytest_runtest_protocol(item=item, nextitem=following)
                taken = time.process_time() - begun
                known[item.nodeid] = [version, taken, sorted(state()._stats)]
                state()._stats.clear()
            if self._failed:
                pytest.exit(f"{item.nodeid} fails without any mutant", 1)
            _, self._taken[item], functions = known[item.nodeid]
            self._reached[item] = set(functions)
        TRACE.write_text(json.dumps(known))
        set_mutant_under_test("")

    def _run(
        self, name: str, reaching: list[pytest.Item], killers: list[pytest.Item], seconds: float
    ) -> int:
        """Return what comes of a mutant in a process of its own."""
        if not reaching:
            return NO_TESTS
        reaching.sort(key=lambda item: (
            -killers.index(item) - 1 if item in killers else 0,
            len(self._reached[item]),
            self._taken[item],
        ))  # fmt: skip
        read, write = os.pipe()
        child = os.fork()
        if child == 0:
            os.close(read)
            self._run_inside(name, reaching, seconds, write)
        os.close(write)
        with os.fdopen(read) as file:
            begun = file.read()
        status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        if status == SURVIVED:
            return SURVIVED
        killer = reaching[int(begun.split()[-1])]
        if name and killer not in self._confirmed:
            self._confirmed.add(killer)
            if self._run("", [killer], [], seconds) != SURVIVED:
                pytest.exit(f"{killer.nodeid} fails without any mutant", 1)
        if killer in killers:
            killers.remove(killer)
        killers.append(killer)
        return TIMEOUT if -status in (signal.SIGPROF, signal.SIGALRM) else KILLED

    def _run_inside(self, name: str, items: list[pytest.Item], seconds: float, pipe: int) -> None:
        from mutmut.mutation.trampoline import set_mutant_under_test

        os.chdir(WORK / "mutants")
        silent = os.open(os.devnull, os.O_RDWR)
        os.dup2(silent, 1)
        os.dup2(silent, 2)
        resource.setrlimit(resource.RLIMIT_DATA, (MEMORY, MEMORY))
        set_mutant_under_test(name)
        end = time.process_time() + seconds
        for number, item in enumerate(items):
            # Either signal ends the process.
            signal.setitimer(signal.ITIMER_PROF, 1 + 10 * self._taken[item])
            signal.setitimer(signal.ITIMER_REAL, 60 + 10 * self._taken[item])
            os.write(pipe, b"%d " % number)
            item.config.hook.pytest_runtest_protocol(item=item, nextitem=None)
            if self._failed or time.process_time() > end:
                break
        os._exit(KILLED if self._failed else SURVIVED)


def _report(name: str, code: int, seconds: float, path: str) -> None:
    from mutmut.mutation.diff_apply import get_diff_for_mutant

    outcome = {KILLED: "killed", TIMEOUT: "too slow", NO_TESTS: "no tests"}.get(code, "SURVIVED")
    print(f"{outcome} {seconds:.1f} s {name}", flush=True)
    if code in (SURVIVED, NO_TESTS):
        print(get_diff_for_mutant(name, path=Path(path)), flush=True)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("modules", nargs="*", help="such as sync/pull; all of them without one")
    parser.add_argument("--seconds", type=float, default=5, help="processor time of one mutant")
    options = parser.parse_args()
    chosen = [f"rsnotify.{module.replace('/', '.')}.*" for module in options.modules] or ["*"]
    # With few examples, so that a survivor does not take minutes.
    os.environ.setdefault("RSNOTIFY_EXAMPLES", "0.1")
    os.environ["PATH"] = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    prepare()
    os.chdir(WORK)
    noted = generate()
    from mutmut.configuration import config

    os.chdir("mutants")
    arguments = [*config().pytest_add_cli_args_test_selection, *config().pytest_add_cli_args]
    plugin = Mutants(noted, chosen, options.seconds)
    if code := pytest.main(["--rootdir=.", "-q", "-s", *arguments], plugins=[plugin]):
        sys.exit(code)
    for path, data in sorted(noted.items()):
        codes = Counter(data.exit_code_by_key.values())
        killed = codes[KILLED] + codes[TIMEOUT]
        ran = killed + codes[SURVIVED] + codes[NO_TESTS]
        if ran:
            print(f"{path}: {killed} of {ran} killed; {codes[REFUSED]} refused")


if __name__ == "__main__":
    main()
