"""Settings of a file, of variables and of options: which holds, and how a wrong one is shown."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any, Literal

import pytest
from msgspec import Meta, Struct, field
from typer.testing import CliRunner

import rsnotify_publisher.commands.source_run
from rsnotify.errors import ConfigurationError
from rsnotify.runtime.command_line import application
from rsnotify.runtime.settings import (
    SettingPath,
    Settings,
    SettingsFile,
    Variables,
    convert_settings,
    describe_allowed,
)

_Port = Annotated[int, Meta(ge=0, le=65535)]


class Tuning(Struct, forbid_unknown_fields=True):
    pace: Annotated[float, Meta(gt=0)] = 1.0
    depth: int = 1


class Item(Struct, forbid_unknown_fields=True):
    name: str
    ports: tuple[_Port, ...] = ()


class Example(Struct, forbid_unknown_fields=True):
    port: _Port = 1
    tuning: Tuning = field(default_factory=Tuning)
    item: tuple[Item, ...] = ()


TYPES = {"port": int, "item": tuple[Item, ...]}


def load(text: str, environ: dict[str, str], **options: Any) -> Example:
    variables = Variables("hub", environ, TYPES)
    settings = Settings(SettingsFile("a.toml", text), options, variables, {"tuning": "tune_"})
    with settings.locating():
        return convert_settings(settings.merged, Example)


@pytest.mark.parametrize(
    ("text", "environ", "options", "port"),
    [
        ("", {}, {}, 1),
        ("port = 2", {}, {}, 2),
        ("port = 2", {"RSNOTIFY_HUB_PORT": "3"}, {}, 3),
        ("port = 2", {"RSNOTIFY_HUB_PORT": "3"}, {"port": 4}, 4),
        ("port = 2", {"RSNOTIFY_HUB_PORT": ""}, {"port": None}, 2),
    ],
)
def test_options_go_over_variables_and_these_over_the_file_and_the_defaults(
    text: str, environ: dict[str, str], options: dict[str, Any], port: int
) -> None:
    assert load(text, environ, **options).port == port


def test_an_option_of_a_table_leaves_its_other_settings() -> None:
    found = load("tuning = {pace = 2.0, depth = 2}", {}, tuning={"pace": 3.0, "depth": None})
    assert (found.tuning.pace, found.tuning.depth) == (3.0, 2)


@pytest.mark.parametrize(
    ("text", "environ", "options", "said"),
    [
        ("prt = 1", {}, {}, "a.toml, line 1: prt: there is no such setting; did you mean port?"),
        ("port = -1", {}, {}, "a.toml, line 1: port: it has to be a whole number from 0 to 65,535"),
        (
            "[tuning]\npac = 1",
            {},
            {},
            "a.toml, line 2: [tuning]: pac: there is no such setting; did you mean pace?",
        ),
        (
            "[[item]]\nname = 'x'\nport = 1",
            {},
            {},
            "a.toml, line 3: [[item]] x: port: there is no such setting; did you mean ports?",
        ),
        (
            "[[item]]\nname = 'x'\nports = [\n1,\n-1]",
            {},
            {},
            "a.toml, line 3: [[item]] x: item 2 of ports: it has to be a whole number from 0 to "
            "65,535",
        ),
        ("[[item]]", {}, {}, "a.toml, line 1: [[item]] 1: name: it is missing"),
        ("tuning = 1", {}, {"tuning": {"pace": 2.0}}, "a.toml, line 1: tuning: it has to be a"),
        ("[tuning]\npace = 2", {}, {"tuning": {"pace": 0}}, "--tune-pace: it has to be a number"),
        ("port = 2", {"RSNOTIFY_HUB_PORT": "-3"}, {}, "the variable RSNOTIFY_HUB_PORT: port: it"),
        (
            "port = 2",
            {"RSNOTIFY_HUB_PORT": "-3"},
            {},
            "the variable RSNOTIFY_HUB_PORT: port: it has to",
        ),
        ("", {"RSNOTIFY_HUB_ITEM": "[{}]"}, {}, "the variable RSNOTIFY_HUB_ITEM: [[item]] 1: name"),
        ("port = 2", {"RSNOTIFY_HUB_PORT": "-3"}, {"port": -4}, "--port: it has to be a whole"),
        ("", {}, {"item": [{"name": "x", "ports": 1}]}, "--item: ports: it has to be an array"),
    ],
)
def test_a_wrong_setting_is_reported_where_it_was_set(
    text: str, environ: dict[str, str], options: dict[str, Any], said: str
) -> None:
    with pytest.raises(ConfigurationError) as raised:
        load(text, environ, **options)
    assert str(raised.value).startswith(said)


def test_a_password_in_a_url_does_not_show_in_the_title_of_a_table() -> None:
    text = "[[item]]\nurl = 'https://me:canary@a.example/?password=canary'"
    with pytest.raises(ConfigurationError, match=r"\[\[item\]\] https://a.example/: url") as raised:
        load(text, {})
    assert "canary" not in str(raised.value)


@pytest.mark.parametrize(
    ("variables", "arguments", "gzip", "port"),
    [
        ({}, [], True, 1),
        ({"GZIP": "false", "PORT": "2"}, [], False, 2),
        ({"GZIP": "false", "PORT": "2"}, ["--gzip", "--port", "3"], True, 3),
    ],
)
def test_a_source_has_the_same_order(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    variables: dict[str, str],
    arguments: list[str],
    gzip: bool,
    port: int,
) -> None:
    file = tmp_path / "source.toml"
    file.write_text("port = 1\n[options]\ngzip = true\n[[set]]\nname = 'a'\nfolder = 'a'")
    found: list[Any] = []
    monkeypatch.setattr(
        rsnotify_publisher.commands.source_run,
        "publish",
        lambda _, settings, __: found.append(settings),
    )
    ended = CliRunner().invoke(
        application(),
        ["source", "--config", str(file), *arguments],
        env={f"RSNOTIFY_SOURCE_{name}": value for name, value in variables.items()},
    )
    assert ended.exit_code == 0, ended.output
    (settings,) = found
    assert (settings.options_of(settings.sets[0]).gzip, settings.port) == (gzip, port)


# What a setting may be is said in words, at any depth.


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
        (["name"], "a non-empty string"),
        (["either"], "a whole number or a string"),
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
