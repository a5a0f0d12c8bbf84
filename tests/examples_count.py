"""How many examples the longest property tests try: `make slow` and `make mutants` set a factor."""

from __future__ import annotations

import os

FACTOR = float(os.environ.get("RSNOTIFY_EXAMPLES", "1"))


def examples(number: int) -> int:
    return max(1, round(number * FACTOR))
