"""How many examples the longest property tests try: `make slow` sets a factor."""

from __future__ import annotations

import os

FACTOR = int(os.environ.get("RSNOTIFY_EXAMPLES", "1"))


def examples(number: int) -> int:
    return number * FACTOR
