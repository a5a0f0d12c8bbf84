"""Live displays in a terminal, with log lines above them."""

from __future__ import annotations

import sys

from rich.console import RenderableType
from rich.live import Live


def live(first: RenderableType) -> Live:
    """Return a live display; log lines appear above it if they go to the terminal too."""
    return Live(first, refresh_per_second=4, redirect_stderr=sys.stderr.isatty())
