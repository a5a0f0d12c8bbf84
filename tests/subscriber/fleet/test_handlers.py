"""A handler is found by its name, beside the file that names it or anywhere Python looks."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from rsnotify.errors import ConfigurationError
from rsnotify_subscriber.fleet.building import find_handler

MODULE = """
class Counting:
    def __init__(self, start=0):
        self.start = start

    async def apply(self, changes):
        pass

class Within:
    def apply_within(self, connection, changes):
        pass

class Calling:
    async def __call__(self, change):
        pass

async def each(change):
    pass

def make(start):
    return Counting(start)

def make_nothing():
    return None

def fail():
    raise KeyError("canary")

ready = Counting(5)
calling = Calling()
number = 3
"""


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Path]:
    before = sys.path[:]
    (tmp_path / "handlers_of_this_test.py").write_text(MODULE)
    (tmp_path / "broken_of_this_test.py").write_text("import nothing_of_this_name")
    (tmp_path / "exits_of_this_test.py").write_text("raise SystemExit(3)")
    (tmp_path / "json.py").write_text("raise AssertionError('Python has a json of its own')")
    yield tmp_path
    sys.path[:] = before
    for name in [one for one in sys.modules if one.endswith("_of_this_test")]:
        del sys.modules[name]


def found(name: str, folder: Path, **options: object) -> Any:
    return find_handler(f"handlers_of_this_test:{name}", options, folder)


def test_a_class_or_a_function_makes_a_handler_of_its_own_for_each_source(folder: Path) -> None:
    one, other = found("Counting", folder, start=3), found("Counting", folder)
    assert (one.start, other.start) == (3, 0)
    assert found("make", folder, start=4).start == 4
    assert hasattr(found("Within", folder), "apply_within")


def test_a_handler_object_is_used_as_it_is(folder: Path) -> None:
    assert found("ready", folder) is found("ready", folder)
    for name in ("each", "calling"):
        assert callable(found(name, folder))


def test_a_module_beside_the_file_hides_no_module_of_python(folder: Path) -> None:
    with pytest.raises(ConfigurationError, match="could not create a handler: TypeError"):
        find_handler("json:loads", {}, folder)


@pytest.mark.parametrize(
    ("name", "options", "told"),
    [
        ("no_module", {}, "write package.module:name"),
        ("nowhere_at_all:name", {}, "cannot import nowhere_at_all:name: ModuleNotFoundError"),
        ("broken_of_this_test:x", {}, "No module named 'nothing_of_this_name'"),
        ("exits_of_this_test:x", {}, "cannot import exits_of_this_test:x: SystemExit: 3"),
        ("handlers_of_this_test:x", {}, "AttributeError"),
        ("handlers_of_this_test:number", {}, "neither a handler nor a function that creates one"),
        ("handlers_of_this_test:Counting", {"end": 3}, "unexpected keyword argument 'end'"),
        ("handlers_of_this_test:each", {"start": 3}, "is a handler already"),
        ("handlers_of_this_test:make_nothing", {}, "returned an object of type NoneType"),
        ("handlers_of_this_test:fail", {}, "could not create a handler: KeyError: 'canary'"),
    ],
)
def test_a_name_without_a_handler_is_reported_in_one_sentence(
    folder: Path, name: str, options: dict[str, object], told: str
) -> None:
    with pytest.raises(ConfigurationError) as error:
        find_handler(name, options, folder)
    assert told in str(error.value)
    assert "\n" not in str(error.value)
