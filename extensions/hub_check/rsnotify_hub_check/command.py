"""The command `rsnotify-hub-check`, which checks a WebSub hub against the Recommendation."""

from __future__ import annotations

import asyncio
import sys
from typing import Annotated

import typer

from rsnotify.errors import ConfigurationError
from rsnotify.runtime.cli.commands import Command, option
from rsnotify.runtime.cli.running import complain, printable
from rsnotify_hub_check.checks import ALL
from rsnotify_hub_check.endpoints import serve_endpoints
from rsnotify_hub_check.outcomes import CheckResult, RequirementBroken
from rsnotify_hub_check.registry import ConformanceCheck
from rsnotify_hub_check.report import as_json, conforms, line, summary
from rsnotify_hub_check.run import run_checks
from rsnotify_hub_check.settings import CheckSettings, PublishMethod

#: The groups of options in the help.
_PUBLISHING = "Publishing"
_TIMES = "Times"

app = typer.Typer(pretty_exceptions_enable=False, rich_markup_mode=None)


@app.command(cls=Command, context_settings={"help_option_names": ["--help", "-h"]})
def check(
    url: Annotated[str, typer.Argument(help="The hub's URL, as topics advertise it.")],
    listen: Annotated[
        str,
        option("HOST:PORT", "Address for requests of the hub: HOST:PORT; port 0 uses a free one."),
    ] = "127.0.0.1:0",
    base_url: Annotated[
        str | None,
        option("URL", "URL of that address for the hub.", show_default="http://HOST:PORT"),
    ] = None,
    publish: Annotated[
        PublishMethod,
        option(
            "ping|url|topic|content",
            "How to publish: a ping with hub.url and hub.topic, with one of them, or the content.",
            _PUBLISHING,
        ),
    ] = PublishMethod.PING,
    publish_url: Annotated[
        str | None, option("URL", "Where to publish.", _PUBLISHING, show_default="the hub's URL")
    ] = None,
    token: Annotated[
        str | None,
        option(
            "TOKEN",
            "A bearer token for publishing.",
            _PUBLISHING,
            envvar="RSNOTIFY_HUB_CHECK_TOKEN",
        ),
    ] = None,
    denied_topic: Annotated[
        str | None, option("URL", "A topic for which the hub denies subscriptions.")
    ] = None,
    patience: Annotated[
        float, option("SECONDS", "Seconds to wait for an expected request.", _TIMES, min=0.1)
    ] = 10.0,
    quiet: Annotated[
        float, option("SECONDS", "Seconds to wait for an unexpected request.", _TIMES, min=0.1)
    ] = 2.0,
    settle: Annotated[
        float,
        option(
            "SECONDS", "Seconds that the hub may need to process a verification.", _TIMES, min=0.05
        ),
    ] = 1.0,
    retry: Annotated[
        float, option("SECONDS", "Seconds to wait for a repeated delivery.", _TIMES, min=0.1)
    ] = 60.0,
    at_once: Annotated[int, option("N", "How many checks run at the same time.", min=1)] = 4,
    only: Annotated[
        list[str] | None, option("NAME", "A check's name, or a part of it; may be repeated.")
    ] = None,
    strict: Annotated[
        bool, typer.Option("--strict", help="Also fail for requirements of the level SHOULD.")
    ] = False,
    json: Annotated[bool, typer.Option("--json", help="Print the results as JSON.")] = False,
) -> None:
    """Check a WebSub hub against the W3C Recommendation, from outside.

    Exit code 0: it meets all requirements. 1: it does not. 2: it could not be checked.

    Examples:
        rsnotify-hub-check https://hub.example/
        rsnotify-hub-check https://hub.example/ --publish content --only signature
    """
    if not url.startswith(("http://", "https://")):
        raise complain(f"{url!r} is not an http or https URL", 2)
    settings = CheckSettings(
        hub=url,
        publish_url=publish_url,
        publish_method=publish,
        token=token,
        patience=patience,
        quiet=quiet,
        settle=settle,
        retry=retry,
        denied_topic=denied_topic,
    )
    chosen = _chosen(only or [""])
    results = asyncio.run(
        _run(chosen, settings, _address(listen), base_url, at_once, verbose=not json)
    )
    if json:
        typer.echo(as_json(url, results, strict=strict))
    else:
        typer.echo(summary(results))
    raise typer.Exit(0 if conforms(results, strict=strict) else 1)


async def _run(
    chosen: list[ConformanceCheck],
    settings: CheckSettings,
    address: tuple[str, int],
    base: str | None,
    at_once: int,
    *,
    verbose: bool,
) -> list[CheckResult]:
    results = []
    try:
        host, port = address
        async with serve_endpoints(settings.hub, host=host, port=port, base=base) as endpoints:
            async for result in run_checks(chosen, settings, endpoints, at_once=at_once):
                results.append(result)
                if verbose:
                    typer.echo("\n".join(map(printable, line(result).split("\n"))))
    except RequirementBroken as broken:
        raise complain(f"the hub at {settings.hub} cannot be checked: {broken}", 2) from None
    except ConfigurationError as error:
        raise complain(error, 2) from None
    return results


def _chosen(parts: list[str]) -> list[ConformanceCheck]:
    chosen = [each for each in ALL if any(part in each.name for part in parts)]
    if not chosen:
        raise complain(f"no check has {' or '.join(parts)} in its name", 2)
    return chosen


def _address(text: str) -> tuple[str, int]:
    host, _, port = text.rpartition(":")
    if not (host and port.isascii() and port.isdigit() and int(port) < 65536):
        raise complain(f"--listen {text!r} is not HOST:PORT", 2)
    return host.strip("[]"), int(port)


def main() -> None:
    sys.exit(app())
