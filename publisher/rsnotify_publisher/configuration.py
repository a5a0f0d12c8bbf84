"""The settings of `rsnotify source`: a file (TOML or JSON), and options of the command on top."""

from __future__ import annotations

from pathlib import Path as FilePath
from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta, Struct

from rsnotify.errors import ConfigurationError, WrongOption
from rsnotify.runtime.config.files import decode_settings, read_text
from rsnotify.runtime.config.line_numbers import SettingPath, line_of
from rsnotify.runtime.config.wrong_setting import WrongSetting, wrong_setting_from
from rsnotify.runtime.mqtt.login import BrokerLogin
from rsnotify_publisher.options import Options
from rsnotify_publisher.push.hubs import Hub, check_token, parse_hubs


class _Tuning(Options, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Options as a file gives them."""


class FolderSet(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A set of resources that are the files of a folder.

    Args:
        name: Distinguishes it from the others.
        folder: The folder.
        base_url: URL of the folder for others; by default the name below that of the Source.
        described_by: A document about this set, if there is one.
        options: Tuning of this set; what is not said here is as in the Source's own `options`.
    """

    name: Annotated[
        str,
        Meta(
            pattern=r"^[A-Za-z0-9_-]+(\.[A-Za-z0-9_-]+)*$",
            description="a text of letters, digits, _ and -, with single dots between them",
        ),
    ]
    folder: str
    base_url: str | None = None
    described_by: str | None = None
    options: dict[str, Any] = {}


class Configuration(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """All settings.

    Args:
        base_url: URL of the Source for others; by default from host and port.
        host: The address to listen on.
        port: The port to listen on; 0 takes a free one.
        hubs: URLs of hubs to push to.
        advertise: URLs of these hubs for Destinations, where they are others.
        token: Bearer token for the hubs, a secret.
        mqtt_user: User at those of them that are MQTT brokers.
        mqtt_password: Password of that user, a secret.
        mqtt_ca: A file with the certificates that a broker's has to come from.
        mqtt_certificate: A file with the certificate to show to a broker.
        mqtt_key: A file with the private key of that.
        mqtt_version: The version of MQTT.
        data: The folder for the state.
        described_by: A document about the Source, if there is one.
        options: Tuning of all sets.
        sets: The sets of resources, `[[set]]` in TOML.
    """

    base_url: str | None = None
    host: str = "127.0.0.1"
    port: Annotated[int, Meta(ge=0, le=65535)] = 8000
    hubs: tuple[str, ...] = ()
    advertise: tuple[str, ...] = ()
    token: str | None = None
    mqtt_user: str | None = None
    mqtt_password: str | None = None
    mqtt_ca: str | None = None
    mqtt_certificate: str | None = None
    mqtt_key: str | None = None
    mqtt_version: Literal["5", "3.1.1"] = "5"
    data: str | None = None
    described_by: str | None = None
    options: dict[str, Any] = {}
    sets: tuple[FolderSet, ...] = msgspec.field(default=(), name="set")

    def __repr__(self) -> str:
        """Return what may be logged."""
        return f"Configuration(base_url={self.base_url!r}, sets={self.sets})"

    def known_hubs(self) -> tuple[Hub, ...]:
        """Return the hubs.

        Raises:
            ConfigurationError: A URL is unusable.
        """
        login = BrokerLogin(
            user=self.mqtt_user,
            password=self.mqtt_password,
            ca=self.mqtt_ca,
            certificate=self.mqtt_certificate,
            key=self.mqtt_key,
        )
        return parse_hubs(
            self.hubs, self.token, self.advertise, login=login, version=self.mqtt_version
        )

    def options_of(self, one: FolderSet | None = None) -> Options:
        """Return the options of one set, or of a Source that is one set.

        Raises:
            ConfigurationError: An option is unknown or wrong.
        """
        given = self.options | (one.options if one else {})
        try:
            return msgspec.convert(given, _Tuning)
        except msgspec.ValidationError as error:
            # Those of the file were checked when it was read, so one was given to the command.
            wrong = wrong_setting_from(str(error), _Tuning)
            raise WrongOption(wrong.name, wrong.reason) from None


def load_configuration(path: FilePath | None, **settings: Any) -> Configuration:
    """Read the file, and put settings over it.

    Args:
        path: A file ending in .toml or .json; None for the defaults.
        settings: Settings that were given by other means; None says that one was not. Those in
            `options` go over the options of every set.

    Raises:
        ConfigurationError: The file cannot be read, or a setting is unknown or wrong.
    """
    found: dict[str, Any] = {}
    text = ""
    if path is not None:
        text = read_text(path)
        found = decode_settings(path, text)
    options = _given(settings.pop("options", {}))
    given = _given(settings)
    try:
        read = _read(found | given)
    except WrongSetting as wrong:
        if path is None or wrong.path[0] in given:
            raise WrongOption(str(wrong.path[0]), wrong.reason) from None
        raise _told(path, text, found, wrong) from None
    check_token(read.token)
    return msgspec.structs.replace(
        read,
        options=read.options | options,
        sets=tuple(
            msgspec.structs.replace(one, options=one.options | options) for one in read.sets
        ),
    )


def _read(settings: dict[str, Any]) -> Configuration:
    try:
        read = msgspec.convert(settings, Configuration)
    except msgspec.ValidationError as error:
        raise wrong_setting_from(str(error), Configuration) from None
    _check_tuning(read.options, ("options",))
    for number, one in enumerate(read.sets):
        _check_tuning(one.options, ("set", number, "options"))
    return read


def _check_tuning(options: dict[str, Any], table: SettingPath) -> None:
    try:
        msgspec.convert(options, _Tuning)
    except msgspec.ValidationError as error:
        raise wrong_setting_from(str(error), _Tuning, table) from None


def _told(
    file: FilePath, text: str, found: dict[str, Any], wrong: WrongSetting
) -> ConfigurationError:
    """Tell what is wrong in one sentence: file and line, table, key, and what may be there."""
    first, *rest = wrong.path
    line = line_of(text, wrong.path)
    place = [str(file) if line is None else f"{file}, line {line}"]
    if first == "set" and rest:
        number, *rest = rest
        name = found["set"][number].get("name") if isinstance(found["set"][number], dict) else None
        place.append(f"[[set]] {name if isinstance(name, str) else int(number) + 1}")
    elif rest:
        place.append(f"[{first}]")
    else:
        place.append(str(first))
    return ConfigurationError(": ".join([*place, *map(str, rest), wrong.reason]))


def _given(settings: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in settings.items() if value is not None}
