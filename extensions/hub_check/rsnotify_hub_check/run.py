"""The command `rsnotify-hub-check`: runs the checks, and reports the results as text or JSON."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterable, Sequence
from functools import partial
from typing import Annotated

import aiohttp
import msgspec
import typer

from rsnotify import __version__
from rsnotify.errors import ConfigurationError, WrongOption, counted
from rsnotify.runtime.command_check_reports import (
    Badge,
    BadgeFile,
    Color,
    JunitFile,
    Outcome,
    ReportedCheck,
    check_badge_file,
    write_failure,
    write_reports,
)
from rsnotify.runtime.command_line import Command, complain, option, printable, run_application
from rsnotify_hub_check import distribution_checks, subscribing_checks  # noqa: F401 (they register)
from rsnotify_hub_check.hub_under_test import (
    CHECKS,
    CheckSettings,
    ConformanceCheck,
    HubUnderTest,
    PublishMethod,
)
from rsnotify_hub_check.outcomes import (
    CheckResult,
    CheckVerdict,
    Inconclusive,
    RequirementBroken,
    RequirementLevel,
)
from rsnotify_hub_check.simulated_endpoints import SimulatedEndpoints, serve_endpoints

#: All checks, in the order of the Recommendation.
ALL = tuple(
    sorted(CHECKS.values(), key=lambda check: [int(part) for part in check.section.split(".")])
)


async def run_check(check: ConformanceCheck, hub: HubUnderTest) -> CheckResult:
    loop = asyncio.get_running_loop()
    begin = loop.time()
    verdict, reason = CheckVerdict.PASSED, ""
    try:
        await check.run(hub)
    except RequirementBroken as broken:
        verdict, reason = CheckVerdict.FAILED, str(broken)
    except Inconclusive as inconclusive:
        verdict, reason = CheckVerdict.INCONCLUSIVE, str(inconclusive)
    except Exception as error:  # an unexpected error must not prevent the other checks
        verdict = CheckVerdict.FAILED
        reason = f"the check raised an error: {type(error).__name__}: {error}"
    seconds = loop.time() - begin
    return CheckResult(
        check.name, check.section, check.level, check.rocks, check.title, verdict, reason, seconds
    )


async def run_checks(
    checks: Iterable[ConformanceCheck],
    settings: CheckSettings,
    endpoints: SimulatedEndpoints,
    *,
    at_once: int,
) -> AsyncIterator[CheckResult]:
    """Run checks, each with its own topics and callbacks, and yield the results in order.

    Raises:
        RequirementBroken: The hub cannot be reached, or accepts no publications.
    """
    limit = asyncio.Semaphore(at_once)
    async with aiohttp.ClientSession() as session:
        hub = HubUnderTest(settings, endpoints, session)
        await hub.check_reachable()

        async def run(check: ConformanceCheck) -> CheckResult:
            async with limit:
                return await run_check(check, hub)

        async with asyncio.TaskGroup() as group:
            for task in [group.create_task(run(check)) for check in checks]:
                yield await task
        await hub.unsubscribe_all()


_MARKS = {CheckVerdict.PASSED: "ok", CheckVerdict.FAILED: "FAILED", CheckVerdict.INCONCLUSIVE: "?"}


def _required(strict: bool) -> set[RequirementLevel]:
    return {RequirementLevel.MUST, RequirementLevel.SHOULD} if strict else {RequirementLevel.MUST}


def conforms(results: Sequence[CheckResult], *, strict: bool = False) -> bool:
    """Return whether a hub breaks no MUST and, if `strict`, no SHOULD requirement."""
    levels = _required(strict)
    return not any(each.verdict is CheckVerdict.FAILED and each.level in levels for each in results)


def report_checks(hub: str, results: Iterable[CheckResult], *, strict: bool) -> list[ReportedCheck]:
    """Convert results for JUnit, where failed optional and inconclusive checks are skipped."""
    levels = _required(strict)
    outcomes = {CheckVerdict.PASSED: Outcome.PASSED, CheckVerdict.INCONCLUSIVE: Outcome.SKIPPED}
    return [
        ReportedCheck(
            hub,
            each.name,
            outcomes.get(each.verdict, Outcome.FAILED if each.level in levels else Outcome.SKIPPED),
            f"WebSub §{each.section}, {each.level}",
            f"{each.reason}\nWebSub §{each.section}, {each.level}: {each.title}",
            each.seconds,
        )
        for each in results
    ]


#: The label of the badge.
_LABEL = "WebSub hub"


def badge_of(results: Sequence[CheckResult], *, strict: bool) -> Badge:
    """Return a badge that shows whether a hub conforms, or how many requirements it breaks."""
    verdicts = [each.verdict for each in results if each.level in _required(strict)]
    if broken := verdicts.count(CheckVerdict.FAILED):
        return Badge(_LABEL, f"breaks {counted(broken, 'requirement')}", Color.BAD)
    undecided = verdicts.count(CheckVerdict.INCONCLUSIVE)
    more = f", {undecided} undecided" if undecided else ""
    return Badge(_LABEL, f"conforms{more}", Color.GOOD)


def format_result(result: CheckResult) -> str:
    mark = _MARKS[result.verdict]
    if result.level is RequirementLevel.MAY and result.verdict is CheckVerdict.FAILED:
        mark = "no"
    rocks = f" [{', '.join(map(str, result.rocks))}]" if result.rocks else ""
    text = f"{mark:6}  {result.level:6}  §{result.section:5}  {result.name}{rocks}: {result.title}"
    return f"{text}\n        {result.reason}" if result.reason else text


def format_summary(results: Sequence[CheckResult]) -> str:
    """Return a line with the number of passed checks at each level."""
    parts = []
    for level in RequirementLevel:
        these = [each for each in results if each.level is level]
        passed = sum(each.verdict is CheckVerdict.PASSED for each in these)
        parts.append(f"{level} {passed} of {len(these)}")
    inconclusive = sum(each.verdict is CheckVerdict.INCONCLUSIVE for each in results)
    return ", ".join(parts) + (f"; {inconclusive} inconclusive" if inconclusive else "")


#: The group of the publishing options in the help.
_PUBLISHING = "Publishing"

_times = partial(option, "Times", advanced=True)

app = typer.Typer(pretty_exceptions_enable=False, rich_markup_mode=None)


@app.command(cls=Command, context_settings={"help_option_names": ["--help", "-h"]})
def check(
    url: Annotated[
        str, typer.Argument(metavar="URL", help="The hub's URL, as topics advertise it.")
    ],
    listen: Annotated[
        str,
        option(
            None,
            "HOST:PORT",
            "Address for the hub's requests: HOST:PORT; port 0 selects a free one.",
        ),
    ] = "127.0.0.1:0",
    base_url: Annotated[
        str | None,
        option(
            None,
            "URL",
            "URL at which the hub reaches that address.",
            show_default="http://HOST:PORT",
        ),
    ] = None,
    publish: Annotated[
        PublishMethod,
        option(
            _PUBLISHING,
            "ping|url|topic|content",
            "How to publish: a ping with hub.url and hub.topic, or one of them, or the content.",
        ),
    ] = PublishMethod.PING,
    publish_url: Annotated[
        str | None,
        option(_PUBLISHING, "URL", "Where to publish.", show_default="the hub's URL"),
    ] = None,
    token: Annotated[
        str | None,
        option(
            _PUBLISHING,
            "TOKEN",
            "A bearer token for publishing.",
            envvar="RSNOTIFY_HUB_CHECK_TOKEN",
        ),
    ] = None,
    denied_topic: Annotated[
        str | None, option(None, "URL", "A topic for which the hub denies subscriptions.")
    ] = None,
    patience: Annotated[
        float, _times("SECONDS", "How long to wait for an expected request.", min=0.1)
    ] = 10.0,
    quiet: Annotated[
        float, _times("SECONDS", "How long to wait for an unexpected request.", min=0.1)
    ] = 2.0,
    settle: Annotated[
        float,
        _times("SECONDS", "How long the hub may need to process a verification.", min=0.05),
    ] = 1.0,
    retry: Annotated[
        float, _times("SECONDS", "How long to wait until a failed delivery is retried.", min=0.1)
    ] = 60.0,
    at_once: Annotated[int, option(None, "N", "Number of checks to run concurrently.", min=1)] = 4,
    only: Annotated[
        list[str] | None, option(None, "NAME", "A check's name or a part of it; can be repeated.")
    ] = None,
    strict: Annotated[
        bool, typer.Option("--strict", help="Also fail if a SHOULD requirement is broken.")
    ] = False,
    json: Annotated[bool, typer.Option("--json", help="Print the results as JSON.")] = False,
    junit: JunitFile = None,
    badge: BadgeFile = None,
) -> None:
    """Check over HTTP whether a WebSub hub conforms to the W3C Recommendation.

    Exit code 0: it meets all requirements. 1: it does not. 2: it could not be checked.

    Examples:
        rsnotify-hub-check https://hub.example/
        rsnotify-hub-check https://hub.example/ --token TOKEN --strict
        rsnotify-hub-check https://hub.example/ --junit hub.xml --badge hub.svg
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
    check_badge_file(badge)
    if badge is not None and only:
        raise WrongOption("badge", "it represents all checks; omit --only")
    try:
        results = asyncio.run(
            _run(chosen, settings, _address(listen), base_url, at_once, verbose=not json)
        )
    except (RequirementBroken, ConfigurationError) as error:
        text = str(error)
        if isinstance(error, RequirementBroken):
            text = f"the hub at {url} cannot be checked: {error}"
        write_failure(_LABEL, url, text, junit, badge)
        raise complain(text, 2) from None
    checks = report_checks(url, results, strict=strict)
    write_reports(checks, badge_of(results, strict=strict), junit, badge)
    is_conforming = conforms(results, strict=strict)
    if json:
        suite = f"rsnotify {__version__}"
        report = {"suite": suite, "hub": url, "conforms": is_conforming, "checks": results}
        typer.echo(msgspec.json.format(msgspec.json.encode(report), indent=2))
    else:
        typer.echo(format_summary(results))
    raise typer.Exit(0 if is_conforming else 1)


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
    host, port = address
    async with serve_endpoints(settings.hub, host=host, port=port, base=base) as endpoints:
        async for result in run_checks(chosen, settings, endpoints, at_once=at_once):
            results.append(result)
            if verbose:
                typer.echo("\n".join(map(printable, format_result(result).split("\n"))))
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
    run_application(app, "rsnotify-hub-check")
