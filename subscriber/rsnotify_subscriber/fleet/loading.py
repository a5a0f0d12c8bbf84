"""Reading a file of Sources, and the files with secrets that it names."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from msgspec.structs import replace

from rsnotify.runtime.config.files import decode_settings, read_text
from rsnotify_subscriber.fleet.configuration import FleetConfiguration, FollowedSource
from rsnotify_subscriber.fleet.parsing import parse


def load(path: Path, given: Mapping[str, Any] | None = None) -> FleetConfiguration:
    """Read a file of Sources.

    Args:
        path: A file ending in .toml or .json.
        given: Settings of the command line, which override `[defaults]` and `[websub]`.

    Raises:
        ConfigurationError: Something cannot be read, or a setting is unknown or wrong.
    """
    text = read_text(path)
    found = parse(str(path), text, decode_settings(path, text), given)
    return replace(found, sources=tuple(map(_with_secret, found.sources)))


def _with_secret(source: FollowedSource) -> FollowedSource:
    if source.mqtt_password_file is None:
        return source
    password = read_text(source.mqtt_password_file).removesuffix("\n")
    return replace(source, mqtt_password=password)
