"""What a Publisher is given is checked at once, with one sentence."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from rsnotify.errors import ConfigurationError
from rsnotify.format.model import ChangeType, Resource
from rsnotify_publisher import Publisher, SourceDescription

BASE = "https://source.example/"


async def fetched(_: str) -> bytes:
    return b""


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ({"folder": None}, "folder is of type NoneType; give the path of a folder"),
        ({"base_url": Path("source")}, "base_url is of type PosixPath; give a URL"),
        ({"hubs": "https://hub.example/"}, "hubs is of type str; give a list of URLs"),
        ({"hubs": [5]}, "a hub is of type int"),
        ({"options": {"rotate": "1 h"}}, "options is of type dict; give Options"),
        ({"content": b"text"}, "content is of type bytes; give a function"),
        ({"content": fetched}, "content is an async function, and is not awaited"),
        ({"resources": []}, "resources is of type list; give a function"),
    ],
)
def test_an_argument_of_a_wrong_type_is_refused(given: dict[str, Any], expected: str) -> None:
    arguments: dict[str, Any] = {"folder": "state", "base_url": BASE} | given
    with pytest.raises(ConfigurationError) as caught:
        Publisher(arguments.pop("folder"), arguments.pop("base_url"), **arguments)
    assert expected in str(caught.value)


def test_so_are_the_sets_of_a_source_description(tmp_path: Path) -> None:
    sets: Any
    for sets in (Publisher(tmp_path, BASE), ["state"]):
        with pytest.raises(ConfigurationError, match="give a"):
            SourceDescription(BASE, sets)


def test_a_change_may_be_named_by_its_word(tmp_path: Path) -> None:
    with Publisher(str(tmp_path), BASE) as publisher:
        change: Any = "created"
        (recorded,) = publisher.record([Resource(BASE + "one", change=change)])
        assert recorded.change is ChangeType.CREATED


@pytest.mark.parametrize("change", ["made", None, 5])
def test_a_change_that_is_none_is_refused_with_those_that_there_are(
    tmp_path: Path, change: Any
) -> None:
    one = Resource(BASE + "one", change=change)
    expected = "give one of created, updated, deleted"
    with Publisher(tmp_path, BASE) as publisher, pytest.raises(ConfigurationError, match=expected):
        publisher.record([one])
