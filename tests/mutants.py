"""Plants one small bug after the other, and reports which of them no test finds: `make mutants`.

mutmut keeps all mutants in one copy of a module, and forks a process for each, which runs the
tests that reach the mutated function, the fastest first. `[tool.mutmut]` in pyproject.toml says
which tests and what is left alone; mutants that `make check` refuses count as killed.
"""

from __future__ import annotations

import argparse
import os
import re
import subprocess
import sys
from collections import Counter, defaultdict
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
WORK = ROOT / "build/mutants"
BIN = Path(sys.executable).parent
SURVIVED = {"survived", "no tests", "suspicious"}

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


def mutmut(*arguments: str, stdout: int | None = None) -> str:
    # With few examples, so that a survivor does not take minutes.
    environment = {"RSNOTIFY_EXAMPLES": "0.1", **os.environ, "PATH": f"{BIN}:{os.environ['PATH']}"}
    command = [BIN / "mutmut", *arguments]
    done = subprocess.run(command, cwd=WORK, env=environment, check=True, stdout=stdout, text=True)
    return done.stdout


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("module", nargs="?", help="such as sync/pull; all of them without one")
    module = parser.parse_args().module
    pattern = f"rsnotify.{module.replace('/', '.')}." if module else "rsnotify."
    prepare()
    mutmut("run", *([pattern + "*"] if module else []))
    found = defaultdict[str, Counter[bool]](Counter)
    for line in mutmut("results", "--all", "true", stdout=subprocess.PIPE).splitlines():
        name, status = line.strip().split(": ")
        if name.startswith(pattern) and status != "not checked":
            found[name.rpartition(".")[0]][status not in SURVIVED] += 1
            if status in SURVIVED:
                mutmut("show", name)
    for name, counts in sorted(found.items()):
        print(f"{name}: {counts[True]} of {counts.total()} killed")


if __name__ == "__main__":
    main()
