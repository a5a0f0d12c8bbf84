"""The command `rsnotify demo`."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Annotated

import typer

from rsnotify.runtime.command_line import option, run

ROLE = "try"


def demo(
    seconds: Annotated[
        float | None, option(None, "SECONDS", "Stop after this many seconds, or at Ctrl-C.", min=1)
    ] = None,
    rate: Annotated[float, option(None, "N", "Changes per second.", min=0.1)] = 25.0,
    port: Annotated[int, option(None, "PORT", "Port of the page; 0 uses a free one.")] = 0,
) -> None:
    """Run a Source, a hub and a Destination on this machine.

    Examples:
        rsnotify demo
        rsnotify demo --seconds 20 --rate 100
    """
    from rsnotify_demo.demo import run_demo  # not needed by `rsnotify --help`

    with tempfile.TemporaryDirectory(prefix="rsnotify-demo-") as folder:
        raise typer.Exit(run(lambda stop: run_demo(stop, Path(folder), seconds, rate, port)))
