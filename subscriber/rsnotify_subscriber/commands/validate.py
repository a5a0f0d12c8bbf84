"""The command `rsnotify validate`: every rule that a document breaks."""

from __future__ import annotations

import sys
from collections.abc import Coroutine, Iterator
from contextlib import nullcontext
from typing import TYPE_CHECKING, Annotated

import msgspec
import typer

from rsnotify.errors import RsnotifyError, without_credentials
from rsnotify.format.writer import Profile
from rsnotify.plural import counted
from rsnotify.runtime.cli.running import complain, printable, run_until_stopped
from rsnotify_subscriber.commands.options import Json, NetworkArguments, with_arguments

if TYPE_CHECKING:
    from rsnotify_subscriber.validation.result import CheckedDocument, ValidationResult


@with_arguments
def validate(
    target: Annotated[
        str, typer.Argument(metavar="FILE|URL", help="A document, or a package of a dump.")
    ],
    deep: Annotated[
        bool, typer.Option("--deep", help="Validate the documents it leads to, and compare.")
    ] = False,
    spec: Annotated[
        Profile, typer.Option(metavar="1.1|1.0", help="The version of ResourceSync.")
    ] = Profile.V1_1,
    json: Json = False,
    *,
    arguments: NetworkArguments,
) -> None:
    """Report every rule that a document or a package breaks.

    Exit code 0: valid. 1: not valid. 2: it cannot be read.

    Examples:
        rsnotify validate resourcelist.xml
        rsnotify validate https://source.example/ --deep
    """
    from rich.console import Console
    from rich.text import Text

    from rsnotify_subscriber.validation.walk import validate as validate_target

    credentials = arguments.credentials
    status = Console(stderr=True).status(Text(printable(without_credentials(target))))

    def work() -> Coroutine[None, None, ValidationResult]:
        return validate_target(
            target,
            deep=deep,
            spec=spec,
            allow_private_addresses=arguments.allow_private_addresses,
            credentials=credentials,
            progress=lambda name: status.update(Text(printable(name))),
        )

    try:
        with status if sys.stderr.isatty() else nullcontext():
            result = run_until_stopped(work)
    except RsnotifyError as error:
        raise complain(error, 2) from None
    except OSError as error:
        raise complain(f"{target}: {error.strerror or error}", 2) from None
    if result is None:
        raise typer.Exit(2)
    if json:
        facts = msgspec.structs.asdict(result) | {"valid": result.valid}
        typer.echo(msgspec.json.encode(facts).decode())
    else:
        for line in validation_lines(result):
            typer.echo(line)
    raise typer.Exit(0 if result.valid else 1)


def validation_lines(result: ValidationResult) -> Iterator[str]:
    from rsnotify.validation import Severity

    for document in result.documents:
        for line in _lines(document):
            yield printable(line)
    counts = (
        (len(result.documents), "document"),
        (result.count(Severity.ERROR), "error"),
        (result.count(Severity.WARNING), "warning"),
    )
    totals = ", ".join(counted(count, what) for count, what in counts)
    yield f"{'valid' if result.valid else 'not valid'}: {totals}"


def _lines(document: CheckedDocument) -> Iterator[str]:
    for found in document.findings:
        place = document.name if found.line is None else f"{document.name}:{found.line}"
        element = found.element if found.entry is None else f"{found.element}, entry {found.entry}"
        yield f"{place}: {found.severity} {found.section} {found.rule}: {found.message} [{element}]"
    for rule, number in document.more.items():
        yield f"{document.name}: {rule}: at {number:,} more places"
