"""What errors say, and what they keep to themselves."""

from __future__ import annotations

import inspect

import pytest

from rsnotify import errors
from rsnotify.errors import InvalidDocument, NotFound, RsnotifyError, Unavailable

SECRET = "http://user:secret@source.example/list.xml"


def test_every_error_of_ours_has_the_one_base() -> None:
    classes = [kind for _, kind in inspect.getmembers(errors, inspect.isclass)]
    assert len(classes) > 10
    assert all(issubclass(kind, RsnotifyError) for kind in classes)


def test_an_error_of_a_document_says_where_and_what() -> None:
    error = InvalidDocument("it has no loc", entry=3)
    assert str(error.at("http://a/list.xml")) == "http://a/list.xml, entry 3: it has no loc"
    assert isinstance(error.at("x"), InvalidDocument)


@pytest.mark.parametrize(
    "error",
    [
        NotFound(SECRET, "the server says 404"),
        Unavailable("http://a/", f"redirected to {SECRET}"),
        InvalidDocument("it has no loc", source=SECRET),
    ],
)
def test_no_error_tells_a_password(error: RsnotifyError) -> None:
    assert "source.example" in str(error) or "a/" in str(error)
    assert "secret" not in str(error)


def test_what_a_stranger_wrote_is_quoted_in_part_if_it_is_long() -> None:
    long = InvalidDocument(f"it says {'x' * 10_000}", source="http://a/", entry=2)
    assert str(long).startswith("http://a/, entry 2: it says xxx")
    assert len(str(long)) < 1000
    assert long.reason.endswith("x" * 10_000)
    assert len(str(Unavailable("http://a/", "x" * 10_000))) < 1000
