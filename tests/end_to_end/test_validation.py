"""What `rsnotify source` writes is valid, all of it, in both versions of the specification."""

from __future__ import annotations

import asyncio
import signal
import sys
from asyncio.subprocess import PIPE, Process
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path

import pytest

from rsnotify.format.writer import Profile
from rsnotify_validation.target_validation import validate_target
from tests.ports import free_port

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
#: Seconds that a Source may take to offer all of it.
PATIENCE = 120
#: What a Source with everything turned on comes to offer.
KINDS = {
    "description",
    "capabilitylist",
    *(f"{name}{kind}" for name in ("resource", "change") for kind in ("list", "dump")),
    *(f"{name}{kind}-archive" for name in ("resource", "change") for kind in ("list", "dump")),
    "resourcedump-manifest",
    "changedump-manifest",
}
#: What nobody told this Source: what describes it.
UNDESCRIBED = {
    "description-describedby-missing",
    "description-entry-describedby-missing",
    "capabilitylist-describedby-missing",
}

#: The part that is made when it is requested.
UNWRITTEN = "/changelist-open.xml"
#: What stands in the names of the parts of each document, where each is an index.
PARTS = (
    UNWRITTEN,
    "/changedump-part-",
    *(f"/{name}{kind}-archive-" for name in ("resource", "change") for kind in ("list", "dump")),
    *(f"/{name}-2" for name in ("changelist", "resourcelist", "resourcedump", "changedump")),
    "-00003.xml",
)


def has_all_parts(names: list[str]) -> bool:
    return all(any(part in name for name in names) for part in PARTS)


@asynccontextmanager
async def source(*arguments: str | Path) -> AsyncIterator[None]:
    process: Process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "rsnotify", "source", *arguments), stdout=PIPE
    )
    assert process.stdout is not None
    try:
        while b"serving" not in (line := await process.stdout.readline()):
            assert line, "it ended"
        yield
    finally:
        with suppress(ProcessLookupError):
            process.send_signal(signal.SIGINT)
        await process.communicate()


def write_at_once(path: Path, content: str) -> None:
    """Write a file in one step: a Change Dump lacks the content of a file seen half written."""
    written = path.parents[1] / "written"
    written.write_text(content)
    written.rename(path)


@pytest.mark.parametrize("profile", list(Profile), ids=str)
async def test_every_document_of_a_source_is_valid(tmp_path: Path, profile: Profile):
    folder = tmp_path / "data"
    folder.mkdir()
    for number in range(6):
        (folder / f"{number} é.txt").write_text(str(number))
    port = free_port()
    base = f"http://127.0.0.1:{port}/"
    places = (f"--base-url={base}", f"--port={port}", f"--data={folder}.rsnotify")
    options = (*places, *OPTIONS, f"--profile={profile}")
    async with asyncio.timeout(PATIENCE), source(folder, *options):
        found, round_ = set[str](), 0
        while found != UNDESCRIBED:
            result = await validate_target(
                f"{base}.well-known/resourcesync", deep=True, spec=profile
            )
            seen = {document.capability for document in result.documents if document.entries}
            if seen >= KINDS:
                # Nothing changes any more, so that it soon agrees with itself.
                found = {
                    finding.rule for document in result.documents for finding in document.findings
                }
            else:
                round_ += 1
                write_at_once(folder / f"new {round_}.txt", str(round_))  # each content is kept
            await asyncio.sleep(0.1)  # leaves the processor to the Source


CONFIGURATION = """
base_url = "{base}"
port = {port}
data = "{state}"

[options]
max_entries = 2
rotate = "8 changes"
refresh = 0.2
resource_list_every = 0.2
resource_dump_every = 0.2
resource_list_archive = true
resource_dump_archive = true
change_dump = true
change_dump_archive = true
gzip = {gzip}

[[set]]
name = "data"
folder = "{folder}"
"""


@pytest.mark.parametrize("gzip", [False, True])
async def test_what_is_in_many_parts_is_valid(tmp_path: Path, gzip: bool):
    folder = tmp_path / "data"
    folder.mkdir()
    for number in range(5):
        (folder / f"{number}.txt").write_text(str(number))
    port = free_port()
    base = f"http://127.0.0.1:{port}/"
    said = CONFIGURATION.format(
        base=base, port=port, state=tmp_path / "state", gzip=str(gzip).lower(), folder=folder
    )
    (tmp_path / "source.toml").write_text(said)
    async with asyncio.timeout(PATIENCE), source("--config", tmp_path / "source.toml"):
        listed, round_ = "", 0
        while True:
            # Files are looked at until then, as a validation reads and checks every document.
            names = [f"/{path.name}" for path in (tmp_path / "state").rglob("*")]
            if has_all_parts([*names, UNWRITTEN]):
                result = await validate_target(f"{base}.well-known/resourcesync", deep=True)
                names = [document.name for document in result.documents]
                found = {
                    finding.rule for document in result.documents for finding in document.findings
                }
            newest = max((name for name in names if "/resourcelist-2" in name), default="")
            if has_all_parts(names):
                # Nothing changes any more, so that it soon agrees with itself.
                if found == UNDESCRIBED:
                    break
            elif newest != listed:
                listed, round_ = newest, round_ + 1
                for number in range(5):
                    write_at_once(folder / f"{number} {round_}.txt", f"{number} {round_}")
            await asyncio.sleep(0.2)  # leaves the processor to the Source
