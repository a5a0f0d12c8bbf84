"""Making content from what is held and a patch of it (core §14.4), by the patch's media type."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from rsnotify_subscriber.patching.errors import PatchError
from rsnotify_subscriber.patching.json import json_merge_patch, json_patch
from rsnotify_subscriber.patching.xml import xml_patch

__all__ = ["STANDARD_PATCHES", "Patch", "PatchError"]

#: Takes the content before and the patch, returns the content after. May raise anything: then
#: the resource is fetched whole.
Patch = Callable[[bytes, bytes], bytes]

STANDARD_PATCHES: Mapping[str, Patch] = {
    "application/json-patch+json": json_patch,
    "application/json-patch": json_patch,  # as the examples of core §14.4 have it
    "application/merge-patch+json": json_merge_patch,
    "application/xml-patch+xml": xml_patch,
}
