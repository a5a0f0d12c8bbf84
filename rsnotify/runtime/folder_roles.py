"""The role of a state folder: a hub, a Source or a Destination."""

from __future__ import annotations

from pathlib import Path

from rsnotify.errors import ConfigurationError

#: The state file of each role. That of a relay's Destination is copied before that of its Source.
ROLES = {
    "hub.sqlite": "a hub",
    "state.sqlite": "a Destination",
    "journal.sqlite3": "a Source",
}


def check_role(file: Path) -> None:
    """Refuse to create a state file in a folder that has the state of another role.

    If the file exists already, the folder belongs to its role.
    """
    if file.exists():
        return
    for name, role in ROLES.items():
        if name != file.name and (file.parent / name).exists():
            raise ConfigurationError(
                f"{file.parent} holds the state of {role} ({name}); choose another folder "
                f"for that of {ROLES[file.name]}"
            )


def later_version(file: Path) -> ConfigurationError:
    """Return the error for a state file that only a later version can read."""
    return ConfigurationError(
        f"{file} was written by a later version of rsnotify; use that version, or restore a backup "
        "that was made before the upgrade"
    )
