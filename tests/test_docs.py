"""What the documentation says works: every command and every program in it is run here.

Programs under one heading are one program. Commands in one block share a folder. What would
run until Ctrl-C has to be alive after a moment, and then to end in order.
"""

from __future__ import annotations

import os
import re
import shlex
import signal
import subprocess
import sys
import threading
import tomllib
from collections.abc import Iterator
from pathlib import Path
from secrets import token_hex

import pytest

from rsnotify.commands.processes import free_port
from rsnotify_hub.configuration import load_configuration

ROOT = Path(__file__).resolve().parents[1]
PAGES = [
    "README.md",
    "publisher/README.md",
    "subscriber/README.md",
    "hub/README.md",
    "relay/README.md",
]
OTHER_PAGES = ["docs/design.md", "docs/mqtt.md", "docs/protocol.md", "docs/validation.md"]
FENCE = re.compile(r"^```(\w+)\n(.*?)^```", re.DOTALL | re.MULTILINE)
#: Seconds after which what is still alive counts as running until it is stopped.
ALIVE = 2.5
#: What pages call a database of their reader's.
DATABASE = "postgresql://localhost/example"


def blocks(page: str, language: str) -> list[str]:
    """Return the fenced blocks of a page in one language."""
    return [body for name, body in FENCE.findall((ROOT / page).read_text()) if name == language]


def with_a_secret(text: str) -> str:
    """Put a secret of one's own where a page has an example, as its reader has to."""
    return re.sub(r'(?<=token_sha256 = ")[^"]*', token_hex(32), text)


def programs() -> Iterator[tuple[str, str]]:
    """Yield each program with the place where it stands."""
    for page in PAGES:
        for section in re.split(r"^#+ ", (ROOT / page).read_text(), flags=re.MULTILINE)[1:]:
            parts = [body for name, body in FENCE.findall(section) if name == "python"]
            if parts:
                yield f"{page}: {section.splitlines()[0]}", "\n".join(parts)


class Sandbox:
    """A hub and a Source of a small folder, and what the pages call them."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._ports = {name: str(free_port()) for name in ("8000", "8001", "8080")}
        self._processes: list[subprocess.Popen[str]] = []
        (folder / "data").mkdir()
        (folder / "data/one.ttl").write_text("<a> <b> <c> .\n")

    def adapt(self, text: str) -> str:
        """Put this sandbox's addresses where the page has example ones."""
        for port, ours in self._ports.items():
            text = text.replace(f"127.0.0.1:{port}", f"127.0.0.1:{ours}")
            text = text.replace(f'"127.0.0.1", {port}', f'"127.0.0.1", {ours}')
        hub, source = (f"http://127.0.0.1:{self._ports[port]}" for port in ("8080", "8000"))
        return text.replace("https://hub.example", hub).replace("https://source.example", source)

    def start(self, command: str) -> subprocess.Popen[str]:
        """Start a command of `rsnotify`, on this sandbox's ports."""
        arguments = shlex.split(self.adapt(command), comments=True)
        assert arguments[0] == "rsnotify"
        port = {"hub": self._ports["8080"], "source": self._ports["8000"], "relay": "0"}
        serves = len(arguments) < 3 or arguments[2].startswith("-") or arguments[1] != "hub"
        if arguments[1] in port and serves:
            arguments += ["--port", port[arguments[1]]]
        process = subprocess.Popen(
            [sys.executable, "-m", *arguments],
            cwd=self.folder,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            env={**os.environ, "RSNOTIFY_HUB_URL": self.adapt("http://127.0.0.1:8080/")},
        )
        self._processes.append(process)
        return process

    def serve(self) -> None:
        """Start the hub and the Source, and wait until they say that they serve."""
        url = "http://127.0.0.1:8000/"
        for command in (
            "rsnotify hub",
            f"rsnotify source data --base-url {url} --hub http://127.0.0.1:8080/",
        ):
            says(self.start(command), "http://")

    def stop(self) -> None:
        """End every process that is left."""
        for process in reversed(self._processes):
            process.terminate()
            process.communicate(timeout=60)


@pytest.fixture
def sandbox(tmp_path: Path) -> Iterator[Sandbox]:
    sandbox = Sandbox(tmp_path)
    yield sandbox
    sandbox.stop()


def says(process: subprocess.Popen[str], text: str) -> None:
    """Wait until a process prints a line with this text."""
    assert process.stdout is not None
    watchdog = threading.Timer(60, process.kill)
    watchdog.start()
    try:
        assert any(text in line for line in process.stdout), f"it never said {text!r}"
    finally:
        watchdog.cancel()


def runs(process: subprocess.Popen[str]) -> None:
    """Check that a process ends well, or is alive and then ends in order."""
    try:
        output, _ = process.communicate(timeout=ALIVE)
        assert process.returncode == 0, output
    except subprocess.TimeoutExpired:
        process.send_signal(signal.SIGINT)
        output, _ = process.communicate(timeout=60)
        # 130, where it had not begun to serve
        assert process.returncode in (0, 128 + signal.SIGINT, -signal.SIGINT), output
    assert "Traceback" not in output.replace("KeyboardInterrupt", "") or process.returncode < 0


@pytest.mark.parametrize(("place", "program"), list(programs()), ids=lambda value: value[:60])
def test_every_program_in_the_documentation_runs(
    sandbox: Sandbox, place: str, program: str, request: pytest.FixtureRequest
) -> None:
    if DATABASE in program:
        program = program.replace(DATABASE, request.getfixturevalue("postgresql"))
    if place.startswith(("subscriber", "relay")) or "Subscriber" in program:
        sandbox.serve()
    process = subprocess.Popen(
        [sys.executable, "-c", sandbox.adapt(program)],
        cwd=sandbox.folder,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    runs(process)


def test_the_commands_of_the_readme_follow_a_folder_and_audit_it(sandbox: Sandbox) -> None:
    commands = [
        line
        for block in blocks("README.md", "sh")
        for line in block.splitlines()
        if line.startswith("rsnotify")
    ]
    of = {command.split()[1]: command for command in commands}
    assert len(of) == len(commands)
    for name in ("hub", "source"):
        says(sandbox.start(of.pop(name)), "http://")
    says(sandbox.start(of.pop("follow")), "in step")
    assert (sandbox.folder / "copy/one.ttl").read_text() == "<a> <b> <c> .\n"
    says(sandbox.start(of.pop("relay")), "rsnotify relay serving")
    assert set(of) == {"audit", "inspect", "validate"}
    for command in of.values():
        process = sandbox.start(command)
        output, _ = process.communicate(timeout=60)
        assert process.returncode == 0, output


@pytest.mark.parametrize(
    ("page", "command"),
    [
        (page, line)
        for page in PAGES[1:]
        for block in blocks(page, "sh")
        for line in block.splitlines()
        if line.startswith("rsnotify")
    ],
)
def test_every_command_of_the_other_pages_runs(sandbox: Sandbox, page: str, command: str) -> None:
    name = command.split()[1]
    if name in ("follow", "audit", "relay"):
        sandbox.serve()
    if name == "hub" and not command.split()[2].startswith("-"):
        says(sandbox.start("rsnotify hub"), "http://")
        process = sandbox.start(command)
        output, _ = process.communicate(timeout=60)
        assert process.returncode == 0, output
        return
    if name == "audit":
        follow = f"rsnotify follow {command.split()[2]} {command.split()[3]} --once"
        sandbox.start(follow).communicate(timeout=60)
    (sandbox.folder / "hub.toml").write_text(with_a_secret(blocks("hub/README.md", "toml")[0]))
    (sandbox.folder / "relay.toml").write_text(sandbox.adapt(blocks("relay/README.md", "toml")[0]))
    several = sandbox.adapt(blocks("publisher/README.md", "toml")[0])
    (sandbox.folder / "source.toml").write_text(several)
    for one in tomllib.loads(several)["set"]:
        (sandbox.folder / one["folder"]).mkdir()
    runs(sandbox.start(command))


def test_every_make_target_in_the_documentation_exists() -> None:
    text = (ROOT / "README.md").read_text()
    targets = set(re.findall(r"^make (\w+)|`make (\w+)", text, flags=re.MULTILINE))
    names = {name for pair in targets for name in pair if name}
    assert {"demo", "test", "check", "bench", "replay"} <= names
    for name in names:
        subprocess.run(["make", "-n", name], cwd=ROOT, check=True, capture_output=True)


@pytest.mark.parametrize("page", ["README.md", "hub/README.md"])
def test_every_configuration_in_the_documentation_is_one(page: str, tmp_path: Path) -> None:
    for number, block in enumerate(blocks(page, "toml")):
        tomllib.loads(block)
        file = tmp_path / f"{number}.toml"
        file.write_text(with_a_secret(block))
        assert load_configuration(str(file)).publishers


@pytest.mark.parametrize("page", [*PAGES, *OTHER_PAGES])
def test_every_link_within_the_documentation_leads_somewhere(page: str) -> None:
    for target in re.findall(r"\]\((?!http)([^)#]+)\)", (ROOT / page).read_text()):
        assert ((ROOT / page).parent / target).exists(), target
