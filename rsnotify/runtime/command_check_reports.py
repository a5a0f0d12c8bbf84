"""Writes the results of checks as JUnit XML for CI systems, or as a badge for web pages.

The XML is restricted to the common subset of the schemas of Ant (windyroad/JUnit-Schema) and
Jenkins (junit-4 and junit-10), which all readers accept.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import UTC, datetime
from enum import StrEnum
from pathlib import Path
from typing import Annotated
from xml.sax.saxutils import escape, quoteattr

import msgspec
from msgspec import Struct

from rsnotify import __version__
from rsnotify.errors import ConfigurationError, WrongOption
from rsnotify.runtime.command_line import option, printable
from rsnotify.runtime.reasons import reason_of

_REPORTS = "Reports"
JunitFile = Annotated[
    Path | None, option(_REPORTS, "FILE", "Write the results as JUnit XML, for CI systems.")
]
BadgeFile = Annotated[
    Path | None,
    option(_REPORTS, "FILE", "Write a badge: .svg, or .json for the shields.io endpoint."),
]


class Outcome(StrEnum):
    """The outcome of a check. The values are names of JUnit XML elements."""

    PASSED = "passed"
    FAILED = "failure"
    #: The check could not run.
    ERROR = "error"
    #: The result is unknown, or the requirement is only a recommendation.
    SKIPPED = "skipped"


class ReportedCheck(Struct, frozen=True):
    """The result of one check of a document or program.

    `section` is the section of the specification with the requirement, and `text` the reason if the
    check did not pass.
    """

    subject: str
    name: str
    outcome: Outcome = Outcome.PASSED
    section: str = ""
    text: str = ""
    seconds: float = 0.0


class Color(StrEnum):
    """The colors of badges, by their names at shields.io."""

    GOOD = "brightgreen"
    FAIR = "yellow"
    BAD = "red"
    UNKNOWN = "lightgrey"


_HEX = {
    Color.GOOD: "#2f7d32",
    Color.FAIR: "#8a6100",
    Color.BAD: "#b3261e",
    Color.UNKNOWN: "#6b6b6b",
}
_SVG = """<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="20" role="img" \
aria-label="{label}: {message}">
<title>{label}: {message}</title>
<rect width="{width}" height="20" rx="3" fill="#444"/>
<path d="M{split} 0h{rest}a3 3 0 0 1 3 3v14a3 3 0 0 1-3 3h-{rest}z" fill="{color}"/>
<g fill="#fff" font-family="Verdana,DejaVu Sans,sans-serif" font-size="11">
<text x="6" y="14" textLength="{label_length}">{label}</text>
<text x="{start}" y="14" textLength="{message_length}">{message}</text>
</g>
</svg>
"""
#: The width of a character in a badge, in pixels.
_CHARACTER_WIDTH = 6.6


class Badge(Struct, frozen=True):
    """A badge: a label, a message with the result, and the color of the message."""

    label: str
    message: str
    color: Color

    def json(self) -> bytes:
        """Return the badge as JSON for the shields.io endpoint."""
        fields = {"schemaVersion": 1, **msgspec.structs.asdict(self)}
        return msgspec.json.format(msgspec.json.encode(fields), indent=2) + b"\n"

    def svg(self) -> bytes:
        """Return the badge as a self-contained SVG image."""
        lengths = [round(len(text) * _CHARACTER_WIDTH) for text in (self.label, self.message)]
        split = lengths[0] + 12
        text = _SVG.format(
            width=split + lengths[1] + 12,
            split=split,
            rest=lengths[1] + 9,
            start=split + 6,
            label=escape(self.label),
            message=escape(self.message),
            label_length=lengths[0],
            message_length=lengths[1],
            color=_HEX[self.color],
        )
        return text.encode()


def junit_xml(tool: str, checks: Iterable[ReportedCheck], at: str) -> bytes:
    """Return results as JUnit XML, with one test suite per subject.

    `tool` is the program and its version, and `at` the time, for example `2026-01-01T12:00:00`.
    """
    suites: dict[str, list[ReportedCheck]] = {}
    for check in checks:
        suites.setdefault(check.subject, []).append(check)
    lines = ['<?xml version="1.0" encoding="UTF-8"?>', "<testsuites>"]
    for number, (subject, of_suite) in enumerate(suites.items()):
        name = _attribute(subject)
        counts = "".join(
            f' {plural}="{sum(check.outcome is outcome for check in of_suite)}"'
            for plural, outcome in (
                ("failures", Outcome.FAILED),
                ("errors", Outcome.ERROR),
                ("skipped", Outcome.SKIPPED),
            )
        )
        seconds = sum(check.seconds for check in of_suite)
        lines += [
            f'<testsuite id="{number}" package={name} name={name} hostname="localhost"'
            f' timestamp="{at}" tests="{len(of_suite)}"{counts} time="{seconds:.3f}">',
            f'<properties><property name="tool" value={_attribute(tool)}/></properties>',
            *map(_case, of_suite),
            "<system-out/><system-err/></testsuite>",
        ]
    return "\n".join([*lines, "</testsuites>", ""]).encode()


def _case(check: ReportedCheck) -> str:
    names = f"name={_attribute(check.name)} classname={_attribute(check.subject)}"
    head = f'<testcase {names} time="{check.seconds:.3f}"'
    if check.outcome is Outcome.PASSED:
        return f"{head}/>"
    text = "\n".join(printable(line) for line in check.text.splitlines())
    attributes = ""
    if check.outcome is not Outcome.SKIPPED:  # junit-4 allows no attributes here
        first = text.partition("\n")[0]
        attributes = f" type={_attribute(check.section)} message={_attribute(first)}"
    return f"{head}><{check.outcome}{attributes}>{escape(text)}</{check.outcome}></testcase>"


def _attribute(text: str) -> str:
    return quoteattr(printable(text))


def check_badge_file(file: Path | None) -> None:
    """Reject an unknown badge format before the checks, which may take long."""
    if file is not None and file.suffix not in (".svg", ".json"):
        raise WrongOption("badge", f"{file} is not an .svg or .json file")


def write_reports(
    checks: Sequence[ReportedCheck], badge: Badge, junit_file: Path | None, badge_file: Path | None
) -> None:
    """Write the requested report files, or raise ConfigurationError."""
    files: dict[Path, bytes] = {}
    if junit_file is not None:
        at = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%S")
        files[junit_file] = junit_xml(f"rsnotify {__version__}", checks, at)
    if badge_file is not None:
        files[badge_file] = badge.svg() if badge_file.suffix == ".svg" else badge.json()
    for file, content in files.items():
        try:
            file.write_bytes(content)
        except OSError as error:
            raise ConfigurationError(f"{file} cannot be written: {reason_of(error)}") from error


def write_failure(
    label: str, subject: str, reason: str, junit_file: Path | None, badge_file: Path | None
) -> None:
    """Write the report files of a failed run, to replace older ones."""
    check = ReportedCheck(subject, "can-be-checked", Outcome.ERROR, "", reason)
    write_reports([check], Badge(label, "not checked", Color.UNKNOWN), junit_file, badge_file)
