"""Plants one small bug after the other, and reports which of them no test finds: `make mutants`.

mutmut keeps all mutants of a module in one file, and one of them is active. The tests are imported
once; a process is forked for each mutant. It runs the tests that reach the mutated function, the
fastest first, and ends at the first failure. Mutants that `make check` refuses count as killed;
those killed before are run again once their function has changed.

A survivor is printed as an entry for `equivalent_mutants.toml`, which lists those that cannot
change what the program does.
"""

from __future__ import annotations

import argparse
import dataclasses
import functools
import gc
import json
import os
import re
import resource
import signal
import sys
import time
import tomllib
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from fnmatch import fnmatch
from itertools import product
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[2]
EQUIVALENT_MUTANTS = Path(__file__).with_name("equivalent_mutants.toml")
#: What each test reaches, as of its last version.
TRACE = Path("trace.json")
#: What mutmut notes of a mutant.
KILLED, SURVIVED, NO_TESTS, TIMEOUT, REFUSED, EQUIVALENT = 1, 0, 33, 36, 37, 38
#: Bytes that a mutant may use.
MEMORY = 4 << 30

#: mutmut leaves decorated functions alone: a property becomes one that calls a method.
_PROPERTY = re.compile(r"^( *)@property\n *def (\w+)\(self\) -> (.+):\n", re.MULTILINE)
_CALLING = (
    r"\1@property\n\1def \2(self) -> \3:\n\1    return self.get_\2()\n\n\1def get_\2(self) -> \3:\n"
)
#: SQL is the same in other letters, except for what it quotes.
_SQL = re.compile(
    r"\b(SELECT|INSERT|UPDATE|DELETE|ALTER|DROP|FROM|PRAGMA|BEGIN|COMMIT|ROLLBACK|WHERE|ORDER BY"
    r"|VALUES|CONFLICT)\b|[=<>] \?"
)
_QUOTED = re.compile("'[^']*'")
#: Arguments that only describe something, or that only check what is so, by function.
_DESCRIBING = {
    "Thread": "name",
    "ThreadPoolExecutor": "thread_name_prefix",
    "create_task": "name",
    "zip": "strict",
}


@dataclasses.dataclass(frozen=True)
class Area:
    """Modules of one package, and the tests that should find what is wrong with them."""

    name: str
    package: str  # relative to the project
    modules: list[str]
    tests: list[str]

    @property
    def work(self) -> Path:
        return ROOT / "build/mutants" / self.name


AREAS = [
    Area(
        "core",
        "rsnotify",
        ["sync/*", "format/*"],
        [
            "tests/core",
            "--ignore=tests/core/test_bounded.py",  # large
            "--ignore=tests/core/test_errors.py",  # of all packages
            "--ignore=tests/core/test_linear_time.py",  # large
            "--ignore=tests/core/validation",
        ],
    ),
    Area(
        "log",
        "hub/rsnotify_hub",
        ["store/sqlite_store.py", "store/group_commit.py", "topic_log.py"],
        [
            "tests/hub/test_deliveries_restarted.py",
            "tests/hub/test_disk_full.py",
            "tests/hub/test_early_delivery.py",
            "tests/hub/test_failing_store.py",
            "tests/hub/test_group_commit.py",
            "tests/hub/test_kinds_of_notifications.py",
            "tests/hub/test_lost_fragments.py",
            "tests/hub/test_restored_source.py",
            "tests/hub/test_store.py",
            "tests/hub/test_store_conformance.py",
            "tests/hub/test_topic_quota.py",
            "tests/hub/test_whole_contents.py",
            "tests/hub/transfer/test_stores.py",
            *("-k", "not nats"),
        ],
    ),
    Area(
        "deliveries",
        "hub/rsnotify_hub",
        [
            "websub/request_scheduler.py",
            "websub/intent_requests.py",
            "websub/sender.py",
            "websub/websub_channel.py",
            "websub/callback_subscriber.py",
        ],
        [
            "tests/hub/test_deliveries.py",
            "tests/hub/test_deliveries_managed.py",
            "tests/hub/test_deliveries_restarted.py",
            "tests/hub/test_request_scheduler.py",
            "tests/hub/test_early_delivery.py",
            "tests/hub/test_fair_queue.py",
            "tests/hub/test_failing_store.py",
            "tests/hub/test_moving_subscriptions.py",
            "tests/hub/test_subscriptions.py",
            "tests/hub/test_verification.py",
            "tests/hub/test_websub.py",
            "tests/hub/admin/test_reports.py",
        ],
    ),
    Area(
        "journal",
        "publisher/rsnotify_publisher",
        ["journal/*"],
        [
            "tests/publisher/test_archives.py",
            "tests/publisher/test_change_stream.py",
            "tests/publisher/test_digests.py",
            "tests/publisher/test_documents.py",
            "tests/publisher/test_fragments.py",
            "tests/publisher/test_journal.py",
            "tests/publisher/test_many_sets.py",
            "tests/publisher/test_metrics.py",
            "tests/publisher/test_recording.py",
            "tests/publisher/test_sets.py",
            "tests/publisher/test_times.py",
        ],
    ),
]


def prepare(area: Area) -> None:
    """Copy the package, and what the tests need beside it, where that has changed."""
    work, package = area.work, ROOT / area.package
    for source in package.glob("**/*"):
        if not source.is_file() or source.suffix == ".pyc":
            continue
        target = work / source.relative_to(package.parent)
        content = source.read_bytes()
        if source.suffix == ".py":
            content = _PROPERTY.sub(_CALLING, content.decode()).encode()
        if not target.exists() or target.read_bytes() != content:
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_bytes(content)
    for name in ("pyproject.toml", "tests", "docs"):
        if not (work / name).exists():
            (work / name).symlink_to(ROOT / name)


def generate(area: Area) -> dict[str, Any]:
    """Write the mutants of the modules that have changed; return what is noted of all, by file."""
    from mutmut import __main__ as mutmut
    from mutmut import configuration
    from mutmut.mutation import file_mutation
    from mutmut.mutation.data import SourceFileMutationData

    package = Path(area.package).name
    modules = [f"{package}/{module}" for module in area.modules]
    files = [str(path) for module in modules for path in Path().glob(module)]
    configuration._config = dataclasses.replace(
        configuration.config(),
        source_paths=[Path(package)],
        only_mutate=modules,
        type_check_command=["mypy", *files, *configuration.config().type_check_command],
    )
    _leave_out()
    Path("mutants").mkdir(exist_ok=True)
    mutmut.copy_src_dir()
    mutmut.copy_also_copy_files()
    mutmut.setup_source_paths()
    changed = mutmut.create_mutants(1).mutated
    noted = {}
    for path in mutmut.walk_mutatable_files():
        noted[str(path)] = data = SourceFileMutationData(path=path)
        data.load()
    try:
        refused = file_mutation.filter_mutants_with_type_checker() if changed else {}
    except BaseException:
        for path in noted:
            Path("mutants", path).unlink()  # to be checked the next time
        raise
    for data in noted.values():
        for name, code in data.exit_code_by_key.items():
            if name in refused and code != REFUSED:
                data.exit_code_by_key[name] = REFUSED
        data.save()
    return noted


def _leave_out() -> None:
    """Make no mutants of calls that log, of SQL by other letters, and of `_DESCRIBING`."""
    import libcst
    from libcst import matchers as m
    from mutmut.mutation import file_mutation, mutators

    def is_describing(call: libcst.Call, argument: libcst.Arg) -> bool:
        function = getattr(call.func, "attr", call.func)
        name = _DESCRIBING.get(getattr(function, "value", ""))
        return argument.keyword is not None and argument.keyword.value == name

    def change_string(node: Any) -> Iterator[libcst.CSTNode]:
        for changed in mutators.operator_string(node):
            is_same = (
                changed.value.upper() == node.value.upper()
                and _SQL.search(node.value) is not None
                and _QUOTED.findall(changed.value[1:-1]) == _QUOTED.findall(node.value[1:-1])
            )
            if not is_same:
                yield changed

    def change_arguments(node: libcst.Call) -> Iterator[libcst.Call]:
        kept = [argument for argument in node.args if not is_describing(node, argument)]
        for changed in mutators.operator_arg_removal(node):
            if any(argument not in changed.args for argument in kept):
                yield changed

    def skip(visitor: Any, node: libcst.CSTNode) -> bool:
        if isinstance(node, libcst.Call):
            described.update(each.value for each in node.args if is_describing(node, each))
        return node in described or m.matches(node, logging) or usual(visitor, node)

    described: set[libcst.CSTNode] = set()
    logging = m.Call(m.Attribute(m.Name("logger")))
    usual = file_mutation.MutationVisitor._skip_node_and_children
    file_mutation.MutationVisitor._skip_node_and_children = skip  # type: ignore[method-assign]
    ours = {
        mutators.operator_string: change_string,
        mutators.operator_arg_removal: change_arguments,
    }
    file_mutation.mutation_operators = [
        (kind, ours.get(operator, operator)) for kind, operator in mutators.mutation_operators
    ]


def difference(name: str, path: str) -> dict[str, str]:
    """Return a mutant as an entry of `equivalent_mutants.toml`, without the reason."""
    from mutmut.mutation.diff_apply import get_diff_for_mutant
    from mutmut.utils.format_utils import orig_function_and_class_names_from_key

    function, of_class = orig_function_and_class_names_from_key(name)
    module = path.removesuffix(".py").replace("/", ".")
    lines = get_diff_for_mutant(name, path=Path(path)).splitlines()[3:]
    old, new = (
        "\n".join(line[1:].strip() for line in lines if line.startswith(sign)) for sign in "-+"
    )
    return {
        "function": ".".join(filter(None, (module, of_class, function))),
        "old": old,
        "new": new,
    }


def equivalent_mutants() -> set[tuple[str, ...]]:
    """Return the listed mutants as the values that `difference` returns.

    An entry lists one or several mutants of a line as `new`.
    """
    return {
        (entry["function"], entry["old"], new)
        for entry in tomllib.loads(EQUIVALENT_MUTANTS.read_text())["mutant"]
        for new in ([entry["new"]] if isinstance(entry["new"], str) else entry["new"])
    }


class Mutants:
    """A plugin of pytest that runs the collected tests for each mutant."""

    def __init__(
        self,
        area: Area,
        noted: dict[str, Any],
        chosen: Sequence[str],
        seconds: float,
        jobs: int,
    ) -> None:
        self._area = area
        self._noted = noted
        self._chosen = chosen
        self._seconds = seconds
        self._jobs = jobs
        self._reached: dict[pytest.Item, set[str]] = {}
        self._taken: dict[pytest.Item, float] = {}
        #: The tests that killed mutants of a function, the latest last.
        self._killers = defaultdict[str, list[pytest.Item]](list)
        #: Those that were run without a mutant in a process of their own.
        self._confirmed: set[pytest.Item] = set()
        #: Those that failed then, for example because the machine is busy; they are left out.
        self._unreliable: set[pytest.Item] = set()
        self._failed = False

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        self._failed = self._failed or report.failed

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtestloop(self, session: pytest.Session) -> bool:
        from mutmut.mutation import trampoline

        # Faster: without the environment, which only other processes need.
        trampoline.get_mutant_under_test = lambda: trampoline._mutant_under_test or ""
        self._trace(session.items)
        gc.unfreeze()  # `tests/conftest.py` freezes objects, which hides them from `get_objects`
        for cached in gc.get_objects():
            if isinstance(cached, functools._lru_cache_wrapper):
                cached.cache_clear()  # what it returns may depend on a mutant
        gc.freeze()
        os.chdir(self._area.work)
        chosen = [
            (path, name)
            for pattern, path in product(self._chosen, self._noted)
            for name, code in self._noted[path].exit_code_by_key.items()
            if fnmatch(name, pattern) and code not in (KILLED, TIMEOUT, REFUSED)
        ]
        read, write = os.pipe()
        workers = []
        for number in range(self._jobs):
            if (worker := os.fork()) == 0:
                os.close(read)
                os._exit(self._work(session.items, chosen[number :: self._jobs], write))
            workers.append(worker)
        os.close(write)
        with os.fdopen(read) as lines:
            for path, name, code, seconds in map(json.loads, lines):
                data = self._noted[path]
                data.exit_code_by_key[name] = code
                data.durations_by_key[name] = seconds
                data.save()
                _report(name, code, seconds, difference(name, path))
        statuses = [os.waitpid(worker, 0)[1] for worker in workers]
        if any(statuses):
            pytest.exit("the mutants were not examined completely", 1)
        return True

    def _work(self, items: list[pytest.Item], chosen: list[tuple[str, str]], pipe: int) -> int:
        """Run the tests for some mutants, one after another, and write what comes of them."""
        from mutmut.utils.format_utils import mangled_name_from_mutant_name

        equivalent = equivalent_mutants()
        for path, name in chosen:
            begun = time.monotonic()
            if tuple(difference(name, path).values()) in equivalent:
                code = EQUIVALENT
            else:
                function = mangled_name_from_mutant_name(name)
                reaching = [item for item in items if function in self._reached[item]]
                code = self._run(name, reaching, self._killers[function], self._seconds)
            line = json.dumps([path, name, code, time.monotonic() - begun])
            os.write(pipe, f"{line}\n".encode())
        return 0

    def _trace(self, items: list[pytest.Item]) -> None:
        """Note which functions each test reaches, and how long it takes.

        Tests are run for that if they, or the program, have changed since they were last.
        """
        from mutmut.mutation.trampoline import set_mutant_under_test
        from mutmut.state import state

        trace = self._area.work / TRACE
        sources = self._area.work.glob(f"{Path(self._area.package).name}/**/*.py")
        is_new = not trace.exists() or any(
            path.stat().st_mtime > trace.stat().st_mtime for path in sources
        )
        known = {} if is_new else json.loads(trace.read_text())
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
                del known[item.nodeid]
                break
            _, self._taken[item], functions = known[item.nodeid]
            self._reached[item] = set(functions)
        trace.write_text(json.dumps(known))
        if self._failed:
            pytest.exit(f"{item.nodeid} fails without any mutant", 1)
        set_mutant_under_test("")

    def _run(
        self, name: str, reaching: list[pytest.Item], killers: list[pytest.Item], seconds: float
    ) -> int:
        """Return what comes of a mutant in a process of its own."""
        reaching = [item for item in reaching if item not in self._unreliable]
        if not reaching:
            return NO_TESTS
        reaching.sort(
            key=lambda item: (-killers.index(item) - 1 if item in killers else 0, self._taken[item])
        )
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
                print(f"{killer.nodeid} fails without any mutant", file=sys.stderr, flush=True)
                self._unreliable.add(killer)
                return self._run(name, reaching, killers, seconds)
        if killer in killers:
            killers.remove(killer)
        killers.append(killer)
        return TIMEOUT if -status in (signal.SIGPROF, signal.SIGALRM) else KILLED

    def _run_inside(self, name: str, items: list[pytest.Item], seconds: float, pipe: int) -> None:
        from mutmut.mutation.trampoline import set_mutant_under_test

        os.chdir(self._area.work / "mutants")
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


def _report(name: str, code: int, seconds: float, entry: dict[str, str]) -> None:
    outcomes = {KILLED: "killed", TIMEOUT: "too slow", EQUIVALENT: "equivalent"}
    print(f"{outcomes.get(code, 'SURVIVED')} {seconds:.1f} s {name}", flush=True)
    if code in (SURVIVED, NO_TESTS):
        print("no test reaches it" if code == NO_TESTS else "")
        print("[[mutant]]")
        for key, value in {**entry, "reason": ""}.items():
            print(f"{key} = {json.dumps(value, ensure_ascii=False)}")
        print(flush=True)


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("modules", nargs="*", help="such as sync/pull; all of them without one")
    parser.add_argument("--seconds", type=float, default=5, help="processor time of one mutant")
    parser.add_argument("--jobs", type=int, default=2, help="how many at once")
    options = parser.parse_args()
    modules = options.modules or [""]
    # With few examples, so that a survivor does not take minutes.
    os.environ.setdefault("RSNOTIFY_EXAMPLES", "0.1")
    os.environ["PATH"] = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    codes = []
    for area in AREAS:
        folders = {pattern.partition("/")[0].removesuffix(".py") for pattern in area.modules}
        of_area = [module for module in modules if module.partition("/")[0] in {*folders, ""}]
        if of_area:
            # In a process of its own, which imports the copies of one package.
            if (child := os.fork()) == 0:
                os._exit(run(area, of_area, options.seconds, options.jobs))
            codes.append(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
    return max(codes, default=2)


def run(area: Area, modules: Sequence[str], seconds: float, jobs: int) -> int:
    """Run the tests of an area for each mutant of these modules; print and return the outcome."""
    prepare(area)
    os.chdir(area.work)
    noted = generate(area)
    from mutmut.configuration import config

    os.chdir("mutants")
    arguments = [*area.tests, *config().pytest_add_cli_args]
    package = Path(area.package).name
    chosen = [f"{package}.{module.replace('/', '.')}*" for module in modules]
    plugin = Mutants(area, noted, chosen, seconds, jobs)
    if code := pytest.main(["--rootdir=.", "-q", "-s", *arguments], plugins=[plugin]):
        return int(code)
    for path, data in sorted(noted.items()):
        codes = Counter(data.exit_code_by_key.values())
        killed = codes[KILLED] + codes[TIMEOUT]
        if ran := killed + codes[SURVIVED] + codes[NO_TESTS]:
            print(
                f"{path}: {killed} of {ran} killed;"
                f" {codes[EQUIVALENT]} equivalent, {codes[REFUSED]} refused",
                flush=True,
            )
    return 0


if __name__ == "__main__":
    sys.exit(main())
