"""The role of a state folder: a hub, a Source or a Destination."""

from __future__ import annotations

from pathlib import Path

from rsnotify.errors import ConfigurationError

#: The state file of each role.
_ROLES = {
    "hub.sqlite": "a hub",
    "journal.sqlite3": "a Source",
    "state.sqlite": "a Destination",
}


def check_role(file: Path) -> None:
    """Refuse to create a state file in a folder that has the state of another role.

    If the file exists already, the folder belongs to its role.
    """
    if file.exists():
        return
    for name, role in _ROLES.items():
        if name != file.name and (file.parent / name).exists():
            raise ConfigurationError(
                f"{file.parent} holds the state of {role} ({name}); choose another folder "
                f"for that of {_ROLES[file.name]}"
            )
