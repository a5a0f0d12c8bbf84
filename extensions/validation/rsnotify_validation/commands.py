"""The commands `rsnotify validate`, `rsnotify inspect` and `rsnotify doctor`."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import nullcontext
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, NamedTuple

import msgspec
import typer

from rsnotify.errors import RsnotifyError, counted, without_credentials
from rsnotify.format.datetimes import Instant, format_datetime
from rsnotify.format.model import Capability
from rsnotify.format.writer import Profile
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
from rsnotify.runtime.command_line import option, printable, run_until_stopped, with_arguments
from rsnotify.runtime.command_reports import print_result
from rsnotify_subscriber.commands.follow_options import Json, MaybeUrl, NetworkArguments, Url
from rsnotify_validation.findings import Finding, Severity

if TYPE_CHECKING:
    from rsnotify_validation.document_checker import CheckedDocument, ValidationResult
    from rsnotify_validation.inspection import InspectedDocument

ROLE = "check"


@with_arguments
def validate(
    target: Annotated[
        str,
        typer.Argument(metavar="FILE|URL", help="A document, a package of a dump, or a site."),
    ],
    deep: Annotated[
        bool, typer.Option("--deep", help="Also validate all documents that it leads to.")
    ] = False,
    spec: Annotated[
        Profile, typer.Option(metavar="1.1|1.0", help="The version of ResourceSync.")
    ] = Profile.V1_1,
    json: Json = False,
    junit: JunitFile = None,
    badge: BadgeFile = None,
    *,
    arguments: NetworkArguments,
) -> None:
    """Report the rules that a document or package breaks.

    Exit code 0: valid. 1: not valid. 2: it cannot be read.

    Examples:
        rsnotify validate resourcelist.xml
        rsnotify validate https://source.example/ --deep
        rsnotify validate https://source.example/ --deep --junit source.xml --badge source.svg
    """
    from rich.console import Console
    from rich.text import Text

    from rsnotify_validation.target_validation import validate_target

    check_badge_file(badge)
    credentials = arguments.credentials
    status = Console(stderr=True).status(Text(printable(without_credentials(target))))

    try:
        with status if sys.stderr.isatty() else nullcontext():
            result = run_until_stopped(
                lambda: validate_target(
                    target,
                    deep=deep,
                    spec=spec,
                    allow_private_addresses=arguments.allow_private_addresses,
                    credentials=credentials,
                    progress=lambda name: status.update(Text(printable(name))),
                )
            )
    except RsnotifyError as error:
        write_failure(_BADGE_LABEL, without_credentials(target), str(error), junit, badge)
        raise
    write_reports(list(reported_checks(result)), badge_of(result), junit, badge)
    facts = msgspec.structs.asdict(result) | {"valid": result.valid}
    print_result(facts, validation_lines(result), json=json)
    raise typer.Exit(0 if result.valid else 1)


def validation_lines(result: ValidationResult) -> Iterator[str]:
    if result.found is not None:
        yield f"validating {result.found}, reached from {result.target}"
    for document in result.documents:
        for found in document.findings:
            yield _finding_line(document, found)
        for rule, number in document.more.items():
            yield f"{document.name}: {rule}: {number:,} more"
    counts = (
        (len(result.documents), "document"),
        (result.count(Severity.ERROR), "error"),
        (result.count(Severity.WARNING), "warning"),
    )
    totals = ", ".join(counted(count, what) for count, what in counts)
    yield f"{'valid' if result.valid else 'not valid'}: {totals}"


def reported_checks(result: ValidationResult) -> Iterator[ReportedCheck]:
    """Yield the broken rules of each document, for a JUnit report. Warnings count as skipped."""
    outcomes = {Severity.ERROR: Outcome.FAILED, Severity.WARNING: Outcome.SKIPPED}
    for document in result.documents:
        by_rule: dict[str, list[Finding]] = {}
        for found in document.findings:
            by_rule.setdefault(found.rule, []).append(found)
        for rule, places in by_rule.items():
            first = places[0]
            text = "\n".join(_finding_line(document, found) for found in places)
            outcome = outcomes[first.severity]
            yield ReportedCheck(document.name, rule, outcome, first.section, text)
        if not any(found.is_error for found in document.findings):
            yield ReportedCheck(document.name, "valid")


_BADGE_LABEL = "ResourceSync"


def badge_of(result: ValidationResult) -> Badge:
    errors, warnings = result.count(Severity.ERROR), result.count(Severity.WARNING)
    if errors:
        return Badge(_BADGE_LABEL, counted(errors, "error"), Color.BAD)
    if warnings:
        return Badge(_BADGE_LABEL, f"valid, {counted(warnings, 'warning')}", Color.FAIR)
    return Badge(_BADGE_LABEL, "valid", Color.GOOD)


def _finding_line(document: CheckedDocument, found: Finding) -> str:
    place = document.name if found.line is None else f"{document.name}:{found.line}"
    element = found.element if found.entry is None else f"{found.element}, entry {found.entry}"
    return f"{place}: {found.severity} {found.section} {found.rule}: {found.message} [{element}]"


#: For each capability, the name of the document, and the names of one and of several entries.
_NAMES = {
    Capability.DESCRIPTION: ("Source Description", "set of resources", "sets of resources"),
    Capability.CAPABILITY_LIST: ("Capability List", "capability", "capabilities"),
    Capability.RESOURCE_LIST: ("Resource List", "resource", "resources"),
    Capability.CHANGE_LIST: ("Change List", "change", "changes"),
    Capability.RESOURCE_DUMP: ("Resource Dump", "package", "packages"),
    Capability.CHANGE_DUMP: ("Change Dump", "package", "packages"),
    Capability.RESOURCE_DUMP_MANIFEST: ("Resource Dump Manifest", "resource", "resources"),
    Capability.CHANGE_DUMP_MANIFEST: ("Change Dump Manifest", "change", "changes"),
    Capability.RESOURCE_LIST_ARCHIVE: ("Resource List Archive", "list", "lists"),
    Capability.CHANGE_LIST_ARCHIVE: ("Change List Archive", "list", "lists"),
    Capability.RESOURCE_DUMP_ARCHIVE: ("Resource Dump Archive", "dump", "dumps"),
    Capability.CHANGE_DUMP_ARCHIVE: ("Change Dump Archive", "dump", "dumps"),
    Capability.CHANGE_NOTIFICATION: ("channel", "change", "changes"),
    Capability.FRAMEWORK_NOTIFICATION: ("framework channel", "change", "changes"),
    "robots.txt": ("robots.txt", "Sitemap", "Sitemaps"),
    None: ("Sitemap", "resource", "resources"),
}
_UNITS = (("day", 86_400), ("hour", 3_600), ("minute", 60), ("second", 1))


@with_arguments
def inspect(url: Url, json: Json = False, *, arguments: NetworkArguments) -> None:
    """Show the tree of documents of a Source or of one set of resources.

    Exit code 0: shown. 2: it cannot be inspected at all.

    Examples:
        rsnotify inspect https://source.example/
        rsnotify inspect https://source.example/changelist.xml --json
    """
    from rsnotify_validation.inspection import inspect as inspect_source

    credentials = arguments.credentials
    found = run_until_stopped(
        lambda: inspect_source(
            url,
            allow_private_addresses=arguments.allow_private_addresses,
            credentials=credentials,
        )
    )
    if json:
        print_result(found, (), json=True)
        return
    for line in inspection_lines(found, datetime.now(UTC), _guides()):
        _echo(line)


def _echo(styled: str) -> None:
    # typer removes the styles itself if the output is not a terminal.
    typer.echo(styled, color=False if os.environ.get("NO_COLOR") else None)


class Guides(NamedTuple):
    """The prefixes of lines in a drawn tree.

    A document is preceded by `branch`, or by `last` if it is the last one. The lines below it are
    preceded by `trunk`, or by `nothing` if it is the last one.
    """

    branch: str = "├─ "
    trunk: str = "│  "
    last: str = "└─ "
    nothing: str = "   "


ASCII_GUIDES = Guides("|- ", "|  ", "`- ")


def _guides() -> Guides:
    try:
        "".join(Guides()).encode(sys.stdout.encoding)
    except UnicodeError:
        return ASCII_GUIDES
    return Guides()


def inspection_lines(
    found: InspectedDocument, now: Instant, guides: Guides, first: str = "", rest: str = ""
) -> Iterator[str]:
    """Yield the lines that draw a tree of documents, styled for a terminal.

    `first` is the prefix of the first line, and `rest` the prefix of all other lines.
    """
    uri = typer.style(printable(found.uri), fg="cyan")
    yield f"{first}{typer.style(_title(found), bold=True)}  {uri}"
    beside = rest + (guides.trunk if found.parts else guides.nothing)
    for line in map(printable, _details(found, now)):
        is_wrong = line.startswith("!")
        yield f"{beside} {typer.style(line, fg='red' if is_wrong else None, dim=not is_wrong)}"
    for part in found.parts:
        is_last = part is found.parts[-1]
        lead = (guides.last, guides.nothing) if is_last else (guides.branch, guides.trunk)
        yield from inspection_lines(part, now, guides, rest + lead[0], rest + lead[1])


def _names(found: InspectedDocument) -> tuple[str, str, str]:
    return _NAMES.get(found.capability) or (printable(str(found.capability)), "entry", "entries")


def _title(found: InspectedDocument) -> str:
    name, _, _ = _names(found)
    return f"{name} Index" if found.index else name


def _details(found: InspectedDocument, now: Instant) -> Iterator[str]:
    if found.problem is not None:
        yield f"! {found.problem}"
    for warning in found.warnings:
        yield f"! {warning}"
    if found.entries is not None:
        yield ", ".join(_counts(found))
        yield from _interval(found, now)
    if found.reaches is not None:
        yield _reach(found, *found.reaches, now)
    for link in found.links:
        yield f"{link.rel} {link.uri}"


def _counts(found: InspectedDocument) -> Iterator[str]:
    from rich.filesize import decimal

    _, one, many = _names(found)
    if found.index:
        one, many = "part", "parts"
    count = found.entries or 0
    yield counted(count, one, many)
    if found.changes:
        yield " ".join(f"{number:,} {change}" for change, number in found.changes.items())
    if found.listed_bytes:
        yield f"{decimal(found.listed_bytes)} in total"
    if found.bytes:
        yield f"document of {decimal(found.bytes)}"
    if found.profile:
        yield f"format {found.profile}"
    if found.granularity:
        yield f"datetimes to {found.granularity}"
    if found.unread:
        yield f"{counted(found.unread, 'document')} below not read"


def _interval(found: InspectedDocument, now: Instant) -> Iterator[str]:
    words = ("at", "completed", "from", "until")
    instants = (found.at, found.completed, found.from_, found.until)
    for word, instant in zip(words, instants, strict=True):
        if instant is not None:
            is_open = word == "from" and found.until is None
            yield f"{word} {_with_age(instant, now)}{', open' if is_open else ''}"


def _reach(found: InspectedDocument, earliest: Instant, latest: Instant, now: Instant) -> str:
    if (found.capability or "").endswith("-archive"):
        return f"reaches back to {_with_age(earliest, now)}"
    what = "last change" if found.changes else "newest entry"
    return f"{what} {_with_age(latest, now)}"


def _with_age(instant: Instant, now: Instant) -> str:
    return f"{format_datetime(instant)} ({age(instant, now)})"


def age(instant: Instant, now: Instant) -> str:
    """Return how long ago an instant was, or how far ahead it is, in one unit."""
    seconds = int((now - instant).total_seconds())
    for unit, size in _UNITS:
        if count := abs(seconds) // size:
            span = counted(count, unit)
            return f"{span} ago" if seconds > 0 else f"in {span}"
    return "just now"


@with_arguments
def doctor(
    url: MaybeUrl = None,
    folder: Annotated[
        Path,
        option(None, "DIR", "A folder on the disk to check.", exists=True, file_okay=False),
    ] = Path(),
    port: Annotated[
        list[int] | None,
        option(
            None,
            "PORT",
            "A port that must be free; repeatable.",
            show_default="8080 and 8000, for a hub and a Source",
            min=1,
            max=65535,
        ),
    ] = None,
    json: Json = False,
    *,
    arguments: NetworkArguments,
) -> None:
    """Check this machine, and optionally a Source or hub, and suggest remedies.

    Exit code 1: a check failed.

    Examples:
        rsnotify doctor
        rsnotify doctor https://source.example/
        rsnotify doctor https://hub.example/ --folder . --json
    """
    from rsnotify_validation.doctor import Check, Level, examine, machine_checks

    colors = {Level.OK: "green", Level.WARNING: "yellow", Level.FAILED: "red"}
    checks: list[Check] = []

    def report(check: Check) -> None:
        checks.append(check)
        if not json:
            advice = f"; {check.remedy}" if check.remedy else ""
            line = " ".join(f"{check.found}{advice}".split())  # an error may have several lines
            level = typer.style(f"{check.level:7}", fg=colors[check.level])
            _echo(f"{level}  {check.name:9}  {printable(line)}")

    for check in machine_checks(folder, port):
        report(check)
    if url is not None:
        source, credentials = url, arguments.credentials
        run_until_stopped(
            lambda: examine(
                source,
                report,
                allow_private_addresses=arguments.allow_private_addresses,
                credentials=credentials,
            )
        )
    counts = {level: sum(check.level is level for check in checks) for level in Level}
    summary = ", ".join(f"{count} {level}" for level, count in counts.items() if count)
    passed = not counts[Level.FAILED]
    facts = {"checks": checks, "passed": passed}
    print_result(facts, [f"{counted(len(checks), 'check')}: {summary}"], json=json)
    raise typer.Exit(0 if passed else 1)
