"""An earlier revision of this project, with which hubs, Sources and Destinations are started."""

from __future__ import annotations

import io
import subprocess
import tarfile
import tomllib
from pathlib import Path

from tests.archives import extract

PROJECT = Path(__file__).parents[3]


def release() -> str:
    """Return the last release: the newest tag, or else the commit that set the version."""
    found = _git("describe", "--tags", "--abbrev=0", check=False)
    if found:
        return found
    return _git("log", "-1", "--format=%H", "-G^__version__", "--", "rsnotify/__init__.py")


def _git(*arguments: str, check: bool = True) -> str:
    done = subprocess.run(
        ["git", *arguments], cwd=PROJECT, capture_output=True, text=True, check=check
    )
    return done.stdout.strip()


def unpack(revision: str, folder: Path) -> dict[str, str]:
    """Unpack a revision into a folder, and return the variables with which Python imports it.

    The packages that it needs are those of this environment. Its entry points are found by the
    metadata beside it, which has precedence over that of the installed revision.
    """
    folder.mkdir()
    archive = subprocess.run(
        ["git", "archive", revision], cwd=PROJECT, capture_output=True, check=True
    ).stdout
    with tarfile.open(fileobj=io.BytesIO(archive)) as files:
        extract(files, folder)
    project = tomllib.loads((folder / "pyproject.toml").read_text())["project"]
    metadata = folder / "rsnotify-0.dist-info"
    metadata.mkdir()
    (metadata / "METADATA").write_text("Metadata-Version: 2.1\nName: rsnotify\nVersion: 0\n")
    (metadata / "entry_points.txt").write_text(
        "".join(
            f"[{group}]\n" + "".join(f"{name} = {value}\n" for name, value in points.items())
            for group, points in project["entry-points"].items()
        )
    )
    places = (folder / "hub", folder / "publisher", folder / "subscriber")
    packages = (folder, *places, *sorted((folder / "extensions").iterdir()))
    return {
        "PYTHONPATH": ":".join(map(str, packages)),
        # The folder of this project is not searched first.
        "PYTHONSAFEPATH": "1",
    }
