"""What `rsnotify source` writes is valid, all of it, in both versions of the specification."""

from __future__ import annotations

import asyncio
import signal
import sys
from asyncio.subprocess import PIPE, Process
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from rsnotify.commands.processes import free_port
from rsnotify.writing import Profile
from rsnotify_subscriber.validation import validate

OPTIONS = (
    "--rotate=2 changes",
    "--keep=100 lists",
    "--resource-list-every=1",
    "--resource-dump-every=1",
    "--change-dump",
    "--resource-list-archive",
    "--resource-dump-archive",
    "--change-dump-archive",
)
#: What a Source with everything turned on comes to offer.
KINDS = {
    "description",
    "capabilitylist",
    *(f"{name}{kind}" for name in ("resource", "change") for kind in ("list", "dump")),
    *(f"{name}{kind}-archive" for name in ("resource", "change") for kind in ("list", "dump")),
    "resourcedump-manifest",
    "changedump-manifest",
}


@asynccontextmanager
async def source(folder: Path, *options: str) -> AsyncIterator[str]:
    """Publish a folder; give its base URL once it is served."""
    base = f"http://127.0.0.1:{free_port()}/"
    process: Process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "rsnotify", "source", folder, "--base-url", base),
        *(f"--port={base.rstrip('/').rpartition(':')[2]}", f"--data={folder}.rsnotify"),
        *options,
        stdout=PIPE,
    )
    assert process.stdout is not None
    try:
        while b"serving" not in await process.stdout.readline():
            pass
        yield base
    finally:
        process.send_signal(signal.SIGINT)
        await process.communicate()


@pytest.mark.parametrize("profile", list(Profile), ids=str)
async def test_every_document_of_a_source_is_valid(tmp_path: Path, profile: Profile) -> None:
    folder = tmp_path / "data"
    folder.mkdir()
    for number in range(6):
        (folder / f"{number} é.txt").write_text(str(number))
    async with asyncio.timeout(60), source(folder, *OPTIONS, f"--profile={profile}") as base:
        round_ = 0
        while True:
            round_ += 1
            (folder / "new.txt").write_text(str(round_))
            result = await validate(f"{base}.well-known/resourcesync", deep=True, spec=profile)
            seen = {document.capability for document in result.documents if document.entries}
            # It changes while we look, so that it may seem to contradict itself for a moment.
            if seen >= KINDS and result.valid:
                break
    warnings = {finding.rule for document in result.documents for finding in document.findings}
    # A Source of which nobody said what describes it.
    assert warnings == {
        "description-describedby-missing",
        "description-entry-describedby-missing",
        "capabilitylist-describedby-missing",
    }
