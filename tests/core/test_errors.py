"""The tree of errors, and what messages contain and leave out."""

from __future__ import annotations

import importlib
import inspect
import re

import pytest

from rsnotify import errors
from rsnotify.errors import InvalidDocument, NotFound, RsnotifyError, Unavailable
from tests.packages import PACKAGES

SECRET = "http://user:secret@source.example/list.xml"


def exceptions(package: str) -> dict[str, type[BaseException]]:
    """Return the exceptions that the modules of a package define for others to use."""
    found = {}
    for path in sorted((PACKAGES[package] / package).rglob("*.py")):
        name = ".".join(path.relative_to(PACKAGES[package]).with_suffix("").parts)
        if not re.search(r"^class \w+\(.*\):", path.read_text(), re.M) or "__" in name:
            continue
        module = importlib.import_module(name)
        for kind in vars(module).values():
            if (
                inspect.isclass(kind)
                and issubclass(kind, BaseException)
                and kind.__module__ == name
                and not kind.__name__.startswith("_")
            ):
                found[kind.__name__] = kind
    return found


def drawn() -> dict[str, str]:
    """Return the tree in the docstring of `errors`, as name and name of the parent."""
    parents: dict[str, str] = {}
    path: list[str] = []
    for line in (errors.__doc__ or "").splitlines():
        if match := re.match(r"    ([│ ]*)(?:[├└]── )?([A-Z]\w+)(?: {2,}|$)", line):
            depth = line.index(match[2]) // 4 - 1
            path[depth:] = [match[2]]
            if depth:
                parents[match[2]] = path[depth - 1]
    return parents


@pytest.mark.parametrize("package", PACKAGES)
def test_every_error_that_leaves_its_module_derives_from_the_common_base(package: str) -> None:
    strangers = {
        name for name, kind in exceptions(package).items() if not issubclass(kind, RsnotifyError)
    }
    assert strangers == set()


def test_the_docstring_draws_the_whole_tree_of_the_shared_errors() -> None:
    found = exceptions("rsnotify")
    assert len(found) > 15
    parents = {name: kind.__bases__[0].__name__ for name, kind in found.items()}
    del parents["RsnotifyError"]
    assert drawn() == parents


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
def test_no_message_contains_a_password(error: RsnotifyError) -> None:
    assert "source.example" in str(error) or "a/" in str(error)
    assert "secret" not in str(error)


def test_a_long_quotation_of_an_untrusted_document_is_shortened() -> None:
    long = InvalidDocument(f"it says {'x' * 10_000}", source="http://a/", entry=2)
    assert str(long).startswith("http://a/, entry 2: it says xxx")
    assert len(str(long)) < 1000
    assert long.reason.endswith("x" * 10_000)
    assert len(str(Unavailable("http://a/", "x" * 10_000))) < 1000
