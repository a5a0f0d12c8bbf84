"""The commands as a user runs them: real processes, exit codes, signals, kill -9."""

from __future__ import annotations

import asyncio
import json
import signal

import pytest

from rsnotify.format.model import Link, Rel
from tests.subscriber.destination import Destination
from tests.subscriber.hub import SmallHub
from tests.subscriber.processes import SECONDS, outcome, run, running, until_reported
from tests.subscriber.source import SmallSource, body, first, held_back, path_of, sha256, status


@pytest.fixture(autouse=True)
def some_content(source: SmallSource) -> None:
    for n in range(30):
        source.put(f"folder/r{n}.ttl", b"%d" % n)


async def test_follow_once_catches_up_and_audit_says_in_step(
    source: SmallSource, destination: Destination
) -> None:
    done = await run("follow", source.site, destination.folder, "--once")
    assert done[0] == 0, done
    assert destination.equals_source()
    audited = await run("audit", source.site, destination.folder)
    assert audited == (0, "in step: 30 resources at the Source\n", "")


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
    assert refused == (2, "", "rsnotify: 'text/*' is no media type; write it as text/turtle\n")


async def test_follow_once_reports_what_could_not_be_fetched(
    source: SmallSource, destination: Destination
) -> None:
    source.answers[path_of("folder/r3.ttl")] = status(403)
    code, _, errors = await run("follow", source.url, destination.folder, "--once")
    assert code == 1
    assert errors.splitlines()[-1].startswith(f"rsnotify: {source.base}folder/r3.ttl: ")
    assert "Traceback" not in errors


async def test_a_url_that_leads_nowhere_gets_one_sentence(
    source: SmallSource, destination: Destination
) -> None:
    source.answers["/.well-known/resourcesync"] = status(404)
    code, _, errors = await run("follow", source.site, destination.folder)
    assert code == 2
    assert len(errors.splitlines()) == 1
    assert errors.startswith(f"rsnotify: {source.site} leads to nothing that can be followed")


async def test_audit_reports_differences(source: SmallSource, destination: Destination) -> None:
    await destination.catch_up()
    (destination.folder / "folder/r1.ttl").unlink()
    (destination.folder / "folder/r2.ttl").write_bytes(b"changed by hand")
    (destination.folder / "stranger").write_bytes(b"x")
    code, output, _ = await run("audit", source.url, destination.folder, "--json")
    assert code == 1
    found = json.loads(output)
    assert found["in_step"] is False
    assert found["created"] == [source.base + "folder/r1.ttl"]
    assert found["updated"] == [source.base + "folder/r2.ttl"]
    assert found["deleted"] == found["foreign"] == ["stranger"]


async def test_audit_reports_that_it_could_not_decide(
    source: SmallSource, destination: Destination
) -> None:
    await destination.catch_up()
    source.answers["/data/resourcelist.xml"] = status(500)
    code, _, errors = await run("audit", source.url, destination.folder)
    assert code == 2
    assert "resourcelist.xml: the server says 500" in errors


async def test_sigterm_ends_in_order_with_exit_0(
    source: SmallSource, destination: Destination
) -> None:
    arguments = ("follow", source.url, destination.folder, "--json", "--via", "poll")
    async with running(*arguments) as process:
        await until_reported(process, level=True, resources=30, push="off", pending=0)
        process.send_signal(signal.SIGTERM)
        code, _, errors = await outcome(process)
    assert (code, errors) == (0, "")
    assert destination.equals_source()


async def test_follow_once_fails_if_it_is_stopped_before_it_is_level(
    source: SmallSource, destination: Destination
) -> None:
    source.answers[path_of("folder/r1.ttl")] = held_back(asyncio.Event(), status(500))
    arguments = ("follow", source.url, destination.folder, "--once", "--json")
    async with running(*arguments) as process:
        await until_reported(process, level=False, pending=1)
        process.send_signal(signal.SIGTERM)
        code, _, errors = await outcome(process)
    assert code == 1
    assert errors.startswith("rsnotify: it was stopped before the copy was level: 1 resource has")


async def test_follow_via_poll(source: SmallSource, destination: Destination) -> None:
    arguments = ("follow", source.url, destination.folder, "--json", "--via", "poll", "--poll", 0.2)
    async with running(*arguments) as process:
        await until_reported(process, level=True)
        source.put("new.ttl", b"1")
        source.delete("folder/r0.ttl")
        await until_reported(process, level=True, applied=32)
    assert destination.equals_source()


async def test_follow_via_websocket_needs_a_hub(
    source: SmallSource, destination: Destination
) -> None:
    arguments = ("follow", source.url, destination.folder, "--via", "websocket")
    code, _, errors = await run(*arguments)
    assert code == 2
    assert "offers no hub that speaks WebSocket" in errors


async def test_the_next_run_after_kill_9_ends_equal(
    source: SmallSource, hub: SmallHub, destination: Destination
) -> None:
    source.hubs = [hub.url]
    gate = asyncio.Event()
    arguments = ("follow", source.url, destination.folder)
    async with running(*arguments) as process:
        await hub.subscribed()
        halfway = path_of("folder/r100.ttl")

        async def kill(request: object) -> object:
            if process.returncode is None:
                process.kill()
            gate.set()
            return await body(source.contents["folder/r100.ttl"])(request)  # type: ignore[arg-type]

        source.answers[halfway] = first(1, kill, source.own)  # type: ignore[arg-type]
        for n in range(200):
            begin = source.last
            change = source.put(f"folder/r{n}.ttl", b"new %d" % n)
            assert change.changed_at is not None
            await hub.publish(source.fragment([change], begin), begin, change.changed_at)
        async with asyncio.timeout(SECONDS):
            await gate.wait()
            assert await process.wait() == -signal.SIGKILL
    source.answers.clear()
    done = await run(*arguments, "--once")
    assert done[0] == 0, done
    assert destination.equals_source()
    assert (await run("audit", source.url, destination.folder))[0] == 0


async def test_follow_reports_that_a_pattern_matches_nothing(
    source: SmallSource, destination: Destination
) -> None:
    arguments = ("follow", source.url, destination.folder, "--once", "--only", "*.tll")
    code, _, errors = await run(*arguments)
    assert code == 0
    assert "no resource that the Source lists is selected by only *.tll" in errors


async def test_audit_does_not_compare_with_a_missing_folder(
    source: SmallSource, destination: Destination
) -> None:
    code, output, errors = await run("audit", source.url, destination.folder)
    assert (code, output) == (2, "")
    assert f"there is no folder {destination.folder} to compare with the Source" in errors
