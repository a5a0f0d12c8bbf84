"""`rsnotify source` as a process: all changes in a folder are published."""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
import socket
import subprocess
import time
import urllib.error
import urllib.request
from datetime import UTC, datetime
from pathlib import Path

import pytest
from msgspec.structs import replace

from rsnotify.format.model import Resource
from rsnotify.format.reader import read_document
from rsnotify_publisher.commands.source_run import SourceReport, hub_line
from rsnotify_publisher.folder.file_names import FileNames
from rsnotify_publisher.folder.scanner import FolderScanner
from rsnotify_publisher.journal import system_clock
from rsnotify_publisher.source_status import HubStatus, SourceStatus, StatusReader
from tests.fork_server import forked
from tests.ports import free_port
from tests.publisher.helpers import (
    BASE,
    PATIENCE,
    PORT,
    FakeHub,
    SourceProcess,
    Start,
    eventually,
    put,
    quick_publisher,
)
from tests.publisher.packed import sha256


def listed(process: SourceProcess) -> dict[str, Resource]:
    document = read_document(process.get("resourcelist.xml"))
    return {entry.uri.removeprefix(process.url): entry for entry in document.resources}


def last_change(process: SourceProcess, name: str) -> Resource:
    document = read_document(process.get("changelist.xml"))
    return [entry for entry in document.resources if entry.uri == process.url + name][-1]


def status(process: SourceProcess, name: str, **headers: str) -> int:
    request = urllib.request.Request(process.url + name, headers=headers)
    try:
        with urllib.request.urlopen(request) as answer:
            return int(answer.status)
    except urllib.error.HTTPError as error:
        with error:
            return error.code


def test_the_first_start_loads_the_folder_as_a_baseline(folder: Path, source: Start):
    (folder / "a.ttl").write_text("<a> <b> <c> .")
    (folder / "deep" / "er").mkdir(parents=True)
    (folder / "deep" / "er" / "b.bin").write_bytes(b"\0\1")
    status = free_port()
    process = source(folder, *PORT, "--status-port", str(status))
    url = process.url
    assert process.ready == f"rsnotify source serving {url} (2 resources), listening on {url}"
    for path, text in (("readyz", b"ready\n"), ("metrics", b"rsnotify_source_resources 2.0\n")):
        with urllib.request.urlopen(f"http://127.0.0.1:{status}/{path}", timeout=PATIENCE) as one:
            assert text in one.read()
    resources = listed(process)
    assert set(resources) == {"a.ttl", "deep/er/b.bin"}
    assert resources["a.ttl"].type == "text/turtle"
    assert resources["a.ttl"].length == 13
    assert resources["a.ttl"].hash == sha256(b"<a> <b> <c> .")
    assert process.changes() == []
    assert process.get("deep/er/b.bin") == b"\0\1"


def test_changes_of_files_are_published(folder: Path, source: Start):
    for name in ("old.txt", "moved.txt", "replaced", "same", "tree/b/f", "tree/g", "file"):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(name)
    process = source(folder, *PORT)
    (folder / "old.txt").write_text("older")
    process.wait_for_change("updated", "old.txt")
    (folder / "old.txt").unlink()
    (folder / ".hidden").write_text("hidden")
    put(folder / "new.txt", "new")
    (folder / "moved.txt").rename(folder / "here.txt")
    put(folder / "replaced", "2")
    with (folder / "same").open("r+") as file:  # without truncating it first
        file.write("same")
    (folder / "tree").rename(folder / "branch")
    (folder / "file").unlink()
    (folder / "file").mkdir()
    put(folder / "file" / "in", "2")
    new = [f"n{number}/x/y/f.txt" for number in range(20)]
    for name in new:
        (folder / name).parent.mkdir(parents=True)
        put(folder / name, name)
    expected = {("updated", "replaced")}
    for name in ("new.txt", "here.txt", "branch/b/f", "branch/g", "file/in", *new):
        expected.add(("created", name))
    for name in ("moved.txt", "tree/b/f", "tree/g", "file"):
        expected.add(("deleted", name))
    eventually(lambda: {*process.changes()} >= expected | {("deleted", "old.txt")})
    found = [change for change in process.changes() if change[1] != "old.txt"]
    assert sorted(found) == sorted(expected), "each once, and nothing of others"
    change = last_change(process, "here.txt")
    assert change.hash == sha256(b"moved.txt")
    assert (change.length, change.type) == (9, "text/plain")


def test_changes_while_it_was_stopped_are_published_at_the_next_start(
    folder: Path, source: Start, unused_tcp_port: int
):
    for name in ("same", "changed", "gone"):
        (folder / name).write_text(name)
    port = ("--port", str(unused_tcp_port))
    process = source(folder, *port)
    url = process.url
    assert process.end()[0] == 0
    (folder / "changed").write_text("CHANGED")
    (folder / "gone").unlink()
    (folder / "new").write_text("new")
    process = source(folder, *port)
    assert process.url == url
    assert sorted(process.changes()) == [
        ("created", "new"),
        ("deleted", "gone"),
        ("updated", "changed"),
    ]
    assert "(3 resources)" in process.ready


def test_a_file_that_changed_is_found_although_it_has_its_earlier_date_and_size(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """Reproducible builds give all files one date."""
    monkeypatch.setattr("rsnotify_publisher.folder.scanner.MTIME_RESOLUTION", 0.0)
    file = folder / "a"

    def write(text: str) -> int:
        file.write_text(text)
        os.utime(file, (1, 1))
        return file.stat().st_ctime_ns

    before = write("1")
    publisher = quick_publisher(tmp_path / "state")
    with publisher.source.open_journal() as journal:
        scanner = FolderScanner(FileNames(folder, BASE), journal)
        publisher.load(scanner.baseline(lambda: None))
        assert [*scanner.compare(folder)] == [None]
        eventually(lambda: write("2") != before)
        (record,) = scanner.compare(folder)
    assert record is not None
    assert record.resource.hash == sha256(b"2")


def test_an_empty_folder_deletes_nothing_since_its_volume_may_not_be_mounted(
    folder: Path, source: Start, unused_tcp_port: int
):
    port = ("--port", str(unused_tcp_port))
    (folder / "a").write_text("1")
    assert source(folder, *port).end()[0] == 0
    (folder / "a").unlink()
    process = source(folder, *port)
    assert process.changes() == []
    output = process.end()[1]
    assert f"{folder} is empty, so no deletions are published; mount it" in output
    (folder / ".keep").touch()
    assert source(folder, *port).changes() == [("deleted", "a")]


def test_a_killed_source_continues_after_a_restart(
    folder: Path, source: Start, unused_tcp_port: int
):
    port = ("--port", str(unused_tcp_port))
    process = source(folder, *port)
    put(folder / "a", "1")
    process.wait_for_change("created", "a")
    process.kill()
    (folder / "a").write_text("2")
    process = source(folder, *port)
    assert process.changes() == [("created", "a"), ("updated", "a")]


ODD = ["a b", "100%", "ä€", "#", "?", "a+b&c=d", "%41", "new\nline", "quote'\"<>", "~-._!*();@,$[]"]


def test_files_with_odd_names_are_served(folder: Path, source: Start):
    for name in ODD:
        (folder / name).mkdir()
        (folder / name / name).write_text(name)
    (folder / os.fsdecode(b"\xff")).write_bytes(b"raw")
    process = source(folder, *PORT)
    held = {process.get(uri).decode(): uri for uri in listed(process)}
    assert held.pop("raw") == "%FF"
    assert set(held) == set(ODD)
    (folder / os.fsdecode(b"\xfe")).write_bytes(b"new")
    process.wait_for_change("created", "%FE")
    for name in ODD:
        (folder / name / name).write_text("changed")
        process.wait_for_change("updated", held[name])


ESCAPES = ["/../outside", "/%2e%2e/outside", "/..%2foutside", "//etc/passwd", "/a%00b", "/sub%2ff"]


def test_only_published_files_are_listed_and_served(folder: Path, tmp_path: Path, source: Start):
    (tmp_path / "outside").write_text("secret")
    (folder / ".hidden").write_text("secret")
    (folder / ".git").mkdir()
    (folder / ".git" / "config").write_text("secret")
    (folder / "real").write_text("real")
    (folder / "sub").mkdir()
    (folder / "sub" / "f").write_text("secret")
    (folder / "out").symlink_to(tmp_path / "outside")
    (folder / "hid").symlink_to(folder / ".hidden")
    (folder / "in").symlink_to(folder / "real")
    (folder / "away").symlink_to(tmp_path)
    (folder / "round").symlink_to(folder / "sub")
    (folder / "loop").symlink_to(folder / "loop")
    process = source(folder, *PORT)
    assert set(listed(process)) == {"real", "sub/f", "in"}
    assert process.get("in") == b"real"
    for name in ("out", "hid", "away/outside", "round/f", "loop", ".hidden", ".git/config"):
        assert status(process, name) == 404
    for path in ESCAPES:
        with socket.create_connection(("127.0.0.1", int(process.port))) as client:
            client.sendall(f"GET {path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n".encode())
            with client.makefile("rb") as file:
                answer = file.read()
        assert answer.split()[1] in (b"404", b"400"), path
        assert b"secret" not in answer


def is_validated(process: SourceProcess, name: str) -> bool:
    """Return whether the server answers 304 to a request with the current entity tag."""
    with urllib.request.urlopen(process.url + name) as answer:
        return status(process, name, **{"If-None-Match": answer.headers["ETag"]}) == 304


def test_files_support_ranges_and_conditional_requests(folder: Path, source: Start):
    (folder / "a.nt").write_bytes(b"0123456789")
    os.utime(folder / "a.nt", (10**9, 10**9))
    (folder / "a.nt.gz").write_bytes(b"not what it seems")
    # A minute ahead, so that it counts as recent until the process responds.
    file, now = folder / "new", time.time_ns() + 60_000_000_000
    file.write_bytes(b"first")
    os.utime(file, ns=(now, now))
    process = source(folder, *PORT)
    request = urllib.request.Request(
        process.url + "a.nt", headers={"Range": "bytes=2-4", "Accept-Encoding": "gzip"}
    )
    with urllib.request.urlopen(request) as answer:
        assert (answer.status, answer.read()) == (206, b"234")
        assert answer.headers["Content-Type"] == "application/n-triples"
        assert "Content-Encoding" not in answer.headers
        assert "Last-Modified" in answer.headers
    eventually(lambda: is_validated(process, "a.nt"))
    head = urllib.request.Request(process.url + "a.nt", method="HEAD")
    with urllib.request.urlopen(head) as answer:
        assert (answer.headers["Content-Length"], answer.read()) == ("10", b"")
    for tick in (now, 10**18):  # within a tick of the clock, and with the date of all other files
        os.utime(file, ns=(tick, tick))
        with urllib.request.urlopen(process.url + "new") as answer:
            tag = answer.headers["ETag"]
        file.write_bytes(b"other")
        os.utime(file, ns=(tick, tick))
        assert status(process, "new", **{"If-None-Match": tag}) == 200


def without_privilege() -> list[str]:
    """Return a command prefix that removes root's permission to read everything."""
    if os.geteuid() != 0:
        return []
    if shutil.which("setpriv") is None:
        pytest.skip("root can read everything, and there is no setpriv to change that")
    less = "-dac_override,-dac_read_search"
    return ["setpriv", f"--bounding-set={less}", f"--inh-caps={less}"]


def test_an_unreadable_file_is_skipped(folder: Path, source: Start):
    (folder / "no").write_text("x")
    (folder / "no").chmod(0)
    (folder / "yes").write_text("y")
    assert set(listed(source(folder, *PORT, by=without_privilege()))) == {"yes"}


async def test_changes_reach_a_hub_with_their_content(folder: Path, source: Start, hub: FakeHub):
    advertised = ("--advertise", "https://hub.example/")
    options = ("--hub", hub.url, *advertised, "--token", "t0ken", "--heartbeat", "0.2")
    process = await asyncio.to_thread(source, folder, *PORT, *options)
    line = await asyncio.to_thread(process.next_line)
    assert line.startswith("hub ws://127.0.0.1:")
    assert line.endswith(": up to date")
    put(folder / "a.ttl", "<a> <b> <c> .")
    await hub.has(process.url + "a.ttl")
    await hub.until(lambda: not hub.fragments[-1].resources)
    entry = next(f.resources[-1] for f in hub.fragments if f.resources)
    assert entry.links[0].href == "data:text/turtle;base64,PGE+IDxiPiA8Yz4gLg=="
    assert hub.headers[0]["Authorization"] == "Bearer t0ken"
    document = read_document(await asyncio.to_thread(process.get, "capabilitylist.xml"))
    (channel,) = [one for one in document.resources if one.uri == process.url + "channel.xml"]
    assert [link.href for link in channel.links] == [
        "https://hub.example/websub",
        "wss://hub.example/ws",
    ]


def test_below_a_path_only_the_well_known_document_is_at_the_host(
    folder: Path, source: Start, unused_tcp_port: int
):
    (folder / "a").write_text("1")
    base = f"http://127.0.0.1:{unused_tcp_port}/some/data"
    process = source(folder, "--port", str(unused_tcp_port), "--base-url", base)
    assert process.url == base + "/"
    assert process.get("a") == b"1"
    with urllib.request.urlopen(
        f"http://127.0.0.1:{unused_tcp_port}/.well-known/resourcesync"
    ) as answer:
        (entry,) = read_document(answer.read()).resources
    assert entry.uri == base + "/capabilitylist.xml"


def test_the_command_shuts_down_cleanly_on_an_interruption(folder: Path, source: Start):
    process = source(folder, *PORT)
    (folder / "a").write_text("1")
    process.wait_for_change("created", "a")
    os.kill(process.pid, signal.SIGINT)
    eventually(lambda: process.has_ended())
    code, errors = process.end()
    assert code == 0
    assert "Traceback" not in errors


STUCK = """
import threading
from rsnotify_publisher.folder import folder_publishing
from rsnotify.runtime.command_line import main

def close(publishers):
    print("closing", flush=True)
    threading.Event().wait()

folder_publishing.close_all = close
main()
"""


def test_the_second_signal_forces_the_shutdown(folder: Path):
    command = [*forked(STUCK), "source", str(folder), *PORT]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        try:
            assert "serving" in process.stdout.readline()
            process.terminate()
            assert process.stdout.readline() == "closing\n"
            process.send_signal(signal.SIGINT)
            _, errors = process.communicate(timeout=PATIENCE)
        finally:
            process.kill()
    assert process.returncode == 1
    assert errors.splitlines()[-1].startswith("rsnotify: the Source did not shut down cleanly")


# The status of `rsnotify source`: the number of recorded changes, and each hub.


NOWHERE = "http://127.0.0.1:1/"
AT = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)
WELL = HubStatus("https://hub.example/", 0, AT, reached=True, reached_before=True)
AWAY = replace(WELL, reached=False)


def test_the_status_of_a_hub_covers_all_sets(tmp_path: Path):
    with (
        quick_publisher(tmp_path / "a", NOWHERE, grace=0) as first,
        quick_publisher(tmp_path / "b", NOWHERE, grace=0) as second,
    ):
        reader = StatusReader([first, second])
        reader.read()
        first.updated(BASE + "a")
        second.updated(BASE + "b")
        second.updated(BASE + "c")
        status = reader.read()
        reader.close()
    assert (status.resources, status.changes) == (3, 3)
    (hub,) = status.hubs
    assert (hub.waiting, hub.reached_before) == (3, False)


async def test_the_status_has_the_number_of_changes_and_each_hub(tmp_path: Path, hub: FakeHub):
    later = 0
    clock = lambda: system_clock() + later  # noqa: E731
    async with quick_publisher(
        tmp_path, hub.url + "websub", NOWHERE, clock=clock, grace=0
    ) as publisher:
        reader = StatusReader([publisher])
        first = reader.read()
        assert (first.resources, first.changes) == (0, 0)
        assert [one.reached for one in first.hubs] == [None, None]
        await publisher.acreated(BASE + "a")
        await publisher.aupdated(BASE + "a")
        assert reader.read().resources == 1
        await hub.has(BASE + "a")
        async with asyncio.timeout(PATIENCE):
            while not (status := reader.read()).hubs[0].reached:  # noqa: ASYNC110
                await asyncio.sleep(0.01)
        assert (status.resources, status.changes) == (1, 2)
        assert [(one.waiting, one.reached) for one in status.hubs] == [(0, True), (2, None)]
        later = 600_000_000  # µs: long after the last heartbeat that a hub can have accepted
        away = reader.read().hubs[1]
        assert (away.waiting, away.reached, away.reached_before) == (2, False, False)
        reader.close()


@pytest.mark.parametrize(
    ("status", "expected"),
    [
        (WELL, "up to date"),
        (replace(WELL, waiting=1), "sending 1 change"),
        (replace(WELL, reached=None), "connecting"),
        (AWAY, "unreachable since 2026-01-02T03:04:05Z"),
        (replace(AWAY, waiting=3), "unreachable since 2026-01-02T03:04:05Z, 3 changes waiting"),
        (replace(AWAY, waiting=10_000), "more than 10,000 changes waiting"),
        (replace(AWAY, reached_before=False), "unreachable so far"),
    ],
)
def test_the_status_line_of_a_hub(status: HubStatus, expected: str):
    assert hub_line(status).startswith("hub https://hub.example/: ")
    assert hub_line(status).endswith(expected)


def test_counts_have_the_right_number():
    assert (
        SourceReport().sentence(SourceStatus(1, 1, ()))
        == "1 resource, 1 change recorded since the start"
    )
    assert (
        SourceReport().sentence(SourceStatus(5_000, 0, ())).startswith("5,000 resources, 0 changes")
    )


def test_status_lines_are_printed_only_for_changes(capsys: pytest.CaptureFixture[str]):
    report = SourceReport()
    for _ in range(200):
        report.show(SourceStatus(3, 0, (replace(WELL, reached=None),)))
    assert capsys.readouterr().out == ""
    for hub in (WELL, AWAY, WELL):
        for _ in range(100):
            report.show(SourceStatus(3, 0, (hub,)))
    lines = capsys.readouterr().out.splitlines()
    assert lines == [hub_line(WELL), hub_line(AWAY), hub_line(WELL)]
    for _ in range(100):
        report.show(SourceStatus(3, 7, (WELL,)))
    assert capsys.readouterr().out.splitlines() == [SourceReport().sentence(SourceStatus(3, 7, ()))]
