"""Blocks of commands, of which some run until Ctrl-C.

A command after one of those would wait for a terminal that is in use. So the site shows each of
them in a block of its own, which says so, and what is copied runs to its end.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator

#: Programs that end, though they begin like those that do not.
_ENDS = tuple(f"python {one}" for one in ("-c", "-m django", "manage.py m", "manage.py startapp"))
_SHELL = re.compile(r"^```sh\n(.*?)^```\n", re.DOTALL | re.MULTILINE)
_COMMAND = re.compile(r"(?:.*\\\n)*.*\n")


def runs_until_stopped(command: str) -> bool:
    """Return whether a command runs until it is stopped; a program of a page is taken to do so."""
    words = shlex.split(command, comments=True)
    if not words:
        return False
    if words[0] == "python":
        return not command.startswith(_ENDS)
    if words[:2] in (["make", "demo"], ["make", "gateway-demo"], ["rsnotify", "demo"]):
        return "--seconds" not in command
    if words[0] != "rsnotify":
        return words[:2] == ["make", "docs-serve"]
    if words[1] == "hub":
        return len(words) == 2 or words[2].startswith("-")
    return words[1] in ("source", "relay", "gateway") or (
        words[1] == "follow" and "--once" not in words
    )


def split(markdown: str) -> str:
    """Return a page in which each command that runs until Ctrl-C has a block of its own.

    Output, in blocks of text, cannot be copied.
    """
    markdown = re.sub("^```text$", "```{ .text .no-copy }", markdown, flags=re.MULTILINE)
    return _SHELL.sub(lambda found: "\n".join(_parts(found[1])), markdown)


def _parts(body: str) -> Iterator[str]:
    ending = ""
    for command in _COMMAND.findall(body):
        if runs_until_stopped(command.replace("\\\n", "")):
            if ending:
                yield f"```sh\n{ending}```\n"
            ending = ""
            yield f'```{{ .sh title="Runs until Ctrl-C" }}\n{command}```\n'
        else:
            ending += command
    if ending:
        yield f"```sh\n{ending}```\n"
