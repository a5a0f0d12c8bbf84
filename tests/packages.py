"""The packages of the project by name, with the folders that they are in."""

from __future__ import annotations

from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
#: The packages that every installation needs. They import no extension.
CORES = ("rsnotify", "rsnotify_hub", "rsnotify_publisher", "rsnotify_subscriber")
PACKAGES = {
    path.parent.name: path.parents[1]
    for pattern in ("rsnotify", "*/rsnotify_*", "extensions/*/rsnotify_*")
    for path in sorted(ROOT.glob(f"{pattern}/__init__.py"))
}
