"""The benchmarks, which only people run: each can still be imported."""

from __future__ import annotations

import subprocess
import sys

from tests.containers import ROOT


def test_each_benchmark_finds_what_it_imports():
    names = sorted(path.stem for path in (ROOT / "benchmarks").glob("*.py"))
    assert names
    code = f"import sys; sys.path[:0] = ['benchmarks', '.']; import {', '.join(names)}"
    subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=True)
