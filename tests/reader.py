"""A simulated reader of the documentation, who follows a page in a folder, line by line.

A fence in another language than the shell's, that begins with the name of a file as a comment, is
that file. A line for the shell is a command; what goes on until it is stopped stays running, as in
a terminal of its own, and starting a program again ends the one before. All ports are free ones.
"""

from __future__ import annotations

import os
import re
import shlex
import signal
import sys
import tomllib
from collections.abc import Callable, Mapping, Sequence
from hashlib import sha256
from pathlib import Path
from secrets import token_hex
from types import MappingProxyType, TracebackType
from typing import Self

from msgspec import Struct

from docs.hooks.blocks import runs_until_stopped
from tests import fork_server
from tests.ports import free_port
from tests.publisher.helpers import eventually
from tests.running import Running

ROOT = Path(__file__).resolve().parents[1]
FENCE = re.compile(r"^```(\w+)\n(.*?)^```", re.DOTALL | re.MULTILINE)
#: What a reader does, too; this stands for a fence in the language `stop`.
STOP = re.compile(r"Press Ctrl-C in the\sterminal\sof `([^`]+)`")
#: How a file names itself in its first line.
NAMED = re.compile(r"^(?:#|<!--) (\S+\.(?:py|toml|xml))")
#: What a program says once it does what it goes on doing.
WORKS = re.compile(
    r"[Ll]istening (on|at)|serving|(?<![\w-])(?<!not )(level|in step)\b(?![\"=])|\"level\":true"
    r"|Running on|stations at|answered at|following"
)
#: The ports of the pages.
PORTS = ("8000", "8001", "8010", "8080")
#: The default port of each command.
DEFAULT_PORTS = {"hub": "8080", "source": "8000", "relay": "8000", "gateway": "8000"}
#: What the pages use of a checkout.
CHECKOUT = (".env.example", "deploy/new-env.sh", "publisher", "subscriber")
#: What a shell does not leave as it is.
MEANS_SOMETHING = re.compile(r"[$`\\*?\[\]~<>|&;(){}!#\n]")
#: Nothing is known but the ports.
NOTHING: Mapping[str, str] = MappingProxyType({})
#: What readers of the pages have for a secret.
TOKEN = token_hex(16)
#: What other tests try, by the first word of the command.
ELSEWHERE = ("docker", "git clone", "make", "pip", "python3 -m venv", ".venv/bin/pip", ". .venv/")
#: Options that programs of the pages get here, so that they take less time.
SHORTER = {"rsnotify-hub-check": "--only leases-are-short"}
#: Seconds for a command that ends; on a busy machine, the migrations of Wagtail take minutes.
_PATIENCE = 300
#: The commands that began in a shell once, as installed; later they may be forked.
_begun: set[str] = set()


class Story(Struct, frozen=True):
    """A page, or a part of it that begins in an empty folder."""

    page: str
    heading: str
    text: str

    @property
    def fences(self) -> list[tuple[str, str]]:
        return fences_of(self.text)

    @property
    def steps(self) -> list[tuple[str, str]]:
        """The fences, and what the reader stops between them."""
        return fences_of(STOP.sub(r"\n```stop\n\1\n```\n", self.text))

    @property
    def commands(self) -> list[str]:
        return [line for name, body in self.fences if name == "sh" for line in lines_of(body)]


def fences_of(text: str) -> list[tuple[str, str]]:
    """Return the fences of a text, each with its language."""
    return FENCE.findall(text)


def blocks(page: str, language: str) -> list[str]:
    """Return the fenced blocks of a page in one language."""
    return [body for name, body in fences_of((ROOT / page).read_text()) if name == language]


def lines_of(body: str) -> list[str]:
    lines = (re.sub(r"(^|\s)# .*", "", line) for line in body.replace("\\\n", "").splitlines())
    return [line.strip() for line in lines if line.strip()]


def stories(page: str) -> list[Story]:
    """Return what can be done on a page; where it says so, one begins in an empty folder."""
    found: list[Story] = []
    for part in re.split(r"^## ", (ROOT / page).read_text(), flags=re.MULTILINE):
        if not found or re.search(r"empty\s+folder", part):
            found.append(Story(page, part.splitlines()[0].removeprefix("# "), part))
        else:
            last = found.pop()
            found.append(Story(page, last.heading, f"{last.text}## {part}"))
    return [story for story in found if story.commands]


def section(page: str, heading: str) -> Story:
    """Return what can be done in one section of a page, which begins in an empty folder."""
    _, _, rest = (ROOT / page).read_text().partition(f"\n## {heading}\n")
    return Story(page, heading, rest.partition("\n## ")[0])


def with_secrets(text: str) -> str:
    """Put a secret of one's own where a page has an example, as its reader has to."""
    return re.sub(r'(?<=token_sha256 = ")[^"]*', sha256(TOKEN.encode()).hexdigest(), text)


def place_of(command: str) -> str:
    """Return what identifies two commands if one replaces the other."""
    words = command.split()
    # Hubs and Sources take the same port, what follows only the same folder.
    return " ".join(words[:4] if words[1] in ("follow", "relay") else words[:2])


class Reader:
    """Does what a page says, in a folder of its own."""

    def __init__(
        self,
        folder: Path,
        known: Mapping[str, str] = NOTHING,
        environment: Mapping[str, str] = NOTHING,
    ) -> None:
        folder.mkdir()
        self.folder = folder
        self._known = known
        self._ports = {port: str(free_port()) for port in PORTS}
        self._running: dict[str, Running] = {}
        programs = folder.parent / f"{folder.name}.programs"
        install(programs)
        hub = known.get("https://hub.example", self.adapt("http://127.0.0.1:8080"))
        self._path = f"{programs}:{os.environ['PATH']}"
        self._environment = {
            **os.environ,
            "PYTHONUNBUFFERED": "1",
            "RSNOTIFY_HUB_URL": hub,
            **environment,
        }

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        for process in reversed(self._running.values()):
            process.show()
            process.stop()

    def adapt(self, text: str) -> str:
        """Put what is here where the page has its own."""
        for name, ours in self._known.items():
            text = text.replace(name, ours)
        for port, ours in self._ports.items():
            text = re.sub(rf"(?<=[:= ]){port}\b", ours, text)
        return text

    def write(self, name: str, text: str) -> None:
        (self.folder / name).write_text(self.adapt(text))

    def do(self, story: Story, shows: Mapping[str, str]) -> None:
        """Do all of a story; then see that what goes on is still alive, and end it in order.

        Args:
            story: What to do.
            shows: What some commands have to print. Those that end are repeated until they do,
                as their reader would. A fence in the language `text` is all that the command
                before it prints; there `…` is any text, and in a line of its own any lines.
        """
        if "checkout" in story.text:
            for path in CHECKOUT:
                (self.folder / path).parent.mkdir(exist_ok=True)
                (self.folder / path).symlink_to(ROOT / path)
        steps = story.steps
        for (language, body), (following, output) in zip(
            steps, [*steps[1:], ("", "")], strict=True
        ):
            if language == "sh":
                commands = lines_of(body)
                for command in commands:
                    if command == commands[-1] and following == "text":
                        self._follow(command, self._pattern(output))
                    elif command in shows and not runs_until_stopped(command):
                        self._follow(command, re.compile(re.escape(shows[command])))
                    else:
                        self._follow(command)
            elif language == "stop":
                self.end([one for one in self._running if one.startswith(body.strip())])
            elif named := NAMED.match(body):
                before = ""
                if ", at its end" in body.partition("\n")[0]:
                    before = (self.folder / named[1]).read_text()
                self.write(named[1], before + with_secrets(body))
                if "[[admins]]" in body:
                    self._environment["RSNOTIFY_ADMIN_TOKEN"] = TOKEN
        for command, expected in shows.items():
            if command in self._running:
                self._running[command].says(expected)
        self.end()

    def _follow(self, command: str, shows: re.Pattern[str] | None = None) -> None:
        if command.startswith(ELSEWHERE):
            return
        if runs_until_stopped(command):
            self.start(command)
            if shows:
                self._running[command].says(shows)
        elif shows is None:
            self.do_once(command)
        else:
            outputs: list[str] = []

            def is_shown() -> bool:
                outputs.append(self.run(command))
                return shows.search(outputs[-1]) is not None

            try:
                eventually(is_shown)
            except AssertionError:
                print(f"--- {command}\n{outputs[0]}\n--- and at last\n{outputs[-1]}")
                raise

    def _pattern(self, output: str) -> re.Pattern[str]:
        lines = [
            r"(?:.*\n)*" if line == "…" else re.escape(line).replace("…", ".*") + r"(?:\n|\Z)"
            for line in self.adapt(output).splitlines()
        ]
        return re.compile(rf"\A{''.join(lines)}\Z")

    def run(self, command: str) -> str:
        return self._run(command).output()

    def do_once(self, command: str) -> None:
        """Run a command that ends, and ends well."""
        process = self._run(command)
        assert process.ends() == 0, f"{command} failed: {process.output()}"

    def _run(self, command: str) -> Running:
        process = self._begin(self._shell(command))
        process.ends(_PATIENCE)
        return process

    def start(self, command: str, works: re.Pattern[str] | Callable[[], bool] = WORKS) -> None:
        """Start what goes on; it takes the place of one like it."""
        self.end([other for other in self._running if place_of(other) == place_of(command)])
        process = self._begin(f"exec {self._shell(command)}")
        self._running[command] = process
        if isinstance(works, re.Pattern):
            process.says(works)
        else:
            eventually(lambda: works() or not process.is_alive())

    def _begin(self, shell: str) -> Running:
        words = shlex.split(shell.removeprefix("exec "))
        if words[:2] == ["python", "-m"] and not MEANS_SOMETHING.search(shell):
            return Running([sys.executable, *words[1:]], self._environment, self.folder)
        if words[0] == "python" and words[1].endswith(".py") and not words[2:]:
            if "python" in _begun:
                file = str(self.folder / words[1])
                fork_server.FILES.add(file)
                return Running([sys.executable, file], self._environment, self.folder)
            _begun.add("python")
        if words[0] == "rsnotify" and not MEANS_SOMETHING.search(shell):
            if words[1] in _begun:
                program = [sys.executable, "-m", *words]
                return Running(program, self._environment, self.folder)
            _begun.add(words[1])
        environment = {**self._environment, "PATH": self._path}
        return Running(["bash", "-c", shell], environment, self.folder)

    def end(self, commands: Sequence[str] | None = None) -> None:
        """See that what goes on is still alive, and ends in order when it is interrupted."""
        ending = list(self._running) if commands is None else commands
        dead = [command for command in ending if not self._running[command].is_alive()]
        assert not dead, f"{dead} ended too early"
        for command in reversed(ending):
            self._running[command].ask(signal.SIGINT)
        for command in ending:
            process = self._running.pop(command)
            code = process.ends()
            assert code in (0, 130, -signal.SIGINT), f"{command} ended with {code}"
            process.show()

    def _shell(self, command: str) -> str:
        words = command.split()
        if words[0] in SHORTER:
            command = f"{command} {SHORTER[words[0]]}"
        if words[0] == "rsnotify" and runs_until_stopped(command) and "--port" not in words:
            port = DEFAULT_PORTS.get(words[1])
            command = f"{command} --port {port}" if port else command
        return self.adapt(command)


def install(folder: Path) -> None:
    """Put our programs into a new folder, as an installation does."""
    folder.mkdir()
    scripts = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["scripts"]
    for name, place in scripts.items():
        module, _, function = place.partition(":")
        code = f"import sys; from {module} import {function}; sys.exit({function}())"
        write_program(folder / name, f"exec {shlex.quote(sys.executable)} -c {shlex.quote(code)}")
    write_program(folder / "python", f"exec {shlex.quote(sys.executable)}")


def write_program(path: Path, start: str) -> None:
    """Write a program that is started like this, with what it is given."""
    path.write_text(f'#!/bin/sh\n{start} "$@"\n')
    path.chmod(0o755)
