"""The commands `rsnotify backup` and `rsnotify restore`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

_NEW = "It must not exist, or be empty."
_State = Annotated[Path, typer.Argument(metavar="STATE", help="Folder of the state.")]
_NewState = Annotated[Path, typer.Argument(metavar="STATE", help=f"Folder of the state. {_NEW}")]
_Backup = Annotated[Path, typer.Argument(metavar="BACKUP", help="Folder of the backup.")]
_NewBackup = Annotated[Path, typer.Argument(metavar="BACKUP", help=f"Folder of the backup. {_NEW}")]


def backup(state: _State, backup: _NewBackup) -> None:
    """Copy the state of a program, which may be running.

    It is that of a Source, hub, Destination, relay or gateway. Once it is reported, the copy
    survives a power failure. It has the secrets of the state.

    Examples:
        rsnotify backup rsnotify-hub hub-backup
        rsnotify backup data.rsnotify source-backup
    """
    _copy(state, backup, "backed up")


def restore(backup: _Backup, state: _NewState) -> None:
    """Restore a state from a backup.

    The program that uses the state is started afterwards. A Destination then compares all files.

    Examples:
        rsnotify restore hub-backup rsnotify-hub
        rsnotify restore source-backup data.rsnotify
    """
    _copy(backup, state, "restored")


def _copy(source: Path, target: Path, done: str) -> None:
    from rsnotify.runtime.state_copies import copy_state

    size = copy_state(source, target)
    typer.echo(f"{done} {source} to {target}: {size / 1e6:.1f} MB")
