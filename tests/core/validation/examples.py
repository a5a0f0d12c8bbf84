"""The examples of the specifications, taken out of their text where that is at hand."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

SPECIFICATIONS = Path(__file__).resolve().parents[4] / "shared/spec"
_FENCE = re.compile(r"```xml\n((?:(?!```).)*)```\s*\nExample (\d+): ", re.DOTALL)
_DOCUMENT = re.compile(r"<\?xml .*?</(?:urlset|sitemapindex)>", re.DOTALL)


def examples() -> Iterator[tuple[str, bytes]]:
    """Yield each example with its name, such as `core 14`; none if the text is not at hand."""
    core = SPECIFICATIONS / "resourcesync-core-1.0.md"
    if core.exists():
        for body, number in _FENCE.findall(core.read_text()):
            yield f"core {number}", body.encode()
    archives = SPECIFICATIONS / "resourcesync-archives-0.9.1.md"
    if archives.exists():
        # There the captions are lost; the examples stand in the order of their numbers.
        for number, body in zip(_ARCHIVES, _DOCUMENT.findall(archives.read_text()), strict=True):
            yield f"archives {number}", body.encode()


_ARCHIVES = ("2.1", "2.2", "3.1", "3.2", "4.1", "5.1", "6.1")
