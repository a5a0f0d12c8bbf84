"""The generated reference: it has every command, setting, public name and operation."""

from __future__ import annotations

import ast
import importlib
import inspect
import re
from collections.abc import Iterator
from typing import Any

import msgspec
import pytest
import typer

from docs.hooks import reference, settings
from rsnotify.runtime.command_line import application
from rsnotify_gateway.config import GatewayConfiguration, OriginSettings
from rsnotify_hub.admin.operations import OPERATIONS, PREFIX
from rsnotify_hub.config.configuration import SETTINGS
from rsnotify_publisher import Options
from rsnotify_publisher.config import FolderSettings, SourceConfiguration
from rsnotify_subscriber import Limits
from rsnotify_subscriber.fleet.configuration import FollowedSource, WebSubSettings
from tests.reader import ROOT, fences_of
from tests.test_command_line import commands
from tests.test_docs import ALL_PAGES, REFERENCE, options


def test_every_command_is_there_with_its_options():
    page = reference.command_line()
    found = list(commands(typer.main.get_command(application()), ("rsnotify",)))
    assert len(found) > 20
    for path, command in found:
        words = " ".join(path)
        (section,) = re.findall(rf"^##+ {words}\n(.*?)(?=^##|\Z)", page, re.DOTALL | re.MULTILINE)
        if hasattr(command, "list_commands"):
            continue  # its options are those of its subcommands, too
        for option in options(command):
            assert option in section, words
    anchors = re.findall(r"\{ #(\S+) \}", page)
    assert len(anchors) == len(set(anchors)) > 200


@pytest.mark.parametrize(
    "kind",
    [
        *(SETTINGS, SourceConfiguration, FolderSettings, Options, FollowedSource),
        *(WebSubSettings, Limits, GatewayConfiguration, OriginSettings),
    ],
)
def test_every_setting_is_there_with_its_type_and_meaning(kind: type[msgspec.Struct]):
    page = settings.configuration()
    for field in msgspec.structs.fields(kind):
        rows = re.findall(rf"^\| `{field.encode_name}` \| (.+) \| (.+) \| (.+) \|$", page, re.M)
        assert rows, field.name
        assert all(len(meaning) > 10 for _, _, meaning in rows), field.name


def test_a_setting_without_a_meaning_is_an_error():
    class Undescribed(msgspec.Struct):
        """Settings."""

        here: int = 1

    with pytest.raises(LookupError, match=r"Undescribed\.here is described nowhere"):
        settings.settings_table(Undescribed)


def names() -> dict[str, Any]:
    """Return what the pages on Python describe, by the full name."""
    pages = "\n".join((ROOT / page).read_text() for page in REFERENCE)
    found = re.findall(r"^::: (.+)\.(\w+)$", pages, re.MULTILINE)
    return {
        f"{module}.{name}": getattr(importlib.import_module(module), name) for module, name in found
    }


def test_every_public_name_is_there_and_has_a_docstring():
    described = names()
    for module in (
        "rsnotify",
        "rsnotify_publisher",
        "rsnotify_subscriber",
        "rsnotify_relay",
        "rsnotify_gateway",
    ):
        for name in importlib.import_module(module).__all__:
            assert f"{module}.{name}" in described
    for name, value in described.items():
        assert inspect.getdoc(value), name


def test_a_class_whose_members_are_listed_has_all_of_them():
    listed = re.compile(r"^::: (\S+)\.(\w+)\n    options:\n      members: \[(.*?)\]", re.M | re.S)
    found = listed.findall("\n".join((ROOT / page).read_text() for page in REFERENCE))
    assert len(found) >= 3
    for module, name, members in found:
        of_class = vars(getattr(importlib.import_module(module), name))
        described = {one for one, value in of_class.items() if inspect.getdoc(value)}
        public = {one for one in described if not one.startswith("_")}
        assert set(re.findall(r"\w+", members)) >= public, name


def test_every_public_name_has_an_example_on_its_page():
    deprecated = {
        name for name, value in names().items() if str(value.__doc__).startswith("Deprecated")
    }
    for page in REFERENCE:
        text = (ROOT / page).read_text()
        used = {name for _, body in fences_of(text) for name in imported(body)}
        assert set(re.findall(r"^::: (\S+)$", text, re.MULTILINE)) - deprecated <= used, page


def imported(program: str) -> Iterator[str]:
    for node in ast.walk(ast.parse(program)):
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("rsnotify"):
            yield from (f"{node.module}.{one.name}" for one in node.names)


def test_every_name_that_a_program_of_a_page_imports_is_there():
    # A union of types is described by its parts.
    described = {*names(), "rsnotify_subscriber.events.Event"}
    for page in ALL_PAGES:
        for language, body in fences_of((ROOT / page).read_text()):
            if language == "python":
                assert set(imported(body)) <= described, page


def test_every_operation_of_the_admin_api_is_there():
    page = reference.admin_api()
    for operation in OPERATIONS:
        assert f"## {operation.method} {PREFIX}{operation.path}\n" in page
        assert operation.summary in page
    for name in re.findall(r"\]\(#(\w+)\)", page):
        assert re.search(rf"^##+ {name}$", page, re.MULTILINE | re.IGNORECASE), name
