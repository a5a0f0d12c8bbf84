"""What a Dockerfile and a docker-compose.yml say, done without an engine.

A `Machine` does on this machine what the build would do in an image, and starts what compose would
start, with the same commands, variables and users. Paths and addresses of the containers become
ones of a temporary folder and of loopback.
"""

from __future__ import annotations

import fnmatch
import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from importlib.metadata import distribution
from pathlib import Path
from typing import Any

import yaml
from msgspec import Struct, field
from packaging.requirements import Requirement

from tests.running import PATIENCE, Running

ROOT = Path(__file__).resolve().parents[1]

_VARIABLE = re.compile(r"\$\{(\w+)(?::([-?])([^}]*))?\}")


class Unset(AssertionError):
    """Compose would refuse to start, since a variable that has to be set is not."""


class Instruction(Struct, frozen=True):
    name: str
    text: str

    def words(self) -> list[str]:
        return json.loads(self.text) if self.text.startswith("[") else self.text.split()


class Image(Struct):
    """What containers of an image begin with."""

    bases: list[str] = field(default_factory=list)
    environment: dict[str, str] = field(default_factory=dict)
    user: str = "0:0"
    entrypoint: list[str] = field(default_factory=list)
    command: list[str] = field(default_factory=list)
    health: list[str] = field(default_factory=list)
    volumes: list[str] = field(default_factory=list)


def read_dockerfile(path: Path) -> list[Instruction]:
    """Read a Dockerfile, lines that go on joined, comments left out."""
    lines = [line for line in path.read_text().splitlines() if not line.startswith("#")]
    joined = re.sub(r"\\\n\s*", " ", "\n".join(lines))
    return [Instruction(*line.split(" ", 1)) for line in joined.splitlines() if line.strip()]


def image_of(instructions: Sequence[Instruction]) -> Image:
    """Return what the last stage of a Dockerfile makes."""
    image = Image()
    for one in instructions:
        match one.name:
            case "FROM":
                image = Image([*image.bases, one.words()[0]])
            case "ENV":
                image.environment |= dict(word.split("=", 1) for word in one.words())
            case "USER":
                image.user = one.text
            case "ENTRYPOINT":
                image.entrypoint = one.words()
            case "CMD":
                image.command = one.words()
            case "VOLUME":
                image.volumes += one.words()
            case "HEALTHCHECK":
                image.health = json.loads(one.text.partition("CMD ")[2])
    return image


def context(root: Path) -> Iterator[Path]:
    """Yield the files, relative to the root, that a build would be sent (.dockerignore)."""
    rules = [
        line
        for line in (root / ".dockerignore").read_text().splitlines()
        if line and not line.startswith("#")
    ]
    first, *rest = rules
    assert first == "*", "only what is named after it needs a look"
    named = [rule[1:] for rule in rest if rule.startswith("!")]
    found = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--", *named],
        cwd=root, capture_output=True, text=True, check=True,
    ).stdout  # fmt: skip
    for name in found.splitlines():
        if not _is_ignored(Path(name), rules) and (root / name).is_file():
            yield Path(name)


def _is_ignored(path: Path, rules: Sequence[str]) -> bool:
    ignored = False
    places = [str(path), *map(str, path.parents)]
    for rule in rules:
        pattern = rule.removeprefix("!").removeprefix("**/")
        names = [Path(place).name for place in places] if "**/" in rule else places
        if any(fnmatch.fnmatch(name, pattern) for name in names):
            ignored = not rule.startswith("!")
    return ignored


def interpolate(value: Any, variables: Mapping[str, str]) -> Any:
    """Put variables into what compose reads, as compose does."""
    if isinstance(value, dict):
        return {key: interpolate(one, variables) for key, one in value.items()}
    if isinstance(value, list):
        return [interpolate(one, variables) for one in value]
    if not isinstance(value, str):
        return value

    def substituted(match: re.Match[str]) -> str:
        name, kind, text = match.groups()
        found = variables.get(name, "")
        if kind == "?" and not found:
            raise Unset(f"{name}: {text}")
        return found or (text if kind == "-" else "")

    return _VARIABLE.sub(substituted, value)


def services(variables: Mapping[str, str]) -> dict[str, dict[str, Any]]:
    """Return the services of docker-compose.yml."""
    text = yaml.safe_load((ROOT / "docker-compose.yml").read_text())
    found: dict[str, dict[str, Any]] = interpolate(text, variables)["services"]
    return found


def read_environment(path: Path) -> dict[str, str]:
    """Read a file of variables, such as .env."""
    lines = [line for line in path.read_text().splitlines() if line and line[0] != "#"]
    return dict(line.split("=", 1) for line in lines)


class Machine:
    """Builds, and starts services, on this machine.

    Args:
        folder: Where everything of the containers lies here. Other users reach it.
        places: What stands here for texts of the containers: paths and addresses.

    Attributes:
        places: The same; more may be added.
    """

    def __init__(self, folder: Path, places: Mapping[str, str]) -> None:
        self.folder = folder
        self.places = dict(places)
        self._running: list[Running] = []

    def here(self, text: str) -> str:
        """Put what stands here into a text of a container."""
        # All at once: what stands here may look like something of a container.
        text = self._there().sub(lambda found: self.places[found.group()], text)
        if os.getuid() != 0:  # only the administrator can give files away, or run as another
            text = text.replace("-o 10001 -g 10001", f"-o {os.getuid()} -g {os.getgid()}")
        return text

    def _there(self) -> re.Pattern[str]:
        """Match the texts of containers, the longest first, and ports only as whole words: the
        digits of one may stand in any secret.
        """
        patterns = [
            rf"\b{text}\b" if text.isdecimal() else re.escape(text)
            for text in sorted(self.places, key=len, reverse=True)
        ]
        return re.compile("|".join(patterns))

    def build(self, instructions: Sequence[Instruction]) -> None:
        """Do what a Dockerfile says, in its order; its stages share the folder."""
        files = list(context(ROOT))
        place = ""
        arguments = dict(one.text.split("=", 1) for one in instructions if one.name == "ARG")
        for one in instructions:
            if one.name == "WORKDIR":
                place = self.here(one.text)
                Path(place).mkdir(parents=True, exist_ok=True)
            elif one.name == "COPY" and not one.text.startswith("--from"):
                *sources, target = one.words()
                _copy(files, sources, Path(place), target)
            elif one.name == "RUN":
                path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
                text = self.here(one.text)
                assert " /usr/" not in text, "this would change the machine itself"
                variables = {**os.environ, **arguments, "PATH": path}
                subprocess.run(["sh", "-ec", text], cwd=place, env=variables, check=True)

    def start(self, image: Image, service: Mapping[str, Any]) -> Running:
        entrypoint = service.get("entrypoint", image.entrypoint)
        command = service.get("command", [] if "entrypoint" in service else image.command)
        process = Running(
            self._command([*entrypoint, *command], service.get("user", image.user)),
            self.environment(image, service),
        )
        self._running.append(process)
        return process

    def run(self, words: Sequence[str], image: Image, service: Mapping[str, Any]) -> int:
        """Run a command in a service's container, and return its exit code."""
        return subprocess.run(
            self._command(words, service.get("user", image.user)),
            env=self.environment(image, service),
            capture_output=True,
            check=False,
            timeout=PATIENCE,
        ).returncode

    def environment(self, image: Image, service: Mapping[str, Any]) -> dict[str, str]:
        """Return a container's variables: its own, and none of this machine's."""
        given = {"PATH": os.environ["PATH"]} | image.environment | service.get("environment", {})
        return {
            name: self.here(value.replace("$PATH", os.environ["PATH"]))
            for name, value in given.items()
        }

    def stop(self) -> None:
        """End what still runs, and show what it said."""
        with ExitStack() as stack:
            for process in self._running:
                stack.callback(process.show)
                stack.callback(process.stop)
            self._running.clear()

    def _command(self, words: Sequence[str], owner: str) -> list[str]:
        """Run a command as a user that may write nothing but what is its own.

        It may read everything, since the Python of this machine may stand where only the
        administrator looks.
        """
        command = list(map(self.here, words))
        if os.getuid() != 0:
            return command
        user, group = owner.split(":")
        kept = "=-all,+dac_read_search"
        caps = [f"--{which}{kept}" for which in ("inh-caps", "ambient-caps", "bounding-set")]
        who = [f"--reuid={user}", f"--regid={group}", "--clear-groups", "--no-new-privs"]
        return ["setpriv", *who, *caps, *command]


def provide(folder: Path, requirement: str) -> None:
    """Put what a requirement of ours needs into a folder, from the environment of the tests.

    pip, which may run afterwards, checks that all of it is there, and installs what is not.
    """
    waiting, done = [Requirement(requirement)], set[str]()
    while waiting:
        one = waiting.pop()
        if str(one) in done:
            continue
        done.add(str(one))
        found = distribution(one.name)
        for line in found.requires or ():
            needed = Requirement(line)
            if not needed.marker or any(
                needed.marker.evaluate({"extra": extra}) for extra in (*one.extras, "")
            ):
                waiting.append(needed)
        tops = {file.parts[0] for file in found.files or ()} - {"..", "__pycache__"}
        for name in tops if one.name != "rsnotify" else ():
            source, target = Path(str(found.locate_file(name))), folder / name
            if source.is_file():
                shutil.copy2(source, target)
            elif not target.exists():
                shutil.copytree(source, target)


def _copy(files: Sequence[Path], sources: Sequence[str], place: Path, target: str) -> None:
    for source in sources:
        wanted = [file for file in files if file.is_relative_to(source)]
        assert wanted, f"COPY {source}: .dockerignore keeps it away, or it is not there"
        for file in wanted:
            # A folder is copied with what is in it, a file by its name.
            goal = place / target / file.relative_to(source if file != Path(source) else ".")
            goal.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(ROOT / file, goal)
