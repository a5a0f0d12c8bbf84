"""Running the commands as real processes."""

from __future__ import annotations

import asyncio
import json
import sys
from asyncio.subprocess import PIPE, Process
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress

#: Seconds; only what hangs takes them.
SECONDS = 90


async def rsnotify(*arguments: object) -> Process:
    module = "tests.subscriber.hasty_audits" if arguments[0] == "audit" else "rsnotify"
    command = ["-m", module, *map(str, arguments)]
    return await asyncio.create_subprocess_exec(sys.executable, *command, stdout=PIPE, stderr=PIPE)


async def outcome(process: Process) -> tuple[int | None, str, str]:
    try:
        async with asyncio.timeout(SECONDS):
            output, errors = await process.communicate()
    finally:
        await ended(process)
    return process.returncode, output.decode(), errors.decode()


async def run(*arguments: object) -> tuple[int | None, str, str]:
    """Run a command to its end; return its exit code, output and errors."""
    return await outcome(await rsnotify(*arguments))


async def ended(process: Process) -> None:
    """See to it that a process has ended, and leaves no pipe open to a later test."""
    if process.returncode is None:
        with suppress(ProcessLookupError):
            process.kill()
    await process.communicate()


@asynccontextmanager
async def running(*arguments: object) -> AsyncIterator[Process]:
    process = await rsnotify(*arguments)
    try:
        yield process
    finally:
        await ended(process)


async def until_reported(
    process: Process,
    condition: Callable[[dict[str, object]], bool] = lambda _: True,
    **facts: object,
) -> None:
    """Read the statuses of `follow --json` until one has these values, and the condition holds."""
    assert process.stdout is not None
    async with asyncio.timeout(SECONDS):
        while line := await process.stdout.readline():
            reported = json.loads(line)
            said = all(reported[name] == value for name, value in facts.items())
            if said and condition(reported):
                return
    raise AssertionError("the process ended before")
