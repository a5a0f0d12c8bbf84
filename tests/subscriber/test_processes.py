"""The commands as a user runs them: real processes, exit codes, signals, kill -9."""

from __future__ import annotations

import asyncio
import json
import signal

import pytest
from aiohttp import web

from rsnotify.format.model import Link, Rel
from tests.subscriber.destination import Destination
from tests.subscriber.hub import SmallHub, push
from tests.subscriber.processes import SECONDS, outcome, run, running, until_reported
from tests.subscriber.source import Answer, SmallSource, body, first, path_of, sha256, status


@pytest.fixture(autouse=True)
def some_content(source: SmallSource) -> None:
    for n in range(30):
        source.put(f"folder/r{n}.ttl", b"%d" % n)


@pytest.fixture
def follow(source: SmallSource, destination: Destination) -> tuple[object, ...]:
    return ("follow", source.url, destination.folder)


async def test_follow_once_catches_up_and_audit_says_in_step(
    source: SmallSource, destination: Destination
) -> None:
    done = await run("follow", source.site, destination.folder, "--once")
    assert done[0] == 0, done
    assert destination.equals_source()
    audited = await run("audit", source.site, destination.folder)
    where = f"the Source was found at {source.url}"
    assert where in done[1]
    last = done[1].splitlines()[-1]
    assert last.startswith("level: 30 resources, synced through 20")
    assert "compared with the whole set at 20" in last
    assert audited == (0, f"{where}\nin step: 30 resources at the Source\n", "")


async def test_follow_once_ends_with_the_status(
    source: SmallSource, destination: Destination
) -> None:
    arguments = ("follow", source.site, destination.folder, "--once", "--json")
    code, output, errors = await run(*arguments)
    assert (code, errors) == (0, "")
    final = json.loads(output.splitlines()[-1])
    assert (final["level"], final["resources"], final["pending"]) == (True, 30, 0)
    assert (final["applied"], final["copied"]) == (30, 30)
    source.put("out of reach", b"")
    source.answers[path_of("out of reach")] = status(403)
    code, output, _ = await run(*arguments)
    assert code == 1
    final = json.loads(output.splitlines()[-1])
    assert (final["level"], final["resources"], final["pending"]) == (False, 30, 1)


async def test_follow_fetches_the_preferred_type_and_the_exact_version(
    source: SmallSource, destination: Destination
) -> None:
    follow = ("follow", source.url, destination.folder, "--once")
    options = ("--prefer", "application/ld+json", "--prefer", "text/turtle", "--exact")
    assert (await run(*follow, *options))[0] == 0
    source.answers["/other/a.ttl"] = body(b"<a> <b> <c> .")
    source.answers["/other/b.1"] = body(b"one")
    digest = sha256(b"<a> <b> <c> .")
    turtle = Link(Rel.ALTERNATE, source.site + "other/a.ttl", type="text/turtle", hash=digest)
    source.put("a", b"<p>", type="text/html", links=(turtle,))
    source.put("b", b"one", links=(Link(Rel.MEMENTO, source.site + "other/b.1"),))
    source.contents["b"] = b"two, which no list has yet"
    done = await run(*follow, *options)
    assert done[0] == 0, done
    assert destination.files()["a"] == b"<a> <b> <c> ."
    assert destination.files()["b"] == b"one"
    refused = await run(*follow, "--prefer", "text/*")
    assert refused == (2, "", "rsnotify: 'text/*' is not a media type; write it as text/turtle\n")


RESOURCE, RESOURCES = path_of("folder/r3.ttl"), "/data/resourcelist.xml"


@pytest.mark.parametrize(
    ("command", "answers", "code", "said"),
    [
        ("follow --once", {RESOURCE: status(403)}, 1, "rsnotify: {}folder/r3.ttl: "),
        ("audit", {RESOURCES: status(500)}, 2, "resourcelist.xml: the server says 500"),
        ("follow --via websocket", {}, 2, "offers no hub that supports WebSocket"),
        ("follow --once --only *.tll", {}, 0, "no resource that the Source lists is selected by "),
    ],
)
async def test_commands_report_what_they_cannot_do(
    source: SmallSource,
    destination: Destination,
    command: str,
    answers: dict[str, Answer],
    code: int,
    said: str,
) -> None:
    destination.folder.mkdir()
    source.answers |= answers
    name, *options = command.split()
    done, _, errors = await run(name, source.url, destination.folder, *options)
    assert done == code
    assert said.format(source.base) in errors.splitlines()[-1]
    assert "Traceback" not in errors


@pytest.mark.parametrize(
    ("command", "said"),
    [
        ("follow", "{url} leads to no set of resources"),
        ("audit", "there is no folder {folder} to compare with the Source"),
    ],
)
async def test_what_cannot_begin_gets_one_sentence(
    source: SmallSource, destination: Destination, command: str, said: str
) -> None:
    source.answers["/.well-known/resourcesync"] = status(404)
    code, output, errors = await run(command, source.site, destination.folder)
    assert (code, output) == (2, "")
    assert len(errors.splitlines()) == 1
    assert errors.startswith(f"rsnotify: {said.format(url=source.site, folder=destination.folder)}")


async def test_follow_via_poll_until_sigterm_which_ends_it_in_order_with_exit_0(
    source: SmallSource, destination: Destination, follow: tuple[object, ...]
) -> None:
    async with running(*follow, "--json", "--via", "poll", "--poll", 0.2) as process:
        await until_reported(process, level=True, resources=30, push="off", pending=0)
        source.put("new.ttl", b"1")
        source.delete("folder/r0.ttl")
        await until_reported(process, level=True, applied=32)
        process.send_signal(signal.SIGTERM)
        code, _, errors = await outcome(process)
    assert (code, errors) == (0, "")
    assert destination.equals_source()


async def test_follow_once_fails_if_it_is_stopped_before_it_is_level(
    source: SmallSource, follow: tuple[object, ...]
) -> None:
    source.hold(path_of("folder/r1.ttl"))
    async with running(*follow, "--once", "--json") as process:
        await until_reported(process, level=False, pending=1)
        process.send_signal(signal.SIGTERM)
        code, _, errors = await outcome(process)
    assert code == 1
    assert errors.startswith("rsnotify: stopped before the copy was level: 1 resource has")


async def test_the_next_run_after_kill_9_ends_equal(
    source: SmallSource, hub: SmallHub, destination: Destination, follow: tuple[object, ...]
) -> None:
    source.hubs = [hub.url]
    gate = asyncio.Event()
    async with running(*follow) as process:
        await hub.subscribed()

        async def kill(request: web.Request) -> web.StreamResponse:
            if process.returncode is None:
                process.kill()
            gate.set()
            return await source.own(request)

        source.answers[path_of("folder/r100.ttl")] = first(1, kill, source.own)
        for n in range(200):
            source.put(f"folder/r{n}.ttl", b"new %d" % n)
            await push(source, hub)
        async with asyncio.timeout(SECONDS):
            await gate.wait()
            assert await process.wait() == -signal.SIGKILL
    source.answers.clear()
    done = await run(*follow, "--once")
    assert done[0] == 0, done
    assert destination.equals_source()
    assert (await run("audit", source.url, destination.folder))[0] == 0
