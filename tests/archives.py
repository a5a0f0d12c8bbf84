"""Extracts archives with any Python that the project supports."""

from __future__ import annotations

import tarfile
from pathlib import Path


def extract(archive: tarfile.TarFile, folder: Path) -> None:
    # `extractall` has the parameter `filter` only since Python 3.11.4. Before, this has no effect.
    archive.extraction_filter = getattr(tarfile, "data_filter", None)
    archive.extractall(folder)
