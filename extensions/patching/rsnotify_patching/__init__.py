"""Patching the content that is held (core §14.4), by the media type of the patch."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

from rsnotify_patching.json_patch import PatchError, json_merge_patch, json_patch
from rsnotify_patching.xml_patch import xml_patch

__all__ = ["STANDARD_PATCHES", "Patch", "PatchError"]


class Patch(Protocol):
    """A function that applies patches of one media type."""

    def __call__(self, before: bytes, patch: bytes, /) -> bytes:
        """Return the content after; after any exception the whole resource is fetched."""


STANDARD_PATCHES: Mapping[str, Patch] = {
    "application/json-patch+json": json_patch,
    "application/json-patch": json_patch,  # as in the examples of core §14.4
    "application/merge-patch+json": json_merge_patch,
    "application/xml-patch+xml": xml_patch,
}
