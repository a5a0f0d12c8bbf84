"""The members of a package: their paths, and whether they are compressed."""

from __future__ import annotations

import re
from urllib.parse import unquote

from rsnotify.format.media_types import extension
from rsnotify.format.model import Resource

# Characters that some file systems do not allow, or that could name a parent folder.
_UNSAFE = re.compile(r"(?:[^A-Za-z0-9._-]|\.{2,})+")
_LONGEST = 100

# Deflating these again costs time and gains nothing.
_COMPRESSED = re.compile(
    r"audio/|video/"
    r"|image/(jpeg|png|gif|webp|avif|heic|jp2|jxl)"
    r"|application/(zip|gzip|zstd|x-bzip2|x-xz|x-7z-compressed|vnd\.rar|vnd\.openxmlformats-)"
    r"|[^;]*\+(zip|gzip|zstd)\b",
    re.IGNORECASE,
)


def member_path(number: int, resource: Resource) -> str:
    """Return the path of a bitstream below its folder in the package.

    The number alone distinguishes members; the last part of the URI is for people.
    """
    last = re.split(r"[?#]", resource.uri, maxsplit=1)[0].rpartition("/")[2]
    name = _UNSAFE.sub("_", unquote(last))[-_LONGEST:].rstrip(".")
    suffix = "" if "." in name else extension(resource.type or "")
    return f"{number:06}-{name}{suffix}" if name else f"{number:06}{suffix}"


def is_compressed(resource: Resource) -> bool:
    """Whether the content is compressed already."""
    coded = resource.encoding not in (None, "", "identity")
    return coded or bool(_COMPRESSED.match(resource.type or ""))
