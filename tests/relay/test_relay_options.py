"""A relay follows as `rsnotify follow` does, with the same options."""

from __future__ import annotations

import inspect
from pathlib import Path

import pytest
from msgspec.structs import fields
from typer.testing import CliRunner

from rsnotify.errors import ConfigurationError
from rsnotify.runtime.command_line import application
from rsnotify_relay import Relay
from rsnotify_relay.command import relay
from rsnotify_subscriber import FollowOptions, Via
from rsnotify_subscriber.commands.follow import follow
from rsnotify_subscriber.commands.follow_options import FollowArguments

SOURCE = "https://source.example/"


def test_a_relay_has_every_option_of_following() -> None:
    ours, theirs = (inspect.signature(command).parameters for command in (relay, follow))
    how = {one.name for one in fields(FollowArguments)}
    assert {"hubs", "spread", "rate", "callback_lease", "mqtt_session"} <= how
    assert {name: ours[name] for name in how} == {name: theirs[name] for name in how}


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (("--callback-url", "https://relay.example/callback"), "with --callback-port"),
        (("--mqtt-version", "4"), 'it has to be one of "3.1.1", "5"'),
        (("--type", "turtle"), "turtle"),
    ],
)
def test_the_options_reach_the_subscriber(
    tmp_path: Path, options: tuple[str, ...], said: str
) -> None:
    arguments = ["relay", SOURCE, str(tmp_path / "copy"), "--port", "0", *options]
    ended = CliRunner().invoke(application(), arguments)
    assert isinstance(ended.exception, ConfigurationError)
    assert said in str(ended.exception)


def test_the_number_of_hubs_reaches_the_subscriber(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="hubs is 0"):
        Relay(
            SOURCE, tmp_path, "https://relay.example/", follow=FollowOptions(via=Via.AUTO, hubs=0)
        )


def test_an_impossible_value_is_refused_by_its_option(tmp_path: Path) -> None:
    arguments = ["relay", SOURCE, str(tmp_path / "copy"), "--rate", "0"]
    ended = CliRunner().invoke(application(), arguments)
    assert ended.exit_code == 2
    assert "--rate" in ended.output
