"""`rsnotify follow --config`, as a user runs it."""

from __future__ import annotations

import asyncio
import json
import resource
import signal
from asyncio.subprocess import Process
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from typer.testing import CliRunner

from rsnotify.errors import ConfigurationError
from rsnotify.runtime.command_line import application
from tests.ports import free_port
from tests.subscriber.fleet.conftest import PATIENCE, Many
from tests.subscriber.processes import outcome, run, running
from tests.subscriber.source import held_back, path_of, status

URL = "https://a.example/"
MIRRORED = '[defaults]\ndest = "{name}"\n'
NOTING = 'handler = "noting:Noting"\noptions = {file = "noted"}\n'
#: It is requested at the beginning, and once more with the documents that it names.
OFFER = "/data/capabilitylist.xml"
HANDLER = """
from pathlib import Path


class Noting:
    def __init__(self, file):
        self.file = Path(__file__).with_name(file)

    async def apply(self, changes):
        with self.file.open("a") as file:
            for change in changes:
                print(change.change, change.uri.rpartition("/")[2], file=file)

"""


def source(many: Many, name: str, more: str = "") -> str:
    return f'[[source]]\nname = "{name}"\nurl = "{many.sources[name].url}"\n{more}\n'


def write(many: Many, *parts: str) -> Path:
    """Write a file of Sources; without parts, of all, which are mirrored by their names."""
    parts = parts or (MIRRORED, *(source(many, name) for name in many.sources))
    file = many.folder / "fleet.toml"
    new = file.with_suffix(".new")
    new.write_text("\n".join(parts))
    return new.replace(file)  # as it is watched, it must never be there in part


class Told:
    """What a process has reported so far."""

    def __init__(self, process: Process) -> None:
        self._process = process
        self.totals: dict[str, Any] = {}
        self.sources: dict[str, dict[str, Any]] = {}

    async def until(self, condition: Callable[[Told], bool]) -> None:
        assert self._process.stdout is not None
        async with asyncio.timeout(PATIENCE):
            while not condition(self):
                line = await self._process.stdout.readline()
                assert line, "the process ended before"
                self._take(json.loads(line))

    def _take(self, facts: dict[str, Any]) -> None:
        self.sources |= facts.pop("changed")
        for name in facts.pop("gone"):
            del self.sources[name]
        self.totals = facts

    def in_step(self) -> set[str]:
        return {name for name, one in self.sources.items() if one["level"]}


async def said(process: Process, text: str) -> None:
    assert process.stderr is not None
    async with asyncio.timeout(PATIENCE):
        while text not in (line := (await process.stderr.readline()).decode()):
            assert line, "the process ended before"


@pytest.fixture
def few_files() -> Iterator[int]:
    """The number of files that a process may open at first."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (1024, hard))
    yield 1024
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


async def test_each_source_has_its_own_handler_filter_and_state(many: Many) -> None:
    await many.start(3)
    (many.folder / "noting.py").write_text(HANDLER)
    file = write(
        many,
        MIRRORED,
        source(many, "s0"),
        source(many, "s1", 'only = ["r1"]\nstate = "states/{name}"'),
        source(many, "s2", f'{NOTING}state = "states/{{name}}"'),
    )
    done = await run("follow", "--config", file, "--once", "--json")
    assert (done[0], done[2]) == (0, "")
    final = json.loads(done[1].splitlines()[-1])
    assert (final["sources"], final["level"], final["resources"]) == (3, 3, 7)
    assert many.equal("s0")
    assert [path.name for path in (many.folder / "s1").iterdir()] == ["r1"]
    noted = sorted((many.folder / "noted").read_text().splitlines())
    assert noted == ["updated r0", "updated r1", "updated r2"]
    assert sorted(path.name for path in (many.folder / "states").iterdir()) == ["s1", "s2"]


async def test_once_ends_with_the_sources_that_failed(many: Many) -> None:
    await many.start(2)
    await many.sources["s1"].server.stop()
    file = write(many)
    code, output, errors = await run("follow", "--config", file, "--once")
    assert code == 1
    assert "1 of 2 Sources level, 1 failing" in output
    assert errors.splitlines()[-2] == "rsnotify: 1 of 2 Sources are not level:"
    assert errors.splitlines()[-1].startswith("  s1: http://127.0.0.1:")
    assert "Traceback" not in errors
    assert many.equal("s0")


async def test_once_fails_if_it_is_stopped_before_all_are_level(many: Many) -> None:
    await many.start(2)
    many.sources["s1"].answers[path_of("r0")] = held_back(asyncio.Event(), status(500))
    file = write(many)
    doubt = "1 resource has changes that are not applied yet"
    arguments = ("follow", "--config", file, "--once", "--json")
    async with running(*arguments) as process:
        told = Told(process)
        await told.until(
            lambda told: told.in_step() == {"s0"} and told.sources["s1"]["doubts"] == [doubt]
        )
        process.terminate()
        code, _, errors = await outcome(process)
    assert code == 1
    assert errors.splitlines() == [
        "rsnotify: 1 of 2 Sources are not level:",
        f"  s1: stopped before the copy was level: {doubt}",
    ]


async def test_the_file_is_read_again_when_it_changes(many: Many) -> None:
    await many.start(4)
    defaults = MIRRORED + "poll = 0.2\n"
    file = write(many, defaults, source(many, "s0"), source(many, "s1"))
    port = free_port()
    arguments = ("follow", "--config", file, "--json", "--status-port", port)
    async with running(*arguments) as process:
        told = Told(process)
        gets = many.sources["s0"].gets
        await told.until(lambda told: told.in_step() == {"s0", "s1"})
        async with (
            aiohttp.ClientSession() as session,
            session.get(f"http://127.0.0.1:{port}/status") as answer,
        ):
            assert [one["name"] for one in (await answer.json())["sources"]] == ["s0", "s1"]
        asked = gets[OFFER]

        write(many, defaults, source(many, "s0"), source(many, "s1", 'only = ["r0"]'))
        await told.until(lambda told: told.sources["s1"]["resources"] == 1)
        write(many, defaults, source(many, "s0"), source(many, "s2"))
        process.send_signal(signal.SIGHUP)  # at once
        await told.until(lambda told: told.in_step() == {"s0", "s2"})
        assert told.totals["sources"] == 2
        assert gets[OFFER] == asked

        write(many, defaults, source(many, "s0"), source(many, "s1", "ony = []"))
        process.send_signal(signal.SIGHUP)
        await said(process, "the configuration is unchanged: ")
        write(many, defaults, source(many, "s0"), source(many, "s1", 'handler = "no:thing"'))
        process.send_signal(signal.SIGHUP)
        await said(process, "[[source]] s1: state: a handler needs a place for its state")
        await many.sources["s3"].server.stop()
        write(many, defaults, source(many, "s2"), source(many, "s3"))
        process.send_signal(signal.SIGHUP)
        await said(process, "WARNING rsnotify.subscriber: s3: waiting for the Source: ")
        many.sources["s2"].put("r0", b"still followed")
        await told.until(lambda _: many.equal("s2"))
        process.terminate()
        assert await process.wait() == 0


async def test_a_changed_file_raises_the_limit_of_open_files(many: Many, few_files: int) -> None:
    await many.start(1)
    file = write(many)
    async with running("follow", "--config", file, "--json") as process:
        await Told(process).until(lambda told: told.in_step() == {"s0"})
        assert resource.prlimit(process.pid, resource.RLIMIT_NOFILE)[0] == few_files
        write(many, f"[limits]\nrequests = {few_files}", MIRRORED, source(many, "s0"))
        process.send_signal(signal.SIGHUP)
        await said(process, "are read only when the command starts")
        assert resource.prlimit(process.pid, resource.RLIMIT_NOFILE)[0] > few_files


async def test_a_path_on_the_command_line_begins_at_the_working_directory(
    many: Many, monkeypatch: pytest.MonkeyPatch
) -> None:
    await many.start(1)
    (many.folder / "here").mkdir()
    monkeypatch.chdir(many.folder / "here")
    file = write(many)
    arguments = ["follow", "--config", str(file), "--mqtt-url", "mqtts://b.example"]
    ended = CliRunner().invoke(application(), [*arguments, "--mqtt-ca", "ca.pem"])
    assert isinstance(ended.exception, ConfigurationError)
    assert str(many.folder / "here" / "ca.pem") in str(ended.exception)


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        ((), "URL and DEST are required, unless you give --config FILE"),
        ((URL,), "URL and DEST are required"),
        ((URL, "--config", "FILE"), "set url in the file"),
        (("--state", "x", "--config", "FILE"), "set state in the file"),
        (
            (*("--config", "FILE", "--callback-url"), URL, "--callback-signature", "md5"),
            "the signature methods are",
        ),
        (("--config", "FILE", "--callback-url", URL), "--callback-port"),
        (("--config", "FILE", "--type", "text"), "s0: 'text' is not a media type"),
        (("--config", "FILE", "--prefer", "x"), "s0: 'x' is not a media type"),
        (("--config", "FILE", "--mqtt-user", "u"), "s0: an MQTT user or certificate requires"),
        (("--config", "no such file"), "cannot read no such file: it does not exist"),
    ],
)
async def test_wrong_settings_are_reported_before_any_source_is_followed(
    many: Many, arguments: tuple[str, ...], told: str
) -> None:
    await many.start(1)
    file = write(many)
    named = [str(file) if one == "FILE" else one for one in arguments]
    ended = CliRunner().invoke(application(), ["follow", *named])
    assert isinstance(ended.exception, ConfigurationError)
    assert told in str(ended.exception)
    assert "\n" not in str(ended.exception)
    assert sum(many.sources["s0"].gets.values()) == 0
