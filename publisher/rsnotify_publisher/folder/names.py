"""Files and their URIs: which files of a folder are published, and under which URI."""

from __future__ import annotations

import os
from pathlib import Path
from urllib.parse import quote, unquote_to_bytes

from rsnotify.errors import ConfigurationError
from rsnotify.format.media_types import guess_media_type
from rsnotify_publisher.documents import RESERVED

_UNKNOWN = "application/octet-stream"

# What may stand raw in a path (RFC 3986 §3.3) does, so that a URI is the one others write too.
_RAW = "/!$&'()*+,;=:@"


def media_type(path: Path) -> str:
    """Return the media type of a file by its name."""
    return guess_media_type(f"file:///{quote(os.fsencode(path.name))}") or _UNKNOWN


class Names:
    """Maps the files below a folder to URIs and back, one to one.

    Hidden files, and those whose name a document has, are not published.

    Args:
        root: The folder.
        base_url: The URI of the folder, with a slash at its end.
    """

    def __init__(self, root: Path, base_url: str) -> None:
        self.root = root.resolve()
        self.base_url = base_url

    def check(self) -> None:
        """Refuse a folder in which a document's name is taken.

        Raises:
            ConfigurationError: It is; or the folder is no folder, or cannot be read.
        """
        if not self.root.is_dir():
            raise ConfigurationError(f"{self.root} is not a folder; name one that exists")
        try:
            taken = RESERVED.intersection(os.listdir(self.root))
        except OSError as error:
            raise ConfigurationError(f"{self.root} cannot be read: {error.strerror}") from None
        for name in sorted(taken):
            raise ConfigurationError(
                f"{self.root / name} has the name of a ResourceSync document; move or rename it"
            )

    def uri(self, path: Path) -> str:
        """Return the URI of a file or folder below the root, whatever bytes its name has."""
        relative = os.fsencode(path.relative_to(self.root))
        return self.base_url + quote(relative, safe=_RAW)

    def prefix(self, folder: Path) -> str:
        """Return how the URIs of all files below a folder begin."""
        return self.base_url if folder == self.root else self.uri(folder) + "/"

    def path(self, uri: str) -> Path | None:
        """Return the path that `uri` maps to this URI, if there is one."""
        if not uri.startswith(self.base_url):
            return None
        return self.path_of(uri[len(self.base_url) :])

    def path_of(self, relative: str) -> Path | None:
        """Return the path of a percent-encoded reference below the base URL.

        An encoded slash, a null, and names such as `..` reach nothing.
        """
        parts = [unquote_to_bytes(part) for part in relative.split("/")]
        if any(b"/" in part or b"\0" in part or part == b"" for part in parts):
            return None
        path = self.root.joinpath(*map(os.fsdecode, parts))
        return path if self.may_be_published(path) else None

    def may_be_published(self, path: Path) -> bool:
        """Whether a path below the root is one that is published, if there is a file."""
        parts = path.relative_to(self.root).parts
        return (
            bool(parts)
            and parts[0] not in RESERVED
            and not any(part.startswith(".") for part in parts)
        )

    def is_published(self, path: Path) -> bool:
        """Whether a path is a file that is published.

        A file may be a link to another that is published; a folder may not be a link.
        """
        # os.path answers False where Path raises: for names too long, or not to be looked at.
        if not (self.may_be_published(path) and os.path.isfile(path)):
            return False
        if path.parent.resolve() != path.parent:
            return False
        real = path.resolve()
        return real.is_relative_to(self.root) and self.may_be_published(real)
