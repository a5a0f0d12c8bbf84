"""Checks the types of the programs in the documentation: `python -m tests.snippets FOLDER`.

They are written into the folder, a file for each section of a page, and mypy reads them all at
once, with the settings of the project, so that it has the types of the packages in its cache.
"""

from __future__ import annotations

import re
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path

from mypy import api

from tests.reader import NAMED, ROOT, fences_of

PAGES = (
    *("*.md", "[a-z]*/README.md", "extensions/*/README.md"),
    *("docs/*.md", "docs/recipes/*.md", "docs/reference/*.md"),
)
#: What mypy says of a library that has no types, or is not installed: nothing else is known then.
UNTYPED = re.compile(r"^([^:\n]+):.*\[(?:import-untyped|import-not-found)\]$", re.MULTILINE)


def snippets() -> Iterator[tuple[str, str]]:
    """Yield the programs, each with a name for its file: named files, and sections."""
    for page in sorted({path for pattern in PAGES for path in ROOT.glob(pattern)}):
        name = re.sub(r"\W+", "_", str(page.relative_to(ROOT)).removesuffix(".md")).lower()
        for number, section in enumerate(re.split(r"^##+ ", page.read_text(), flags=re.MULTILINE)):
            found = [body for language, body in fences_of(section) if language == "python"]
            together = "\n".join(body for body in found if not NAMED.match(body))
            files = [body for body in found if NAMED.match(body) and ", at its end" not in body]
            for part, program in enumerate([together, *files]):
                if program:
                    yield f"{name}_{number}_{part}.py", program


def errors(folder: Path) -> list[str]:
    """Write the programs, and return the errors that mypy finds in them."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    for name, program in snippets():
        (folder / name).write_text(program)
    settings = ["--config-file", str(ROOT / "pyproject.toml"), "--no-error-summary"]
    output, failure, _ = api.run([*settings, *map(str, sorted(folder.iterdir()))])
    unknown = set(UNTYPED.findall(output))
    found = [line for line in output.splitlines() if line.partition(":")[0] not in unknown]
    return [*found, *failure.splitlines()]


if __name__ == "__main__":
    sys.exit("\n".join(errors(Path(sys.argv[1]))) or None)
