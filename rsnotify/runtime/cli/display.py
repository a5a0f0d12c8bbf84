"""Live displays in a terminal, which leave their place to log lines."""

from __future__ import annotations

import sys

from rich.console import RenderableType
from rich.live import Live


def live(first: RenderableType) -> Live:
    """Return a display that what is logged goes above, if it goes to the terminal too.

    Args:
        first: What it shows at first.
    """
    return Live(first, refresh_per_second=4, redirect_stderr=sys.stderr.isatty())
