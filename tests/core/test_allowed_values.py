"""What a setting may be is said in words, at any depth."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated, Literal

import pytest
from msgspec import Meta, Struct

from rsnotify.runtime.settings import SettingPath, describe_allowed


class Colour(StrEnum):
    RED = "red"
    BLUE = "blue"


class Inner(Struct):
    port: Annotated[int, Meta(ge=1, le=65535)] | None = None
    code: Annotated[str, Meta(pattern="^a$", description="the letter a")] = "a"


class Outer(Struct):
    seconds: Annotated[float, Meta(gt=0)] = 1
    share: Annotated[float, Meta(ge=0.5)] = 1
    colours: tuple[Colour, ...] = ()
    version: Literal["5", "3.1.1"] = "5"
    on: bool = True
    name: Annotated[str, Meta(min_length=1)] = "x"
    either: int | str = 1
    inner: list[Inner] = []


@pytest.mark.parametrize(
    ("path", "said"),
    [
        (["seconds"], "a number above 0"),
        (["share"], "a number of at least 0.5"),
        (["colours"], "an array of one of red, blue"),
        (["colours", 1], "one of red, blue"),
        (["version"], 'one of "3.1.1", "5"'),
        (["on"], "true or false"),
        (["name"], "a text that is not empty"),
        (["either"], "a whole number or a text"),
        (["inner"], "an array of tables"),
        (["inner", 0], "a table"),
        (["inner", 0, "port"], "a whole number from 1 to 65,535"),
        (["inner", 0, "code"], "the letter a"),
        (["inner", 0, "gone"], None),
        (["on", "deeper"], None),
    ],
)
def test_the_allowed_values_are_described_by_type(path: SettingPath, said: str | None) -> None:
    assert describe_allowed(Outer, path) == said
