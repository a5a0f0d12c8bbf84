"""The page of the reference with every setting, from the classes of settings.

A setting without a meaning is an error: its class has to describe it in `Args:`, or a command in
the help of the option of that name.
"""

from __future__ import annotations

import inspect
import json
import re
import types
from collections.abc import Mapping
from datetime import datetime
from enum import Enum
from pathlib import Path
from typing import Annotated, Any, Literal, Union, get_args, get_origin, get_type_hints

import msgspec
import typer
from msgspec import Meta, Struct

from rsnotify.runtime.command_line import application
from rsnotify_gateway.adapters.event_streams import EventMapping
from rsnotify_gateway.config import GatewayConfiguration, OriginSettings
from rsnotify_hub.config.configuration import SETTINGS, AdminGrant, PublisherGrant
from rsnotify_publisher.config import FolderSettings, SourceConfiguration
from rsnotify_publisher.options import Options
from rsnotify_subscriber.fleet.configuration import FollowedSource, WebSubSettings
from rsnotify_subscriber.pool import Limits

_EXAMPLE = Path(__file__).parents[2] / "hub/hub.example.toml"
_ARGUMENT = re.compile(r"^    (\w+): (.+?)(?=^    \w|^\S|\Z)", re.DOTALL | re.MULTILINE)
_COMMENTED = re.compile(r"((?:^# .*\n)+)((?:^#[a-z_]+ = .*\n)+)", re.MULTILINE)


def configuration() -> str:
    """Return a table for each place of settings."""
    return "\n\n".join(
        [
            "# Configuration",
            "Files are TOML or JSON. A setting that is unknown or wrong ends the command, which"
            " names file, line and key. Options, and their variables, override the file.",
            "## Hub",
            "`rsnotify hub --config FILE`. A variable is the name with `RSNOTIFY_HUB_` before it,"
            " such as `RSNOTIFY_HUB_LOG_BYTES`.",
            settings_table(SETTINGS, _hub_meanings()),
            "`[[publishers]]`",
            settings_table(PublisherGrant),
            "`[[admins]]`",
            settings_table(
                AdminGrant, {"token_sha256": "The SHA-256 of the bearer token, in hex."}
            ),
            "## Source",
            "`rsnotify source --config FILE`",
            settings_table(SourceConfiguration, _option_meanings("source")),
            "`[[set]]`",
            settings_table(FolderSettings),
            "`[options]`, and `options` of a set; in a program, the arguments of `Options`:",
            settings_table(Options),
            "## Destination",
            "`rsnotify follow --config FILE`. A table `[[source]]` for each; `[defaults]` has the"
            " same settings but `url`, `name` and credentials.",
            settings_table(FollowedSource, _option_meanings("follow")),
            "`[websub]`",
            settings_table(WebSubSettings, _option_meanings("follow", "callback_")),
            "`[limits]`, of all Sources together:",
            settings_table(Limits),
            "## Gateway",
            "`rsnotify gateway FILE`, beside the settings of a Source:",
            settings_table(GatewayConfiguration, {}, without=SourceConfiguration),
            "`[[origin]]`, and `[[follow]]` of a hub:",
            settings_table(OriginSettings),
            "`event` of an origin:",
            settings_table(EventMapping),
        ]
    )


def settings_table(
    kind: type[Struct], others: Mapping[str, str] | None = None, without: type | None = None
) -> str:
    """Return a table of the settings of a class: key, type, default, meaning."""
    hints = get_type_hints(kind, include_extras=True)
    meanings = {**(others or {}), **documented(kind)}
    known = {field.name for field in msgspec.structs.fields(without)} if without else set()
    rows = ["| setting | type | default | meaning |", "| --- | --- | --- | --- |"]
    for field in msgspec.structs.fields(kind):
        if field.name in known:
            continue
        meaning = meanings.get(field.encode_name) or meanings.get(field.name)
        if not meaning:
            raise LookupError(f"{kind.__name__}.{field.name} is described nowhere")
        default = _default(field)
        cells = (f"`{field.encode_name}`", type_name(hints[field.name]), default, meaning)
        rows.append("| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |")
    return "\n".join(rows)


def documented(kind: type) -> dict[str, str]:
    """Return the meanings of fields in the `Args:` of a class and of its bases."""
    meanings: dict[str, str] = {}
    for base in reversed(kind.__mro__):
        _, _, arguments = inspect.cleandoc(vars(base).get("__doc__") or "").partition("Args:\n")
        meanings |= {name: " ".join(text.split()) for name, text in _ARGUMENT.findall(arguments)}
    return meanings


def _hub_meanings() -> dict[str, str]:
    """Return the comments of hub.example.toml, and what only the environment may contain."""
    meanings: dict[str, str] = {}
    for comment, settings in _COMMENTED.findall(_EXAMPLE.read_text()):
        text = " ".join(comment.replace("# ", " ").split())
        meanings |= {line[1:].partition(" ")[0]: text for line in settings.splitlines()}
    secret = "A secret, from the environment only."
    return meanings | {
        "jwt_key": secret,
        "store_password": secret,
        "mqtt_password": secret,
        "xmpp_password": secret,
        "publishers": "Who may publish.",
        "admins": "Who may administer the hub.",
        "follow": "Origins that the hub follows itself.",
    }


def _option_meanings(name: str, prefix: str = "") -> dict[str, str]:
    group: Any = typer.main.get_command(application())
    command = group.get_command(typer.Context(group), name)
    meanings = {}
    for parameter in command.params:
        for opt in getattr(parameter, "opts", []):
            key = opt.lstrip("-").replace("-", "_")
            if key.startswith(prefix) and getattr(parameter, "help", None):
                meanings[key.removeprefix(prefix)] = parameter.help
    return meanings


def _default(field: Any) -> str:
    value = field.default
    if field.default_factory is not msgspec.NODEFAULT:
        value = field.default_factory()
    if value is msgspec.NODEFAULT:
        return "required"
    if value is None or value == () or value == {}:
        return "none"
    return f"`{json.dumps(value, default=list)}`"


def type_name(hint: Any) -> str:
    """Return a type in the words of a file."""
    origin, arguments = get_origin(hint), get_args(hint)
    if origin is Annotated:
        limits = [each for each in arguments[1:] if isinstance(each, Meta)]
        return " ".join([type_name(arguments[0]), *filter(None, map(_limits, limits))])
    if origin in (Union, types.UnionType):
        return " or ".join(type_name(each) for each in arguments if each is not types.NoneType)
    if origin is Literal:
        return ", ".join(f"`{each}`" for each in arguments)
    if origin in (tuple, list):
        return f"array of {type_name(arguments[0])}"
    if origin is dict or hint is dict:
        return "table"
    if isinstance(hint, type) and issubclass(hint, Enum):
        return ", ".join(f"`{each.value}`" for each in hint)
    if isinstance(hint, type) and issubclass(hint, Struct):
        return "table"
    return _NAMES[hint]


_NAMES = {
    str: "text",
    int: "integer",
    float: "number",
    bool: "true or false",
    bytes: "Base64",
    datetime: "datetime",
}


def _limits(meta: Meta) -> str:
    above = [f"> {meta.gt:,}"] if meta.gt is not None else []
    least = [f"≥ {meta.ge:,}"] if meta.ge is not None else []
    most = [f"≤ {meta.le:,}"] if meta.le is not None and meta.le < 10**8 else []
    return ", ".join(above + least + most)
