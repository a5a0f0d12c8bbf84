"""The options that several commands share, as annotated types for typer."""

from __future__ import annotations

import functools
import inspect
import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, get_type_hints

import typer
from msgspec import Struct
from msgspec.structs import fields

if TYPE_CHECKING:
    from rsnotify_subscriber.fetching.credentials import Credentials


def option(panel: str | None, metavar: str | None, text: str, *flags: str, **settings: Any) -> Any:
    return typer.Option(*flags, metavar=metavar, help=text, rich_help_panel=panel, **settings)


_network = functools.partial(option, "Network")

_URL = typer.Argument(metavar="URL", help="A site, a Capability List, a Change List, ...")
_DEST = typer.Argument(metavar="DEST", help="The folder of the mirror.", file_okay=False)

Url = Annotated[str, _URL]
Dest = Annotated[Path, _DEST]
MaybeUrl = Annotated[str | None, _URL]
MaybeDest = Annotated[Path | None, _DEST]
State = Annotated[
    Path | None,
    option(None, "DIR", "The folder of the state.", show_default="DEST.rsnotify", file_okay=False),
]
Json = Annotated[bool, typer.Option("--json", help="Write JSON.")]

Private = Annotated[
    bool,
    _network(
        None,
        "Let documents name hosts at loopback and private addresses.",
        "--allow-private-addresses",
    ),
]
Login = Annotated[
    str | None,
    _network(
        "USER:PASSWORD",
        "User and password for the Source.",
        envvar="RSNOTIFY_LOGIN",
        allow_from_autoenv=False,
    ),
]
Bearer = Annotated[
    str | None,
    _network(
        "TOKEN",
        "Bearer token for the Source.",
        envvar="RSNOTIFY_BEARER",
        allow_from_autoenv=False,
    ),
]
#: Its environment variable has one header field on each line, so typer must not split it.
Header = Annotated[
    list[str] | None,
    _network(
        "'NAME: VALUE'",
        "Header field to send to the Source; repeatable. RSNOTIFY_HEADER has one a line.",
        allow_from_autoenv=False,
    ),
]


class NetworkArguments(Struct, frozen=True, kw_only=True):
    """The options of the commands that read a Source once; each field is one."""

    allow_private_addresses: Private = False
    login: Login = None
    bearer: Bearer = None
    header: Header = None

    @property
    def credentials(self) -> Credentials:
        return credentials_of(self.login, self.bearer, self.header)


def credentials_of(
    login: str | None, bearer: str | None, header: Sequence[str] | None
) -> Credentials:
    """Return the credentials for a Source; without `header`, the environment has the fields."""
    from rsnotify_subscriber.fetching.credentials import Credentials, parse_header_lines

    lines = os.environ.get("RSNOTIFY_HEADER", "").splitlines() if header is None else header
    headers = parse_header_lines(filter(str.strip, lines))
    return Credentials(login=login, bearer=bearer, headers=headers)


@functools.cache
def _types_of(kind: type[Struct]) -> dict[str, Any]:
    """Return the same types for each command, so that an option is the same everywhere."""
    return get_type_hints(kind, include_extras=True)


def with_arguments(command: Callable[..., None]) -> Callable[..., None]:
    """Replace the parameter `arguments` of a command by a parameter for each field of its type."""
    hints = get_type_hints(command, include_extras=True)
    kind = hints["arguments"]
    options = _types_of(kind)
    parameters = [
        parameter.replace(annotation=hints[name])
        for name, parameter in inspect.signature(command).parameters.items()
        if name != "arguments"
    ] + [
        inspect.Parameter(
            field.name,
            inspect.Parameter.KEYWORD_ONLY,
            default=field.default,
            annotation=options[field.name],
        )
        for field in fields(kind)
    ]
    signature = inspect.Signature(parameters)

    @functools.wraps(command)
    def wrapper(*positional: Any, **named: Any) -> None:
        bound = signature.bind(*positional, **named)
        given = {name: bound.arguments.pop(name) for name in options if name in bound.arguments}
        command(*bound.args, **bound.kwargs, arguments=kind(**given))

    wrapper.__signature__ = signature  # type: ignore[attr-defined]
    wrapper.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
    del wrapper.__wrapped__  # or typer would read the options there
    return wrapper
