"""The pictures of the documentation are shown, and quick to load."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.reader import ROOT
from tests.test_docs import ALL_PAGES

_PICTURES = sorted(
    path for path in (ROOT / "docs/images").iterdir() if path.name not in ("logo.svg", "site.css")
)


@pytest.mark.parametrize("picture", _PICTURES, ids=lambda path: path.name)
def test_every_picture_is_shown_and_small(picture: Path) -> None:
    is_film = picture.name.startswith("gap-")
    assert picture.stat().st_size <= (2_000_000 if is_film else 250_000)
    assert any(f"images/{picture.name}" in (ROOT / page).read_text() for page in ALL_PAGES)
