"""The dashboard reads fields of the admin API by the names that the API has for them.

Names in the JavaScript are in camel case, so those with an underscore are names of fields.
"""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import rsnotify_hub.admin
from rsnotify_hub.admin.openapi import describe_api
from rsnotify_hub.admin.schemas import MinuteInfo

STATIC = Path(rsnotify_hub.admin.__file__).with_name("static")
FIELDS = {
    name
    for schema in describe_api("1")["components"]["schemas"].values()
    for name in schema.get("properties", {})
}


@pytest.mark.parametrize("path", sorted(STATIC.glob("*.js")), ids=lambda path: path.stem)
def test_each_field_that_a_script_names_exists(path: Path):
    assert {*re.findall(r"\b[a-z]+(?:_[a-z]+)+\b", path.read_text())} <= FIELDS


def test_the_columns_of_a_minute_are_those_of_the_api():
    columns = re.search(
        r"const COLUMNS = (.+?);", (STATIC / "chart-data.js").read_text(), re.DOTALL
    )
    assert columns is not None
    assert re.findall(r'"(\w+)"', columns[1]) == [*MinuteInfo.__struct_fields__]
