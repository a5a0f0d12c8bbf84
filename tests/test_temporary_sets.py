"""Sets in a temporary file."""

from __future__ import annotations

import os
from contextlib import closing

import pytest

from rsnotify.errors import StorageError
from rsnotify.runtime.temporary_sets import TemporarySet


def test_a_temporary_set_has_what_was_added_to_it() -> None:
    strange = os.fsdecode(b"\xff")
    with closing(TemporarySet()) as texts:
        assert not texts
        texts.update(["a", "é", strange, "a"])
        assert [text in texts for text in ("a", "é", strange, "b", "")] == [True] * 3 + [False] * 2
        assert texts
        texts.clear()
        assert "a" not in texts
        assert not texts
    with pytest.raises(StorageError, match="temporary file"):
        texts.update(["a"])
    with pytest.raises(StorageError, match="temporary file"):
        assert "a" in texts
    with pytest.raises(StorageError, match="temporary file"):
        texts.clear()
