"""The vectors of this folder: data files, in which each vector says why it is there."""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import TypeVar

import msgspec

T = TypeVar("T")


def vectors(name: str, type_: type[T]) -> list[T]:
    """Read the vectors of a file; an unknown field is an error."""
    text = (Path(__file__).parent / f"{name}.toml").read_text()
    return msgspec.convert(tomllib.loads(text)["vector"], list[type_])  # type: ignore[valid-type]
