"""`rsnotify demo` is the first thing a new user sees."""

from __future__ import annotations

import re
import subprocess
import sys


def test_the_demo_ends_by_itself_and_its_audit_says_in_step() -> None:
    run = subprocess.run(
        [sys.executable, "-m", "rsnotify", "demo", "--seconds", "5"],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert run.returncode == 0, run.stdout + run.stderr
    assert "in step" in run.stdout.splitlines()[-1]
    changes, applied = map(
        int, re.findall(r"Source: (\d+) changes .* (\d+) applied", run.stdout)[-1]
    )
    assert changes >= 60
    assert applied > 0
    assert "lag" in run.stdout
    assert run.stderr == ""
