"""Runs `rsnotify source` once its settings are known."""

from __future__ import annotations

import asyncio
from pathlib import Path

import typer

from rsnotify.plural import counted
from rsnotify.runtime.cli.forced_shutdown import ForcedShutdown
from rsnotify.runtime.cli.running import complain, run
from rsnotify.runtime.listening import address, listen
from rsnotify.runtime.open_files import allow_files
from rsnotify.runtime.serving import serving
from rsnotify.runtime.tasks import running
from rsnotify_publisher.commands.source_report import show_status
from rsnotify_publisher.config import SourceConfiguration
from rsnotify_publisher.description import SourceDescription
from rsnotify_publisher.folder.publishing import FolderPublishing
from rsnotify_publisher.folder.server import server
from rsnotify_publisher.folder.sets import claim, one_folder, several_folders
from rsnotify_publisher.publisher import Publisher

#: Files that one set keeps open: its journal, three times, and connections to hubs.
_FILES_OF_A_SET = 20
_OTHER_FILES = 256
#: Seconds in which hundreds of sets write their last documents, though the disk is busy.
_SHUTDOWN_TIMEOUT = 90.0
_FORCED = "the Source has not ended in order, so it is left as it is; what was recorded is kept"


def publish(root: Path | None, settings: SourceConfiguration) -> None:
    """Publish a folder, or the sets of the settings, until interrupted."""
    with listen(settings.host, settings.port) as listening:
        base_url = settings.base_url or address(settings.host, listening)
        published: Publisher | SourceDescription
        if root is None:
            published, folders = several_folders(base_url, settings)
        else:
            published, folders = one_folder(root, base_url, settings)
        with claim(folders):
            _allow_files(len(folders))
            app = server(published, folders)
            shutdown = ForcedShutdown(lambda: _FORCED, _SHUTDOWN_TIMEOUT)
            at = address(settings.host, listening)
            publishers = [folder.publisher for folder in folders]

            async def main(stop: asyncio.Event) -> None:
                publishing = FolderPublishing(folders, at)
                report = show_status(publishers, publishing.published)
                async with running(report), serving(app, listening, shutdown_timeout=2):
                    await publishing.run(stop, typer.echo)

            run(main, shutdown)


def _allow_files(sets: int) -> None:
    wanted = sets * _FILES_OF_A_SET + _OTHER_FILES
    allowed = allow_files(wanted)
    if allowed < wanted:
        complain(
            f"{counted(sets, 'set')} may need {wanted:,} files and connections at once, and the "
            f"system allows {allowed:,}; raise that (ulimit -n)",
            0,
        )
