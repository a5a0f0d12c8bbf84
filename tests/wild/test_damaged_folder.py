"""The files of a copy are changed, cut, removed, restored or joined by others behind its back.

Every damage is tried with some shapes of Source, and by `make slow` with all of them. A run that
catches up ends with a right copy, or says that it may not be; it requests no resource whose file is
as it was written.
"""

from __future__ import annotations

import asyncio
import json
import os
import shutil
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import closing
from functools import partial
from itertools import count
from pathlib import Path
from threading import Event
from typing import cast

import pytest

from rsnotify import StoreUnavailable
from rsnotify.errors import StorageError
from rsnotify_subscriber import (
    Fleet,
    FolderMirror,
    FollowOptions,
    HeldResource,
    Received,
    Repair,
    default_state,
    repair,
)
from rsnotify_subscriber.following import copy_check
from rsnotify_subscriber.storage.destination_state import DestinationState
from tests.examples_count import part
from tests.publisher.helpers import eventually
from tests.subscriber.destination import PACE, PATIENCE, files_of
from tests.subscriber.processes import outcome as process_outcome
from tests.subscriber.processes import rsnotify
from tests.wild.documents import change_list, entry, md, package, resource_list, sha256, urlset
from tests.wild.running import (
    Folder,
    Recorder,
    assert_honest,
    audited,
    command_follow_once,
    follow_once,
    following,
    pace,
    run_honest,
    run_right,
    subscriber,
    until,
    until_right,
)
from tests.wild.source import Request, Source

#: Contents of the same length, so that only a time or a hash tells them apart.
NAMES = ("a", "b", "sub/c", "sub/d", "f")


def version(name: str, number: int) -> bytes:
    return f"{name} in version {number}".encode()


class Shape:
    """A Source that offers some documents, whose entries announce so much."""

    def __init__(self, source: Source, offered: str, announced: str) -> None:
        self.source = source
        self._offered = offered.split("+")
        self._announced = announced
        self.times = dict.fromkeys(NAMES, 0)
        for name in NAMES:
            source.file(name, version(name, 1))
        names = {"resourcelist": None, "changelist": None}
        source.offer(**names | {one: f"{one}.xml" for one in self._offered})
        self.publish()

    def change(self, name: str, at: int) -> None:
        self.times[name] = at
        self.source.file(name, version(name, 2), at)
        self.publish()

    def publish(self) -> None:
        source, at = self.source, self.source.t(max(self.times.values()) + 10)
        source.put("resourcelist.xml", resource_list(map(self._listed, self.times), at=at))
        in_order = sorted(self.times, key=self.times.__getitem__)
        source.list_changes(*map(self._changed, in_order), from_=-5)
        manifest = urlset(
            [self._listed(name, path=f"/{number}") for number, name in enumerate(self.times)],
            md(capability="resourcedump-manifest", at=at),
        )
        contents = {str(number): source.resources[name] for number, name in enumerate(self.times)}
        zipped = {"headers": {"Content-Type": "application/zip"}}
        source.put("1.zip", package(manifest, contents), **zipped)
        one = entry(source.uri("1.zip"), type="application/zip", at=at)
        source.put("resourcedump.xml", urlset([one], md(capability="resourcedump", at=at)))

    def _listed(self, name: str, **more: str) -> str:
        content = self.source.resources[name] if self._announced == "hashes" else None
        lastmod = None if self._announced == "nothing" else self.source.t(self.times[name])
        return entry(self.source.uri(name), lastmod=lastmod, content=content, **more)

    def _changed(self, name: str) -> str:
        kind = "updated" if self.times[name] else "created"
        content = self.source.resources[name] if self._announced == "hashes" else None
        at = self.source.t(self.times[name])
        lastmod = None if self._announced == "nothing" else at
        return entry(self.source.uri(name), kind, datetime=at, lastmod=lastmod, content=content)


SHAPES = [
    (offered, announced)
    for offered in (
        "resourcelist",
        "changelist",
        "resourcelist+changelist",
        "resourcedump",
        "resourcelist+changelist+resourcedump",
    )
    for announced in ("hashes", "lastmod", "nothing")
]


def overwritten(folder: Path, _: Path) -> None:
    (folder / "a").write_bytes(b"x" * len(version("a", 1)))
    (folder / "sub/c").write_bytes(b"longer than before, by far")


def truncated(folder: Path, _: Path) -> None:
    os.truncate(folder / "b", 3)
    os.truncate(folder / "f", 0)


def deleted(folder: Path, _: Path) -> None:
    shutil.rmtree(folder / "sub")
    (folder / "a").unlink()


def a_folder_in_its_place(folder: Path, _: Path) -> None:
    (folder / "a").unlink()
    (folder / "a").mkdir()


def a_symbolic_link_in_its_place(folder: Path, _: Path) -> None:
    (folder / "a").unlink()
    (folder / "a").symlink_to(folder / "b")


def another_in_its_place(folder: Path, _: Path) -> None:
    (folder / "a").replace(folder / "f")


def older_folder(folder: Path, older: Path) -> None:
    shutil.rmtree(folder)
    shutil.copytree(older, folder)


def older_folder_without_times(folder: Path, older: Path) -> None:
    shutil.rmtree(folder)
    shutil.copytree(older, folder, copy_function=shutil.copyfile)


def older_folder_and_state(folder: Path, older: Path) -> None:
    older_folder(folder, older)
    older_state(folder, older)


def older_state(folder: Path, older: Path) -> None:
    shutil.rmtree(default_state(folder))
    shutil.copytree(default_state(older), default_state(folder))


def touched(folder: Path, _: Path) -> None:
    for name in ("a", "b", "sub/c", "f"):
        os.utime(folder / name)


def nothing(_: Path, __: Path) -> None:
    """Leave the copy as it is."""


def changed_without_a_trace(folder: Path, _: Path) -> None:
    before = (folder / "a").stat()
    (folder / "a").write_bytes(b"x" * before.st_size)
    os.utime(folder / "a", ns=(before.st_atime_ns, before.st_mtime_ns))


#: Every damage, and how many resources have to be fetched again at most.
DAMAGES: dict[Callable[[Path, Path], None], int] = {
    overwritten: 2,
    truncated: 2,
    deleted: 3,
    a_folder_in_its_place: 1,
    a_symbolic_link_in_its_place: 1,
    another_in_its_place: 2,
    older_folder: 2,
    older_folder_without_times: 2,
    older_folder_and_state: 2,
    older_state: 2,
    touched: 0,
    nothing: 0,
}


def some(offered: str, announced: str, parts: int = 4) -> list[Callable[[Path, Path], None]]:
    """Return damages for a shape; each meets all that is announced."""
    number = SHAPES.index((offered, announced))
    return part((*DAMAGES, changed_without_a_trace), number, parts)


def keep(folder: Path, name: str) -> Path:
    """Copy a copy and its state to another folder."""
    kept = folder.with_name(name)
    shutil.copytree(folder, kept)
    shutil.copytree(default_state(folder), default_state(kept))
    return kept


async def copied(shape: Shape, folder: Path) -> Path:
    """Make a copy, a backup of it, and then two changes; return the folder of the backup."""
    assert (await follow_once(shape.source, folder)).claims
    older = keep(folder, "older")
    shape.change("b", 60)
    shape.change("sub/c", 120)
    assert (await follow_once(shape.source, folder, pace=pace(compare=0.0))).claims
    shape.source.forget()
    return older


@pytest.mark.parametrize(
    ("offered", "announced", "compare"),
    [
        (*shape, compare)
        for number, shape in enumerate(SHAPES)
        for compare in part((86_400.0, 0.0), number // 4, 2)
    ],
)
async def test_damaged_files_are_made_right(
    offered: str, announced: str, compare: float, source: Source, folder: Path
):
    shape = Shape(source, offered, announced)
    older = await copied(shape, folder)
    now = keep(folder, "now")
    for damage in some(offered, announced):
        if damage is changed_without_a_trace:
            continue  # only an audit shows it
        older_folder_and_state(folder, now)
        damage(folder, older)
        source.forget()
        outcome = await follow_once(source, folder, pace=pace(compare=compare))
        case = f"{damage.__name__}: {outcome}"
        assert not outcome.claims or files_of(folder) == source.resources, case
        assert_honest(folder, source, outcome)
        # An entry without a date or hash shows no change to a copy that was restored as a whole.
        is_hidden = announced == "nothing" and damage is older_folder_and_state
        assert outcome.claims or is_hidden, case
        requested = [name for name in NAMES for _ in source.requests(name)]
        if announced == "hashes":
            assert len({*requested}) <= DAMAGES[damage], f"{case}: {requested}"
            # Once for the damage, and once for its entry, if that is read later.
            assert len(requested) <= 2 * DAMAGES[damage], f"{case}: {requested}"


@pytest.mark.parametrize(("offered", "announced"), SHAPES)
async def test_an_audit_repairs_what_it_finds(
    offered: str, announced: str, source: Source, folder: Path
):
    shape = Shape(source, offered, announced)
    older = await copied(shape, folder)
    now = keep(folder, "now")
    for damage in some(offered, announced, 8):
        older_folder_and_state(folder, now)
        damage(folder, older)
        done = await repaired(source, folder, dry_run=True)
        planned = {*done.fetched, *done.removed}
        source.forget()
        done = await repaired(source, folder)
        case = f"{damage.__name__}: {done}"
        assert files_of(folder) == source.resources, case
        assert done.in_step is done.found.in_step is None or done.in_step, case
        assert {*done.fetched, *done.removed} == planned, case
        assert not done.left, case
        if announced == "hashes":
            assert {source.uri(name) for name in NAMES if source.requests(name)} == planned, case


@pytest.mark.parametrize(("offered", "announced"), SHAPES)
async def test_a_lost_resource_that_is_served_no_more_is_named(
    offered: str, announced: str, source: Source, folder: Path
):
    await copied(Shape(source, offered, announced), folder)
    (folder / "a").unlink()
    source.put("a", b"", status=404)
    source.put("1.zip", b"", status=404)
    outcome = await run_honest(source, folder)
    assert not outcome.claims
    assert source.uri("a") in str(outcome.reasons)


@pytest.mark.parametrize(("offered", "announced"), SHAPES)
async def test_a_lost_resource_of_which_other_content_is_served_is_what_the_lists_say(
    offered: str, announced: str, source: Source, folder: Path
):
    await copied(Shape(source, offered, announced), folder)
    (folder / "a").unlink()
    login = b"please log in"
    source.put("a", login)
    outcome = await follow_once(source, folder)
    if announced == "hashes":
        is_right = files_of(folder) == source.resources | {"a": version("a", 1)}
        assert is_right or not outcome.claims, "only the dump still has what the lists say"
        assert is_right is (offered == "resourcedump")
    else:  # nothing says that this is not the resource
        assert outcome.claims
        assert (folder / "a").read_bytes() in (login, version("a", 1))


async def repaired(source: Source, folder: Path, *, dry_run: bool = False) -> Repair:
    async with asyncio.timeout(PATIENCE):
        options = FollowOptions(pace=PACE)
        return await repair(source.url, folder, options=options, dry_run=dry_run, pause=0)


async def test_a_foreign_file_is_named_and_stays(source: Source, folder: Path):
    shape = Shape(source, "resourcelist", "hashes")
    await copied(shape, folder)
    (folder / "sub/stray").write_bytes(b"mine")
    outcome = await command_follow_once(source, folder)
    assert outcome.code == 1
    assert "1 file here is not part of the copy" in outcome.output
    assert str(folder / "sub/stray") in outcome.output
    assert (folder / "sub/stray").read_bytes() == b"mine"
    assert not (await audited(source, folder)).claims
    outcome = await follow_once(source, folder)
    assert outcome.status.level, "what is listed is right"
    assert outcome.status.foreign_files == (str(folder / "sub/stray"),)


class PausingMirror(FolderMirror):
    """Lists the files of the copy while a change is visible and not committed."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self._applied, self._listed = Event(), Event()
        self._loop = asyncio.get_running_loop()

    def apply_unflushed(self, changes: Sequence[Received]) -> None:
        super().apply_unflushed(changes)
        self._applied.set()
        assert self._listed.wait(PATIENCE)
        for _ in range(100):  # the loop may queue a call behind this one
            asyncio.run_coroutine_threadsafe(asyncio.sleep(0), self._loop).result(PATIENCE)

    def paths(self) -> Iterator[str]:
        assert self._applied.wait(PATIENCE)
        yield from list(super().paths())
        self._listed.set()


class PausingFolder(Folder):
    @property
    def handler(self) -> FolderMirror:
        return PausingMirror(self.path)


async def test_a_file_that_is_written_while_files_are_compared_is_part_of_the_copy(
    source: Source, folder: Path
):
    shape = Shape(source, "changelist", "hashes")
    await copied(shape, folder)
    shape.change("new", 180)
    outcome = await follow_once(source, PausingFolder(folder))
    assert outcome.claims, outcome
    assert files_of(folder) == source.resources


async def audit_command(
    source: Source, folder: Path, *options: str
) -> tuple[int | None, list[str], str]:
    code, output, errors = await process_outcome(
        await rsnotify("audit", source.url, folder, *options)
    )
    return code, output.splitlines(), errors


async def test_the_command_repairs_and_says_what_it_did(source: Source, folder: Path):
    await copied(Shape(source, "resourcelist+changelist", "hashes"), folder)
    truncated(folder, folder)
    (folder / "a").unlink()
    (folder / "mine").write_bytes(b"mine")
    left = "mine: it is not part of this copy; remove it, or move it away"
    found = [
        f"missing         {source.uri('a')}",
        f"different       {source.uri('b')}",
        f"different       {source.uri('f')}",
        "not listed      mine: not part of this copy",
        "not in step: 5 resources at the Source, 2 equal in the copy, 1 missing, 2 different, "
        "1 not listed",
    ]
    before = files_of(folder)
    code, output, _ = await audit_command(source, folder, "--repair", "--dry-run")
    assert code == 1
    assert output[:5] == found
    assert output[5:] == [
        *(f"would fetch     {source.uri(name)}" for name in ("a", "b", "f")),
        f"would leave     {left}",
    ]
    assert files_of(folder) == before
    code, output, _ = await audit_command(source, folder, "--repair")
    assert code == 1
    assert output[:5] == found
    assert output[5:] == [
        *(f"fetched         {source.uri(name)}" for name in ("a", "b", "f")),
        f"left            {left}",
        "not listed      mine: not part of this copy",
        "not in step: 5 resources at the Source, 5 equal in the copy, 1 not listed",
    ]
    assert files_of(folder) == source.resources | {"mine": b"mine"}
    (folder / "mine").unlink()
    (folder / "a").unlink()
    code, output, _ = await audit_command(source, folder, "--repair", "--json")
    said = json.loads(output[0])
    assert (code, said["in_step"], said["repair"]["found"]["in_step"]) == (0, True, False)
    assert said["repair"]["fetched"] == said["repair"]["found"]["created"] == [source.uri("a")]


async def test_a_repair_removes_foreign_files_only_if_asked(
    source: Source, folder: Path, tmp_path: Path
):
    await copied(Shape(source, "resourcelist+changelist", "hashes"), folder)
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "kept").write_bytes(b"not in the folder of the copy")
    (folder / "mine/deep").mkdir(parents=True)
    (folder / "mine/deep/file").write_bytes(b"mine")
    (folder / "link").symlink_to(outside)
    (folder / "a").unlink()
    code, output, _ = await audit_command(
        source, folder, "--repair", "--remove-foreign", "--dry-run"
    )
    assert code == 1
    assert output[-2:] == ["would remove    link", "would remove    mine/deep/file"]
    assert (folder / "mine/deep/file").exists()
    code, output, _ = await audit_command(source, folder, "--repair", "--remove-foreign")
    assert code == 0, output
    assert output[-4:] == [
        f"fetched         {source.uri('a')}",
        "removed         link",
        "removed         mine/deep/file",
        "in step: 5 resources at the Source",
    ]
    assert files_of(folder) == source.resources
    assert {path.name for path in folder.iterdir()} == {"a", "b", "f", "sub"}
    assert (outside / "kept").exists()


async def test_a_repair_is_refused_where_it_could_do_harm(source: Source, folder: Path):
    await copied(Shape(source, "resourcelist", "hashes"), folder)
    (folder / "a").unlink()
    async with following(source, folder, check_files=0) as one:
        await until_right(one, folder, source)
        (folder / "a").unlink()
        code, _, errors = await audit_command(source, folder, "--repair")
        assert code == 2
        assert errors.startswith(f"rsnotify: {default_state(folder)} is in use by another follower")
        assert len(errors.splitlines()) == 1
        assert not (folder / "a").exists()
        code, _, errors = await audit_command(source, folder, "--repair", "--dry-run")
        assert code == 1, "it only reads"
    for option in ("--dry-run", "--remove-foreign"):
        code, _, errors = await audit_command(source, folder, option)
        assert (code, option in errors) == (2, True)
    default_state(folder).rename(folder.with_name("elsewhere"))
    code, _, errors = await audit_command(source, folder, "--repair")
    assert code == 2
    assert "has no state of a copy" in errors
    assert not default_state(folder).exists()


@pytest.mark.parametrize("announced", ["hashes", "lastmod"])
async def test_what_the_source_does_not_serve_is_left_by_a_repair(
    announced: str, source: Source, folder: Path
):
    await copied(Shape(source, "resourcelist+changelist", announced), folder)
    deleted(folder, folder)
    source.put("a", b"", status=404)
    done = await repaired(source, folder)
    assert done.in_step is not True
    assert sorted(done.fetched) == [source.uri("sub/c"), source.uri("sub/d")]
    assert list(done.left) == [source.uri("a")]


async def test_a_missing_resource_stays_a_doubt_after_a_crash_while_it_was_applied(
    source: Source, folder: Path
):
    shape = Shape(source, "resourcelist+changelist", "hashes")
    await copied(shape, folder)
    shape.change("a", 1)
    source.put("a", b"", status=404)
    assert not (await run_honest(source, folder)).claims
    with closing(DestinationState(default_state(folder))) as state:
        state.store_intent([source.uri("a")], ())
    assert not (await run_honest(source, folder)).claims
    assert not (await run_honest(source, folder)).claims


async def test_a_repair_removes_resources_that_the_source_does_not_have(
    source: Source, folder: Path
):
    shape = Shape(source, "resourcelist", "hashes")
    await copied(shape, folder)
    del shape.times["f"]
    source.remove("f")
    shape.change("a", 200)
    done = await repaired(source, folder)
    assert done.in_step
    assert (done.fetched, done.removed) == ((source.uri("a"),), ("f",))
    assert files_of(folder) == source.resources


async def test_a_full_folder_in_the_place_of_a_file_is_named_and_stays(
    source: Source, folder: Path
):
    await copied(Shape(source, "resourcelist", "hashes"), folder)
    a_folder_in_its_place(folder, folder)
    (folder / "a/mine").write_bytes(b"mine")
    outcome = await follow_once(source, folder)
    assert not outcome.claims
    assert outcome.status.foreign_files == (str(folder / "a/mine"),)
    assert (folder / "a/mine").exists()
    assert (await audited(source, folder)).reasons == ("deleted a/mine",)


async def test_a_change_that_keeps_size_and_time_is_found_when_files_are_verified(
    source: Source, folder: Path
):
    await copied(Shape(source, "resourcelist", "hashes"), folder)
    changed_without_a_trace(folder, folder)
    outcome = await run_right(source, folder, verify=True)
    assert outcome.status.damaged == 1


async def test_files_are_compared_while_the_source_is_followed(source: Source, folder: Path):
    await copied(Shape(source, "changelist", "hashes"), folder)
    async with following(source, folder, check_files=0.05) as one:
        await until_right(one, folder, source)
        overwritten(folder, folder)
        await until(one, lambda status: status.damaged == 2)
        await until_right(one, folder, source)
        deleted(folder, folder)
        await until(one, lambda status: status.damaged == 5)
        await until_right(one, folder, source)
        assert one.status.through is not None


async def test_a_copy_is_not_level_before_its_files_were_compared(
    source: Source, folder: Path, monkeypatch: pytest.MonkeyPatch
):
    await copied(Shape(source, "resourcelist+changelist", "hashes"), folder)
    truncated(folder, folder)
    gate = asyncio.Event()
    compare = copy_check.CopyCheck._compare_files

    async def compare_later(*arguments: object, **options: bool) -> None:
        await gate.wait()
        await compare(*arguments, **options)  # type: ignore[arg-type]

    monkeypatch.setattr(copy_check.CopyCheck, "_compare_files", compare_later)
    async with following(source, folder) as one:
        await until(one, lambda status: len(status.doubts) == 1 and status.through is not None)
        assert not one.status.level
        assert "have not been compared with its state" in one.status.doubts[0]
        gate.set()
        await until_right(one, folder, source)


async def test_a_state_of_an_earlier_version_is_completed_by_reading_the_files(
    source: Source, folder: Path
):
    await copied(Shape(source, "resourcelist", "hashes"), folder)
    state = DestinationState(default_state(folder))
    state.database.execute("UPDATE {resources} SET mtime = NULL")
    state.close()
    (folder / "a").write_bytes(b"x" * (folder / "a").stat().st_size)
    await run_right(source, folder)
    assert len(source.requests("a")) == 1
    assert source.requests("b") == []
    state = DestinationState(default_state(folder))
    assert all(file.mtime for file in state.held_files("", 100))
    state.close()


async def test_an_aggregator_reports_what_it_has_lost(source: Source, tmp_path: Path):
    copy = Recorder(source.base, tmp_path / "state")
    Shape(source, "changelist", "hashes")
    await run_right(source, copy)
    del copy.held["a"]
    assert await subscriber(source, copy).verify([source.uri("a"), source.uri("unknown")]) == 1
    source.forget()
    await run_right(source, copy)
    assert copy.files() == source.resources
    assert len(source.requests("a")) == 1
    assert source.requests("b") == []
    async with following(source, copy) as one:
        await until_right(one, copy, source)
        copy.held.clear()
        assert await one.verify() == len(NAMES)
        assert not one.status.level
        await until_right(one, copy, source)


class Checked(Recorder):
    """A copy in memory that is compared with what it should hold."""

    #: How often the store cannot be read.
    failures = 0

    def find_lost(self, held: Mapping[str, HeldResource]) -> list[str]:
        if self.failures:
            self.failures -= 1
            raise StoreUnavailable("http://store.example/ does not answer")
        for name in [name for name in self.held if self.base + name not in held]:
            del self.held[name]
        hashes = {self.base + name: sha256(content) for name, content in self.held.items()}
        return [uri for uri, one in held.items() if one.hash != hashes.get(uri)]


class PlainChecked(Checked):
    """The same, called in a thread."""

    def apply(self, changes: Sequence[Received]) -> Awaitable[None]:
        asyncio.run(super().apply(changes))
        return cast(Awaitable[None], None)


@pytest.fixture(params=[Checked, PlainChecked])
def checked(request: pytest.FixtureRequest, source: Source, tmp_path: Path) -> Checked:
    return request.param(source.base, tmp_path / "state")


async def test_a_store_is_compared_with_what_it_should_hold(source: Source, checked: Checked):
    Shape(source, "resourcelist+changelist", "hashes")
    await run_right(source, checked)
    source.forget()
    checked.held |= {"b": b"damaged", "foreign": b""}
    del checked.held["a"]
    outcome = await run_right(source, checked)
    assert outcome.status.damaged == 2
    assert checked.files() == source.resources
    assert [len(source.requests(name)) for name in NAMES] == [1, 1, 0, 0, 0]
    async with following(source, checked, check_files=0.05) as one:
        await until_right(one, checked, source)
        checked.held["b"] = b"damaged"
        await until(one, lambda status: status.damaged == 1)
        await until_right(one, checked, source)


async def test_a_store_whose_state_is_lost_is_not_emptied_before_the_baseline(
    source: Source, checked: Checked
):
    Shape(source, "resourcelist", "hashes")
    checked.held |= {"a": b"old", "foreign": b""}
    source.put("resourcelist.xml", b"", status=503)
    async with following(source, checked) as one:
        await until(one, lambda status: status.error is not None)
        lists = partial(source.requests, "resourcelist.xml")
        await asyncio.to_thread(eventually, lambda: len(lists()) >= 3)
        assert set(checked.held) == {"a", "foreign"}
    Shape(source, "resourcelist", "hashes")
    await run_right(source, checked)
    assert checked.files() == source.resources


class Slow(Checked):
    """A copy in memory whose handler waits after it has applied changes."""

    def __init__(self, base: str, state: Path) -> None:
        super().__init__(base, state)
        self.gate = asyncio.Event()
        self.gate.set()
        self.has_applied = asyncio.Event()
        self.checks = 0

    async def apply(self, changes: Sequence[Received]) -> None:
        await super().apply(changes)
        self.has_applied.set()
        await self.gate.wait()

    def find_lost(self, held: Mapping[str, HeldResource]) -> list[str]:
        self.checks += 1
        return super().find_lost(held)


async def test_what_is_being_applied_is_not_foreign_to_the_store(source: Source, tmp_path: Path):
    copy = Slow(source.base, tmp_path / "state")
    shape = Shape(source, "resourcelist+changelist", "hashes")
    async with following(source, copy, check_files=0.02) as one:
        await until_right(one, copy, source)
        copy.gate.clear()
        copy.has_applied.clear()
        source.file("new", b"new")
        shape.times["new"] = 100
        shape.publish()
        async with asyncio.timeout(PATIENCE):
            await copy.has_applied.wait()
        checks = copy.checks
        await asyncio.to_thread(eventually, lambda: copy.checks > checks + 2)
        assert copy.held.get("new") == b"new"
        copy.gate.set()
        await until_right(one, copy, source)


async def test_a_copy_is_not_level_while_its_store_cannot_be_compared(
    source: Source, checked: Checked
):
    Shape(source, "resourcelist+changelist", "hashes")
    checked.failures = 1
    with pytest.raises(StorageError, match="cannot be compared"):
        await subscriber(source, checked).catch_up()
    checked.failures = 1_000_000
    async with following(source, checked) as one:
        await until(one, lambda status: status.through is not None and bool(status.doubts))
        await until(one, lambda status: "does not answer" in status.doubts[0])
        assert not one.status.level
        checked.failures = 0
        await until_right(one, checked, source)


async def test_an_aggregator_in_a_fleet_reports_what_it_has_lost(source: Source, tmp_path: Path):
    Shape(source, "changelist", "hashes")
    copies = [Recorder(source.base, tmp_path / name) for name in ("one", "other")]
    fleet = Fleet()
    for name, copy in zip(("one", "other"), copies, strict=True):
        one = subscriber(source, copy, shared=fleet.shared)
        fleet.add(name, one)
    async with asyncio.timeout(PATIENCE), fleet:
        await fleet.until(lambda found: all(each.status.level for each in found.values()))
        copies[1].held.clear()
        assert await one.verify() == len(NAMES)
        await fleet.until(lambda _: one.status.level and copies[1].files() == source.resources)
    assert len(copies[0].calls) == len(NAMES)


@pytest.mark.parametrize("code", [503, 404])
async def test_content_that_no_list_could_confirm_does_not_replace_what_was_lost(
    code: int, source: Source, folder: Path
):
    await copied(Shape(source, "resourcelist+changelist", "hashes"), folder)
    (folder / "a").unlink()
    source.put("a", b"please log in")
    before = source.answers[source._path("resourcelist.xml")]
    source.put("resourcelist.xml", b"", status=code)
    outcome = await run_honest(source, folder, source.resources)
    assert not outcome.claims
    assert not (folder / "a").exists()
    source.put("resourcelist.xml", before)
    source.file("a", version("a", 1))
    await run_right(source, folder)


async def test_a_run_ends_although_the_lists_never_show_what_a_lost_file_contained(
    source: Source, folder: Path
) -> None:
    """Each list begins after the last one, so there is always another gap."""
    source.offer(resourcelist=None)
    source.list_changes(source.create("a", 1, b"1"), from_=0)
    await run_right(source, folder, pace=pace(patience=1.0))
    source.file("a", b"22", 2)
    (folder / "a").write_bytes(b"333")
    times = count(3)

    def answer(_: Request) -> bytes:
        return change_list((), source.t(next(times)))

    source.put("changelist.xml", answer)
    outcome = await run_honest(source, folder, pace=pace(patience=1.0))
    assert not outcome.claims
