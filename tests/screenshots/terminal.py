"""What `rsnotify demo` writes to a terminal, as an SVG in light and dark."""

from __future__ import annotations

import asyncio
import os
import pty
import re
import subprocess
import sys
from html import escape
from pathlib import Path

from tests.browser import Browser

SHOWS = ("extensions/demo/rsnotify_demo/demo.py",)

_COMMAND = "rsnotify demo --seconds 20"
_COLUMNS, _ROWS = 96, 60
#: The size of a character, and what is around the text.
_WIDTH, _HEIGHT, _MARGIN, _TOP = 8.4, 20, 20, 40
_CONTROL = re.compile(r"\x1b\[([\d;?]*)([A-Za-z])|(\r)|(\n)")
#: The folder and the ports of a run.
_OF_THE_RUN = ((r"/\S*/(?=rsnotify-demo-)", "/tmp/"), (r"(rsnotify-demo)-\w+", r"\1"))

_SVG = """\
<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}"
  viewBox="0 0 {width} {height}" role="img">
  <title>{title}</title>
  <style>
    text {{ font: 14px ui-monospace, SFMono-Regular, Menlo, Consolas, "DejaVu Sans Mono", monospace;
      fill: #18211f; white-space: pre; }}
    .window {{ fill: #fbfcfb; stroke: #d5dbd7; }}
    .button {{ fill: #cfd6d2; }}
    .prompt {{ fill: #00796b; font-weight: 700; }}
    .good {{ fill: #00796b; font-weight: 700; }}
    .bars {{ fill: #00796b; }}
    @media (prefers-color-scheme: dark) {{
      text {{ fill: #e4eae8; }}
      .window {{ fill: #0f1314; stroke: #2a3235; }}
      .button {{ fill: #3a4447; }}
      .prompt, .good, .bars {{ fill: #4fd1c0; }}
    }}
  </style>
  <rect class="window" x=".5" y=".5" width="{inner_width}" height="{inner_height}" rx="10"/>
  <circle class="button" cx="22" cy="20" r="6"/>
  <circle class="button" cx="42" cy="20" r="6"/>
  <circle class="button" cx="62" cy="20" r="6"/>
{lines}
</svg>
"""


async def pictures(_: Browser, folder: Path, __: Path) -> None:
    lines = _screen(await asyncio.to_thread(_output))
    for pattern, instead in _OF_THE_RUN:
        lines = [re.sub(pattern, instead, line) for line in lines]
    (folder / "terminal.svg").write_text(_svg([f"$ {_COMMAND}", *lines]))


def _output() -> str:
    """Run the command in a terminal of its own, and return what it wrote."""
    leader, follower = pty.openpty()
    size = {"COLUMNS": str(_COLUMNS), "LINES": str(_ROWS)}
    environment = os.environ | size | {"TERM": "xterm-256color", "PYTHONUTF8": "1"}
    # The demo names its command as it is on the PATH.
    environment["PATH"] = f"{Path(sys.executable).parent}{os.pathsep}{environment['PATH']}"
    command = [sys.executable, "-m", *_COMMAND.split()]
    with subprocess.Popen(
        command, stdin=follower, stdout=follower, stderr=follower, env=environment
    ):
        os.close(follower)
        written = b""
        while chunk := _read(leader):
            written += chunk
    os.close(leader)
    return written.decode()


def _read(leader: int) -> bytes:
    try:
        return os.read(leader, 65_536)
    except OSError:  # at the end, on Linux
        return b""


def _screen(output: str) -> list[str]:
    """Return the lines that a terminal shows at the end."""
    lines, row, column, at = [""], 0, 0, 0
    for found in _CONTROL.finditer(output):
        text = output[at : found.start()]
        lines[row] = lines[row][:column].ljust(column) + text + lines[row][column + len(text) :]
        column += len(text)
        at = found.end()
        count, command, carriage_return, line_feed = found.groups()
        if carriage_return:
            column = 0
        elif line_feed:
            row += 1
            lines += [""] * (row + 1 - len(lines))
        elif command == "A":
            row -= int(count or 1)
        elif command == "K":
            lines[row] = ""
    while lines[-1].strip() == "":
        lines.pop()
    return lines


def _svg(lines: list[str]) -> str:
    width = round(2 * _MARGIN + _COLUMNS * _WIDTH)
    height = _TOP + len(lines) * _HEIGHT + _MARGIN
    shown = (_line(line, _TOP + (row + 1) * _HEIGHT - 6) for row, line in enumerate(lines) if line)
    return _SVG.format(
        width=width,
        height=height,
        inner_width=width - 1,
        inner_height=height - 1,
        title=f"What {_COMMAND} writes",
        lines="\n".join(shown),
    )


def _line(line: str, y: int) -> str:
    """Return an element for a line, as wide as it is in any font."""
    length = round(len(line) * _WIDTH, 1)
    text = escape(line, quote=False)
    text = re.sub(r"^\$", '<tspan class="prompt">$</tspan>', text)
    text = re.sub(r"^in step.*", r'<tspan class="good">\g<0></tspan>', text)
    text = re.sub(r"[▁-█]+", r'<tspan class="bars">\g<0></tspan>', text)
    return f'  <text x="{_MARGIN}" y="{y}" textLength="{length}" xml:space="preserve">{text}</text>'
