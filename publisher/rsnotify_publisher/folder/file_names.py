"""Maps the files of a folder to URIs, and decides which files are published."""

from __future__ import annotations

import os
from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path
from urllib.parse import quote, unquote_to_bytes

from rsnotify.errors import ConfigurationError
from rsnotify.format.media_types import guess_media_type
from rsnotify.runtime.reasons import reason_of
from rsnotify_publisher.source_documents import RESERVED

#: The media type of files with an unknown file name extension.
_DEFAULT_MEDIA_TYPE = "application/octet-stream"
# Characters that are allowed in a path (RFC 3986 §3.3) stay unencoded, as in other software.
_UNENCODED = "/!$&'()*+,;=:@"


def media_type(path: Path) -> str:
    return _media_type("".join(path.suffixes[-2:]))


@lru_cache(maxsize=1_000)
def _media_type(suffixes: str) -> str:
    return guess_media_type(f"file:///name{quote(os.fsencode(suffixes))}") or _DEFAULT_MEDIA_TYPE


class FileNames:
    """Maps the files below a folder to URIs and back, one to one.

    Hidden files, and files with the name of a ResourceSync document, are not published. The base
    URL must end in a slash.
    """

    def __init__(self, root: Path, base_url: str) -> None:
        self.root = root.resolve()
        self.base_url = base_url

    def check(self) -> None:
        """Raise ConfigurationError if the folder cannot be published."""
        if not self.root.is_dir():
            raise ConfigurationError(f"{self.root} is not a folder; give an existing one")
        try:
            taken = RESERVED.intersection(os.listdir(self.root))
        except OSError as error:
            raise ConfigurationError(f"{self.root} cannot be read: {reason_of(error)}") from None
        for name in sorted(taken):
            raise ConfigurationError(
                f"{self.root / name} has the name of a ResourceSync document; move or rename it"
            )

    def uri(self, path: Path) -> str:
        """Return the URI of a file or folder below the root. Its name may contain any bytes."""
        relative = os.fsencode(path.relative_to(self.root))
        return self.base_url + quote(relative, safe=_UNENCODED)

    def prefix(self, folder: Path) -> str:
        """Return the prefix of the URIs of all files below a folder."""
        return self.base_url if folder == self.root else self.uri(folder) + "/"

    def path(self, uri: str) -> Path | None:
        """Return the path for a URI, or None if no published file can have that URI."""
        if not uri.startswith(self.base_url):
            return None
        return self.path_of(uri[len(self.base_url) :])

    def path_of(self, relative: str) -> Path | None:
        """Return the path for a percent-encoded reference relative to the base URL.

        Return None if the reference contains an encoded slash, a null byte, or a name such as `..`.
        """
        parts = [unquote_to_bytes(part) for part in relative.split("/")]
        if any(b"/" in part or b"\0" in part or part == b"" for part in parts):
            return None
        names = [os.fsdecode(part) for part in parts]
        return self.root.joinpath(*names) if _may_be_published(names) else None

    def may_be_published(self, path: Path) -> bool:
        """Return whether a file at a path below the root would be published."""
        return _may_be_published(path.relative_to(self.root).parts)

    def is_published(self, path: Path) -> bool:
        """Return whether a path is a published file.

        A symbolic link to another published file is published, too. Links to folders are not
        followed.
        """
        # For names that are too long or not accessible, os.path returns False where Path raises.
        if not (self.may_be_published(path) and os.path.isfile(path)):
            return False
        resolved = os.path.realpath(path)
        if resolved == str(path):
            return True
        real = Path(resolved)
        if path.parent.resolve() != path.parent:
            return False
        return real.is_relative_to(self.root) and self.may_be_published(real)


def _may_be_published(names: Sequence[str]) -> bool:
    return (
        bool(names) and names[0] not in RESERVED and not any(name.startswith(".") for name in names)
    )
