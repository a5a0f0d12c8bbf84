"""The troubles of each place, as data: what goes wrong, and what may still be claimed meanwhile.

A trouble begins, changes happen at the Source, and it ends. What it does is a few functions: alter
documents as they are written (`document`), alter answers (`answer`), or act once (`begin`, `end`).
Of the resources, `a` and `b` change when a trouble begins, `d` is deleted and `n` is created; `c`
changes while it lasts. Troubles of single resources hit `a`.
"""

from __future__ import annotations

import asyncio
import hashlib
import io
import os
import shutil
import zipfile
from collections import Counter
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

from rsnotify import StoreUnavailable
from rsnotify.selection import Selection
from tests.harnesses.matrix.shapes import Shape
from tests.harnesses.matrix.source import (
    ALTERNATES,
    BASE,
    FOLDER,
    Answer,
    Listing,
    Request,
    Source,
)
from tests.harnesses.matrix.ways import PACE, Way
from tests.wild.documents import days, ln, sha256

if TYPE_CHECKING:
    from tests.harnesses.matrix.run import Run

Fits = Callable[[Shape, Way], bool]
Act = Callable[["Run"], Awaitable[None]]

#: Where nothing listens.
_NOWHERE = "http://127.0.0.1:8999/"
_MANY = tuple(f"many-{number}" for number in range(20))
_ENTITIES = b'<!DOCTYPE urlset [<!ENTITY e "all">]><urlset>&e;</urlset>'
_LOGIN_PAGE = b"<html><body>Please log in.</body></html>\n"


async def _nothing(run: Run) -> None: ...


@dataclass(frozen=True)
class Trouble:
    """Something that goes wrong.

    Args:
        name: What it is called.
        place: Where it is.
        document: Alters a document.
        answer: Returns another answer to a request.
        begin: Is done once, when it begins; `prepared` before the changes, `begin` after them.
        end: Is done once, when it ends.
        fits: Whether it can happen to a shape, and to those who follow in a way.
        veils: Whether the documents hide what has changed, so that what was true before is right.
        absent: The resources that the documents leave out.
        uncopied: The resources that a relay or a gateway leaves out, as it cannot read them.
        contradicts: Whether the documents contradict each other also after its end.
        local: Whether it concerns single resources, beside which others must go on.
        final: Whether a run of `--once` must end within seconds, as waiting is of no use.
        changes: Whether the Source changes meanwhile.
        heals: Within how many seconds of its end the copy must be right.
        remains: Whether the copy may stay in doubt for good.
        lags: By how many seconds after its end the copy may still be what the documents said.
        limit: Within how many seconds `--once` must end, where waiting is of use.
        names: The file that it adds to the copy, which must be reported.
    """

    name: str
    place: str
    document: Callable[[Source, str, Listing], None] = lambda *_: None
    answer: Callable[[Source, Request, Answer], Answer] = lambda _, __, answer: answer
    prepared: Act = _nothing
    begin: Act = _nothing
    end: Act = _nothing
    fits: Fits = lambda *_: True
    veils: bool = False
    absent: str = ""
    uncopied: str = ""
    contradicts: bool = False
    local: bool = False
    final: bool = False
    changes: bool = True
    heals: float = 400.0
    remains: Fits = lambda *_: False
    lags: float = 0.0
    limit: float = 100.0
    names: str = ""

    def __str__(self) -> str:
        return self.name


# What fits


def _listed(shape: Shape, way: Way) -> bool:
    return bool(shape.capabilities & {"resourcelist"}) or not shape.offers


def _with_changes(shape: Shape, way: Way) -> bool:
    return "changelist" in shape.capabilities


def _dumped(shape: Shape, way: Way) -> bool:
    return bool(shape.capabilities & {"resourcedump", "changedump"})


def _called(*names: str) -> Fits:
    return lambda shape, _: shape.name in names


def _hashed(shape: Shape, way: Way) -> bool:
    return shape.hashes


def _files(shape: Shape, way: Way) -> bool:
    return way.folder and not way.first


def _existing(shape: Shape, way: Way) -> bool:
    return not way.first


def _pushed(shape: Shape, way: Way) -> bool:
    return way.pushes and shape.may_push


def _not_relayed(shape: Shape, way: Way) -> bool:
    return shape.through != "relay"


def _only_changes(shape: Shape, way: Way) -> bool:
    return shape.capabilities == {"changelist"}


def _verified(shape: Shape, way: Way) -> bool:
    """Whether something shows which content is right, other than documents that can be read."""
    # The first copy has nothing to compare a login page with, and a gateway's lists are readable.
    readable = way.pushes or (shape.through == "gateway" and way.first)
    return shape.hashes or not readable


def _noticeable(shape: Shape, way: Way) -> bool:
    """Whether something shows that a content is older than its entry."""
    if way.first and not shape.hashes and (shape.whole_seconds or shape.name == "sitemap"):
        return False  # no hash, and no content before it with the same bytes and another date
    return _fetched(shape, way) and shape.name not in ("sitemap, no dates", "sitemap, days")


def _fetched(shape: Shape, way: Way) -> bool:
    """Whether the contents of resources come from their server."""
    return not _dumped(shape, way)


def _from_own_uri(shape: Shape, way: Way) -> bool:
    """Whether contents come from the URIs of the resources only."""
    return _fetched(shape, way) and shape.name not in (
        "inline",
        "mirrors",
        "alternates",
        "versions",
    )


# Answers


def _to(*names: str, **fields: Any) -> Callable[[Source, Request, Answer], Answer]:
    """Return a function that answers requests for resources otherwise."""
    paths = {folder + name for name in names for folder in (FOLDER, ALTERNATES)}

    def answer(source: Source, request: Request, given: Answer) -> Answer:
        return replace(given, **_of(fields)) if request.path in paths else given

    return answer


def _failing(part: str, status: int) -> Callable[[Source, Request, Answer], Answer]:
    """Answer with a status to requests for documents with this part of a name."""
    return lambda source, request, given: (
        _of_status(given, status) if part in request.path else given
    )


def _to_all(**fields: Any) -> Callable[[Source, Request, Answer], Answer]:
    return lambda source, request, given: replace(given, **_of(fields))


def _to_documents(**fields: Any) -> Callable[[Source, Request, Answer], Answer]:
    def answer(source: Source, request: Request, given: Answer) -> Answer:
        return replace(given, **_of(fields)) if request.path in source.documents() else given

    return answer


def _of(fields: dict[str, Any]) -> dict[str, Any]:
    """Return the fields of an answer; one of another status has no validators."""
    plain: dict[str, Any] = {"etag": None, "modified": None, "body": b"x\n"}
    return plain | fields if "status" in fields else fields


def _documents(*kinds: str) -> Callable[[Source, str, Any], bool]:
    return lambda source, path, _: any(kind in path for kind in kinds)


def _status(status: int, *names: str, **fields: Any) -> Callable[..., Answer]:
    return _to(*(names or ("a",)), status=status, type="text/html", **fields)


# Documents


def _entries(alter: Callable[[dict[str, Any]], None], *names: str) -> Callable[..., None]:
    """Return a function that alters the entries of resources, wherever they are listed."""
    uris = {BASE + name for name in names or ("a",)}

    def document(source: Source, path: str, listing: Listing) -> None:
        for one in listing.entries:
            if one["uri"] in uris and one.get("change") != "deleted":
                alter(one)

    return document


def _set(**fields: Any) -> Callable[[dict[str, Any]], None]:
    """Return a function that sets fields which an entry has."""

    def alter(one: dict[str, Any]) -> None:
        one.update({key: value for key, value in fields.items() if key in one or key == "uri"})

    return alter


def _kind(*kinds: str | None) -> Callable[[Listing], bool]:
    return lambda listing: listing.capability in kinds


_LISTS = ("resourcelist", None)
_CHANGES = ("changelist", "changedump", "changedump-manifest")


def _of_kind(
    kinds: tuple[str | None, ...], alter: Callable[[Source, Listing], None]
) -> Callable[[Source, str, Listing], None]:
    def document(source: Source, path: str, listing: Listing) -> None:
        if listing.capability in kinds:
            alter(source, listing)

    return document


def _without(*names: str) -> Callable[[Source, Listing], None]:
    uris = {BASE + name for name in names}

    def alter(_: Source, listing: Listing) -> None:
        listing.entries[:] = [one for one in listing.entries if one["uri"] not in uris]

    return alter


def _twice(_: Source, listing: Listing) -> None:
    listing.entries.extend([dict(one) for one in listing.entries])


def _reverse(_: Source, listing: Listing) -> None:
    listing.entries.reverse()


def _told(**shifts: float | None) -> Callable[[Source, Listing], None]:
    """Return a function that moves `at`, `from_` or `until` by seconds, or removes them."""

    def alter(source: Source, listing: Listing) -> None:
        for name, shift in shifts.items():
            if listing.told.get(name) is not None:
                shifted = shift is not None and listing.told[name] + timedelta(seconds=shift)
                listing.told[name] = shifted or None

    return alter


def _moving_from(source: Source, listing: Listing) -> None:
    """Make the list begin a minute ago, always."""
    if listing.told.get("until") is None and listing.root == "urlset":
        begin = source.now - timedelta(seconds=60)
        listing.told["from_"] = begin
        listing.entries[:] = [source.changed(one) for one in source.changes if one.at > begin]


def _at_now(source: Source, listing: Listing) -> None:
    listing.told["at"] = source.now


def _moving(source: Source, request: Request, answer: Answer) -> Answer:
    """Write the documents again for each request, since they depend on the time."""
    source.altered += 1
    body = source.documents().get(request.path)
    return answer if body is None else replace(answer, body=body, etag=None, modified=None)


def _of_another_host(source: Source, listing: Listing) -> None:
    """Serve the Change List of another host, which has no changes, up to the present."""
    listing.entries.clear()
    listing.told["until"] = source.now
    listing.links[:] = [ln("up", "http://other.example/capabilitylist.xml")]


def _second_list(_: Source, listing: Listing) -> None:
    for one in [dict(one) for one in listing.entries if one["uri"].endswith("list.xml")]:
        listing.entries.append({**one, "uri": one["uri"].replace("list.xml", "list-2.xml")})


def _by_md5(source: Source, _: str, listing: Listing) -> None:
    """Announce the MD5 of the contents of resources, instead of their SHA-256."""
    versions = [one.content for each in source.history.values() for one in each if one.content]
    digests = {sha256(one): f"md5:{hashlib.md5(one).hexdigest()}" for one in versions}
    for one in listing.entries:
        if "hash" in one:
            one["hash"] = digests.get(one["hash"], one["hash"])


def _without_hashes(source: Source, path: str, listing: Listing) -> None:
    for one in listing.entries:
        one.pop("hash", None)


def _unverified(_: Source, listing: Listing) -> None:
    """Announce packages without length and hash, so that only their content shows errors."""
    for one in listing.entries:
        one.pop("hash", None)
        one.pop("length", None)


def _zipped(**files: bytes) -> bytes:
    package = io.BytesIO()
    with zipfile.ZipFile(package, "w") as written:
        for name, content in files.items():
            written.writestr(zipfile.ZipInfo(name), content)
    return package.getvalue()


def _packages_are(body: bytes) -> Callable[[Source, Request, Answer], Answer]:
    return lambda source, request, given: (
        replace(given, body=body, etag=None) if request.path.endswith(".zip") else given
    )


def _within_a_second(*kinds: str) -> Act:
    """Return a function that changes `e` several times in the second in which push announces it."""

    async def act(run: Run) -> None:
        await asyncio.sleep(1.01 - run.loop.now % 1)
        for kind in kinds:
            if kind == "deleted":
                run.source.delete("e")
            else:
                run.source.update("e")
            await run.hub.publish()
            await asyncio.sleep(0.9 / len(kinds))

    return act


async def _source_loses_changes(run: Run) -> None:
    run.source.lose_changes()


async def _source_backed_up(run: Run) -> None:
    run.source.back_up()


async def _source_restored(run: Run) -> None:
    run.source.restore()


def _bare(one: dict[str, Any]) -> None:
    """Leave out all that shows whether a resource has changed."""
    for name in ("lastmod", "datetime", "hash", "length"):
        one.pop(name, None)


def _deleted_on_a_day(_: Source, listing: Listing) -> None:
    for one in listing.entries:
        if one.get("change") == "deleted":
            one["datetime"] = days(one["datetime"])


def _overlapping(source: Source, listing: Listing) -> None:
    """Make each package begin where the Change Dump does."""
    for one in listing.entries:
        one["from_"] = source.begins


def _bare_index(_: Source, listing: Listing) -> None:
    """Write an index without `from` and `until`, the newest member first."""
    if listing.root == "sitemapindex":
        listing.told.clear()
        listing.entries[:] = [
            {name: one[name] for name in ("uri", "element", "lastmod")}
            for one in reversed(listing.entries)
        ]


# Things kept from before


class _Kept:
    """Answers as they were when the trouble began, as a cache gives them."""

    def __init__(self, wanted: Callable[[Source, str], bool]) -> None:
        self._wanted = wanted

    async def prepared(self, run: Run) -> None:
        source = run.source
        run.kept = {
            path: source._plain(path)
            for path in (*source.documents(), *(FOLDER + name for name in source.contents))
            if self._wanted(source, path)
        }
        run.kept_at = source.loop.now

    def answer(self, source: Source, request: Request, given: Answer) -> Answer:
        kept: dict[str, Answer] = source.kept  # type: ignore[attr-defined]
        return replace(kept[request.path]) if request.path in kept else given


def _stale(wanted: Callable[[Source, str], bool]) -> dict[str, Any]:
    kept = _Kept(wanted)
    return {"prepared": kept.prepared, "answer": kept.answer}


def _is_list(*names: str) -> Callable[[Source, str], bool]:
    return lambda source, path: any(name in path for name in names)


class _Alternating(_Kept):
    """Answers that are by turns as they were and as they are, as two servers give them."""

    def __init__(self, wanted: Callable[[Source, str], bool]) -> None:
        super().__init__(wanted)
        self._requests = WeakKeyDictionary[Source, Counter[str]]()

    def answer(self, source: Source, request: Request, given: Answer) -> Answer:
        requests = self._requests.setdefault(source, Counter())
        requests[request.path] += 1
        is_old = requests[request.path] % 2
        return super().answer(source, request, given) if is_old else given


def _alternating(wanted: Callable[[Source, str], bool]) -> dict[str, Any]:
    kept = _Alternating(wanted)
    return {"prepared": kept.prepared, "answer": kept.answer}


def _in_turn(alter: Callable[[Source, Listing], None], *kinds: str | None) -> Callable[..., None]:
    """Return a function that alters every second version of documents."""

    def document(source: Source, path: str, listing: Listing) -> None:
        if listing.capability in kinds and source.altered % 2:
            alter(source, listing)

    return document


def _one_hash(source: Source, listing: Listing) -> None:
    for one in listing.entries:
        if one["uri"] == BASE + "a" and "hash" in one:
            one["hash"] = sha256(b"another")


# The Destination


async def _kill(run: Run) -> None:
    run.destination.kill()


async def _start(run: Run) -> None:
    run.destination.start()


def _stopped(act: Callable[[Run], None]) -> Act:
    """Return a function that does something while the Destination does not run."""

    async def begin(run: Run) -> None:
        run.destination.kill()
        act(run)
        run.destination.start()

    return begin


def _running(act: Callable[[Run], None]) -> Act:
    async def begin(run: Run) -> None:
        act(run)

    return begin


def _write(content: bytes, name: str = "e") -> Callable[[Run], None]:
    def act(run: Run) -> None:
        run.destination.path(name).write_bytes(content)

    return act


def _same_length(run: Run) -> None:
    path = run.destination.path("e")
    path.write_bytes(b"x" * path.stat().st_size)


def _truncate(run: Run) -> None:
    os.truncate(run.destination.path("e"), 3)


def _delete(*names: str) -> Callable[[Run], None]:
    def act(run: Run) -> None:
        for name in names:
            run.destination.path(name).unlink()

    return act


async def _add_many(run: Run) -> None:
    for name in _MANY:
        run.source.update(name)
    await run.hub.publish()
    await run.until_settled()


def _fail(**errors: Exception) -> Act:
    """Return a function that has the embedded handler raise these errors, by resource."""

    async def act(run: Run) -> None:
        run.destination.errors.update(errors)

    return act


async def _succeed(run: Run) -> None:
    run.destination.errors.clear()


async def _lose(run: Run) -> None:
    """Remove a resource from an embedded handler, whose program reports that."""
    run.destination.held.pop("e", None)
    await run.destination.report_lost("e")


def _damage_state(run: Run) -> None:
    """Overwrite the middle of each file of the state."""
    for path in run.destination.state.rglob("*"):
        if path.is_file() and path.stat().st_size > 8_000:
            with path.open("r+b") as file:
                file.seek(4_000)
                file.write(b"damaged" * 200)


def _by_folder(run: Run) -> None:
    path = run.destination.path("e")
    path.unlink()
    path.mkdir()
    (path / "inside").write_bytes(b"a file in a folder")


def _rename(run: Run) -> None:
    run.destination.path("e").rename(run.destination.path("foreign"))


def _remove_state(run: Run) -> None:
    shutil.rmtree(run.destination.state)


def _back_up(*, copy: bool = False, state: bool = False) -> Act:
    """Return a function that makes a backup, and goes on until there is something newer."""

    async def prepared(run: Run) -> None:
        run.destination.back_up(copy=copy, state=state)
        run.source.update("e")
        run.source.update("z")
        await run.until_settled()

    return prepared


def _restore(run: Run) -> None:
    run.destination.restore()


def _move(run: Run) -> None:
    destination = run.destination
    for name in ("copy", "state"):
        old = destination.root / name
        new = destination.root / f"moved-{name}"
        shutil.copytree(old, new)
        shutil.rmtree(old)
        setattr(destination, name, new)


def _move_and_write(run: Run) -> None:
    _move(run)
    _write(b"other")(run)


def _unmount(run: Run) -> None:
    """Replace the folder by another, empty one."""
    run.destination.copy.rename(run.destination.root / "unmounted")
    run.destination.copy.mkdir()


async def _mount(run: Run) -> None:
    run.destination.kill()
    shutil.rmtree(run.destination.copy, ignore_errors=True)
    (run.destination.root / "unmounted").rename(run.destination.copy)
    run.destination.start()


async def _pause(run: Run) -> None:
    assert run.destination.machine is not None
    run.destination.machine.pause()


async def _resume(run: Run) -> None:
    assert run.destination.machine is not None
    run.destination.machine.resume()


def _update(name: str) -> Act:
    async def prepared(run: Run) -> None:
        run.source.update(name)
        await run.hub.publish()

    return prepared


async def _renew(run: Run) -> None:
    """Remove copy and state, so that both are made again."""
    run.destination.kill()
    shutil.rmtree(run.destination.copy)
    shutil.rmtree(run.destination.state)
    run.destination.start()


async def _empty(run: Run) -> None:
    """Remove the copy, so that it is made again."""
    run.destination.kill()
    shutil.rmtree(run.destination.copy)
    run.destination.start()


def _ahead(seconds: float) -> Act:
    async def begin(run: Run) -> None:
        run.destination.clock.set(seconds)

    return begin


def _source_ahead(seconds: float) -> Act:
    async def begin(run: Run) -> None:
        run.source.ahead = seconds

    return begin


async def _exclude(run: Run) -> None:
    await _select_without(run, run.way.excluded + "e")


async def _include(run: Run) -> None:
    await _select_without(run, run.way.excluded)


async def _select_without(run: Run, names: str) -> None:
    await _option(run, selection=Selection(excluded=tuple(names)))
    run.excluded = frozenset(names)


async def _option(run: Run, **options: Any) -> None:
    run.destination.kill()
    run.destination.options = {**run.destination.options, **options}
    run.destination.start()


def _full(is_full: bool) -> Act:
    async def begin(run: Run) -> None:
        run.disk_is_full = is_full

    return begin


async def _source_down(run: Run) -> None:
    run.source.stop()


async def _source_up(run: Run) -> None:
    run.source.start()


async def _cut(run: Run) -> None:
    run.network.partition("source", "destination")


async def _join(run: Run) -> None:
    run.network.heal()


# The hub


async def _hub_down(run: Run) -> None:
    run.hub.stop()


async def _hub_up(run: Run) -> None:
    run.hub.start()


def _hub_does(**fields: Any) -> Act:
    async def begin(run: Run) -> None:
        for name, value in fields.items():
            setattr(run.hub, name, value)

    return begin


async def _hub_invents(run: Run) -> None:
    source = run.source
    moment = source.now
    invented = b"invented by a hub\n"
    await run.hub.push(
        [
            {"uri": BASE + "e", "change": "deleted", "datetime": moment},
            {"uri": BASE + "f", "change": "updated", "datetime": moment, "hash": sha256(invented)},
            {"uri": BASE + "n", "change": "updated", "datetime": moment, "hash": sha256(invented)},
            {"uri": BASE + "y", "change": "created", "datetime": moment, "hash": sha256(invented)},
        ]
    )


async def _hub_ahead(run: Run) -> None:
    await run.hub.push([], until=run.source.now + timedelta(hours=5))


async def _hub_babbles(run: Run) -> None:
    for text in ("", "<", "{}", '{"type": "gap"}', "<urlset/>", "x" * 10_000):
        await run.hub.send(text)


def _dated_by(seconds: float) -> Callable[[dict[str, Any]], None]:
    def alter(one: dict[str, Any]) -> None:
        for name in ("lastmod", "datetime"):
            if name in one and not isinstance(one[name], str):
                one[name] += timedelta(seconds=seconds)

    return alter


def _respell(one: dict[str, Any]) -> None:
    one["uri"] = one["uri"].replace("/set/", "/x/../set/")


def _respell_deletions(source: Source, listing: Listing) -> None:
    for one in listing.entries:
        if one.get("change") == "deleted":
            one["uri"] = one["uri"].replace("127.0.0.1:8001", "127.0.0.1:08001")
            one["uri"] = BASE + "%64" if one["uri"].endswith("/d") else one["uri"]


def _in_two_spellings(_: Source, listing: Listing) -> None:
    again = [dict(one) for one in listing.entries]
    for one in again:
        _respell(one)
    listing.entries.extend(again)


def _elsewhere(one: dict[str, Any]) -> None:
    one["uri"] = _NOWHERE + "a"


#: A new trouble is one more entry.
TROUBLES = (
    Trouble("nothing", "nowhere", final=True),
    # The clock of the Source
    Trouble("Source's clock an hour ahead", "Source's clock",
            begin=_source_ahead(3600), end=_source_ahead(0), fits=_existing, contradicts=True,
            heals=4000),
    Trouble("Source's clock an hour behind", "Source's clock",
            begin=_source_ahead(-3600), end=_source_ahead(0), contradicts=True, limit=310,
            # An hour earlier it is the day on which all was written, which no hash contradicts.
            fits=lambda shape, way: _existing(shape, way) and shape.name != "sitemap, days"),
    Trouble("Source restored older", "Source's clock", begin=_source_backed_up,
            end=_source_restored, fits=_existing,
            # Without a list that states when it was written, an outdated copy looks the same.
            remains=lambda shape, way: _only_changes(shape, way) or not shape.offers),
    # Everything is dated today then, and may change again today.
    Trouble("Source loses its list of changes", "Source's clock", begin=_source_loses_changes,
            heals=1000,
            fits=lambda shape, way: _existing(shape, way) and not _only_changes(shape, way)),
    Trouble("Source loses its list of changes without `from`", "Source's clock",
            prepared=_update("d"), begin=_source_loses_changes, heals=1000,
            document=_of_kind(("changelist",), _told(from_=None)),
            fits=lambda shape, way: _existing(shape, way) and not _only_changes(shape, way)),
    # Resources
    Trouble("resource changes twice within a second", "resources",
            begin=_within_a_second("updated", "updated")),
    Trouble("resource is deleted and created within a second", "resources",
            begin=_within_a_second("deleted", "created")),
    *(Trouble(f"resource answers {code}", "resources", answer=_status(code), local=True,
              final=code < 500, fits=_fetched)
      for code in (404, 410, 401, 403, 500)),
    Trouble("new resource answers 500", "resources", answer=_status(500, "n"), fits=_fetched),
    Trouble("new resource answers 404", "resources", answer=_status(404, "n"), fits=_fetched),
    Trouble("resource does not answer", "resources", answer=_to("a", fault="hang"), local=True,
            fits=_fetched, limit=160),
    Trouble("resource is cut off", "resources", answer=_to("a", fault="cut"), local=True,
            fits=_fetched),
    Trouble("resource on a host that refuses", "resources", document=_entries(_elsewhere),
            local=True, fits=_from_own_uri, uncopied="a", remains=_called("archive", "indexes")),
    Trouble("wrong hash", "resources", document=_entries(_set(hash=sha256(b"another"))),
            local=True, final=True, fits=_hashed),
    Trouble("wrong length", "resources", document=_entries(_set(length=7)), local=True,
            final=True, fits=_hashed),
    Trouble("entry without date and hash", "resources", document=_entries(_bare)),
    Trouble("hashes of another algorithm", "resources", document=_by_md5, fits=_hashed),
    Trouble("no hashes for a while", "resources", document=_without_hashes, fits=_hashed),
    Trouble("deletion dated by the day", "resources", fits=_with_changes, prepared=_update("d"),
            document=_of_kind((*_CHANGES, "change-notification"), _deleted_on_a_day)),
    Trouble("a login page", "resources",
            answer=_to("a", status=200, body=_LOGIN_PAGE, type="text/html"),
            document=_entries(lambda one: one.update(type="text/plain")), local=True, final=True,
            fits=lambda shape, way: _fetched(shape, way) and not shape.prefer),
    Trouble("alias spelling", "resources", document=_entries(_respell), local=True,
            fits=lambda shape, way: _not_relayed(shape, way) and not way.adopts),
    Trouble("listed in two spellings", "resources",
            document=_of_kind(_LISTS, _in_two_spellings), fits=lambda shape, way:
            _listed(shape, way) and _not_relayed(shape, way)),
    Trouble("alias spelling of deletions", "resources",
            document=_of_kind(_CHANGES, _respell_deletions), fits=_with_changes),
    # Documents
    *(Trouble(f"{name} answers {code}", "documents",
              answer=_failing(part, code),
              fits=fits, veils=True, final=code == 404)
      for name, part, fits in (("Resource List", "resource", _listed),
                               ("Change List", "change", _with_changes),
                               ("Capability List", "capabilitylist",
                                lambda shape, _: bool(shape.offers)))
      for code in (404, 500)),
    Trouble("malformed documents", "documents", veils=True, final=True,
            answer=lambda source, request, given: replace(given, body=given.body[:-20], etag=None)
            if request.path in source.documents() else given),
    Trouble("empty documents", "documents", veils=True, final=True,
            answer=_to_documents(body=b"", etag=None)),
    Trouble("Resource List without an entry", "documents", fits=_listed, veils=True,
            absent="b", document=_of_kind(_LISTS, _without("b"))),
    Trouble("Change List without an entry", "documents", fits=_with_changes, veils=True,
            absent="b", document=_of_kind(_CHANGES, _without("b")), lags=PACE.compare + 20),
    Trouble("closed lists without an entry", "documents", fits=_called("archive", "indexes"),
            veils=True, absent="b", document=_of_kind(("changelist",), _without("b")),
            lags=PACE.compare + 20),
    Trouble("two lists of a kind", "documents", fits=lambda shape, _: bool(shape.offers),
            veils=True, final=True, document=_of_kind(("capabilitylist",), _second_list)),
    Trouble("packages that are no ZIP files", "documents", fits=_dumped, veils=True, final=True,
            document=_of_kind(("resourcedump", "changedump"), _unverified),
            answer=_packages_are(b"PK, and no ZIP file")),
    Trouble("packages without a manifest", "documents", fits=_dumped, veils=True, final=True,
            document=_of_kind(("resourcedump", "changedump"), _unverified),
            answer=_packages_are(_zipped(a=b"something"))),
    Trouble("Resource Dump without an entry", "documents", fits=_called("list and dump"),
            document=_of_kind(("resourcedump-manifest",), _without("b"))),
    Trouble("packages overlap", "documents", fits=_called("change dump"),
            document=_of_kind(("changedump", "changedump-manifest"), _overlapping)),
    Trouble("index without `from` and `until`, newest first", "documents", fits=_called("indexes"),
            document=_of_kind(("changelist",), _bare_index)),
    Trouble("Change List of another host", "documents", fits=_with_changes, veils=True,
            document=_of_kind(("changelist",), _of_another_host)),
    Trouble("documents with entities", "documents", veils=True, final=True,
            answer=_to_documents(body=_ENTITIES, etag=None)),
    Trouble("entries twice", "documents", document=lambda _, __, listing: _twice(_, listing)
            if listing.capability in ("resourcelist", "changelist", None) else None),
    Trouble("entries reversed", "documents", document=_of_kind(
        ("resourcelist", "changelist", None), _reverse)),
    # With an archive in whole seconds, there is a gap until the next Resource List.
    Trouble("`from` moves with the clock", "documents", answer=_moving, remains=_only_changes,
            fits=lambda shape, way:
            _with_changes(shape, way) and shape.name != "archive, seconds",
            document=_of_kind(("changelist",), _moving_from)),
    # An outdated list without a true `at` does not show whether it is older than a change.
    Trouble("`at` and `from` are missing", "documents", contradicts=True,
            fits=lambda shape, _: shape.name != "archive, seconds",
            document=_of_kind(("resourcelist", "changelist"), _told(at=None, from_=None))),
    Trouble("`at` an hour ahead", "documents", fits=_listed, veils=True, heals=4000,
            contradicts=True,
            document=_of_kind(("resourcelist",), _told(at=3600))),
    Trouble("`at` is the time of the answer", "documents", answer=_moving, contradicts=True,
            fits=lambda shape, way:
            _with_changes(shape, way) and shape.name != "archive, seconds",
            document=_of_kind(("resourcelist",), _at_now)),
    Trouble("`at` before the Change List", "documents", fits=_with_changes,
            document=_of_kind(("resourcelist",), _told(at=-200_000))),
    Trouble("`until` an hour ahead", "documents", fits=_with_changes, veils=True, heals=4000,
            lags=20,
            document=_of_kind(("changelist",), lambda source, listing: listing.told.update(
                until=source.now + timedelta(hours=1)))),
    Trouble("lastmod an hour ahead", "documents", document=_entries(_dated_by(3600)), veils=True,
            contradicts=True, heals=4000),
    Trouble("lastmod a year old", "documents", document=_entries(_dated_by(-3e7)), veils=True),
    # The server
    Trouble("server refuses connections", "server", begin=_source_down, end=_source_up, veils=True),
    Trouble("server answers 503", "server", answer=_to_all(status=503), veils=True),
    Trouble("server answers 429 with Retry-After", "server", veils=True,
            answer=_to_all(status=429, fields={"Retry-After": "40"})),
    Trouble("server does not answer", "server", answer=_to_all(fault="hang"), veils=True,
            limit=160),
    Trouble("server is slow", "server", answer=_to_all(delay=8.0), veils=True),
    Trouble("server resets", "server", answer=_to_all(fault="reset"), veils=True),
    Trouble("server cuts answers off", "server", answer=_to_all(fault="cut"), veils=True),
    Trouble("all is a login page", "server", veils=True, final=True, fits=_verified,
            answer=_to_all(body=_LOGIN_PAGE, type="text/html", etag=None, modified=None)),
    Trouble("another virtual host", "server", veils=True, absent="abcdefnz", lags=PACE.compare + 20,
            document=lambda source, path, listing: listing.entries.clear()
            if "list" in path and "capability" not in path else None,
            answer=lambda source, request, given: given),
    # Large documents are retried less and less often, so healing may take as long as the trouble.
    Trouble("redirects without end", "server", veils=True, final=True, heals=800,
            answer=lambda source, request, given: replace(
                given, status=302, body=b"", fields={"Location": request.path})),
    Trouble("everything is gone (404)", "server", veils=True, final=True,
            answer=_to_all(status=404)),
    # Caches
    Trouble("stale Resource List", "cache", fits=_listed, veils=True,
            **_stale(_is_list("resource", "sitemap"))),
    Trouble("stale Change List", "cache", fits=_with_changes, veils=True,
            **_stale(_is_list("change"))),
    Trouble("all documents stale", "cache", veils=True,
            **_stale(lambda source, path: path in source.documents())),
    Trouble("stale contents", "cache", fits=_noticeable,
            **_stale(lambda source, path: path not in source.documents())),
    # Servers that differ
    Trouble("Resource List alternates", "servers", fits=_listed, veils=True,
            **_alternating(_is_list("resource", "sitemap"))),
    Trouble("documents alternate", "servers", veils=True,
            **_alternating(lambda source, path: path in source.documents())),
    Trouble("contents alternate", "servers", fits=_noticeable, veils=True,
            **_alternating(lambda source, path: path not in source.documents())),
    Trouble("a hash alternates", "servers", veils=True, answer=_moving, local=True, fits=_hashed,
            document=_in_turn(_one_hash, *_LISTS, *_CHANGES)),
    # The network
    Trouble("network cut", "network", begin=_cut, end=_join, veils=True),
    # The hub
    Trouble("hub down", "hub", begin=_hub_down, end=_hub_up, fits=_pushed),
    Trouble("hub withholds", "hub", begin=_hub_does(withholds=True),
            end=_hub_does(withholds=False), fits=_pushed),
    Trouble("hub invents changes", "hub", begin=_hub_invents, fits=_pushed, remains=_only_changes),
    Trouble("hub invents a change of a resource that answers 500", "hub", fits=_pushed,
            begin=_hub_invents, answer=_status(500, "n"), remains=_only_changes),
    Trouble("hub is ahead", "hub", begin=_hub_ahead, fits=_pushed),
    Trouble("hub babbles", "hub", begin=_hub_babbles, fits=_pushed),
    Trouble("hub repeats", "hub", begin=_hub_does(repeats=True), end=_hub_does(repeats=False),
            fits=_pushed),
    # The process
    Trouble("killed", "process", begin=_kill, end=_start, fits=_existing),
    Trouble("suspended", "process", begin=_pause, end=_resume, veils=True,
            fits=lambda shape, way: not way.once),
    Trouble("restarted", "process", begin=_stopped(lambda run: None), fits=_existing),
    # The disk
    Trouble("disk full", "disk", prepared=_full(True), end=_full(False), final=True),
    Trouble("file overwritten", "disk", begin=_running(_write(b"by someone else")), fits=_files),
    Trouble("file overwritten, same length", "disk", begin=_running(_same_length), fits=_files),
    Trouble("file truncated", "disk", begin=_running(_truncate), fits=_files),
    Trouble("file deleted", "disk", begin=_running(_delete("e")), fits=_files),
    Trouble("files deleted", "disk", begin=_running(_delete("c", "e", "f")), fits=_files),
    Trouble("many files deleted", "disk", prepared=_add_many, begin=_running(_delete(*_MANY[:18])),
            fits=_files),
    Trouble("resource lost by a handler", "disk", begin=_lose,
            fits=lambda shape, way: not way.folder),
    Trouble("handler refuses a resource", "handler", prepared=_fail(a=ValueError("not this one")),
            end=_succeed, fits=lambda shape, way: not way.folder, local=True),
    Trouble("handler fails", "handler", prepared=_fail(**{"": ValueError("nothing today")}),
            end=_succeed, fits=lambda shape, way: not way.folder),
    Trouble("handler's store is unavailable", "handler", end=_succeed,
            prepared=_fail(**{"": StoreUnavailable("the database is down")}),
            fits=lambda shape, way: not way.folder),
    Trouble("file replaced by a folder", "disk", begin=_running(_by_folder), fits=_files,
            names="e/inside"),
    Trouble("file renamed", "disk", begin=_running(_rename), fits=_files, names="foreign"),
    Trouble("foreign file", "disk", begin=_running(_write(b"mine", "foreign")), fits=_files,
            names="foreign"),
    Trouble("folder unmounted", "disk", begin=_running(_unmount), end=_mount, fits=_files,
            names="d"),
    Trouble("copy restored older", "disk", prepared=_back_up(copy=True),
            begin=_stopped(_restore), fits=_files),
    Trouble("copy and state restored older", "disk", prepared=_back_up(copy=True, state=True),
            begin=_stopped(_restore), fits=_files),
    Trouble("copy and state moved", "disk", begin=_stopped(_move), fits=_files),
    Trouble("copy and state moved, and a file changed", "disk",
            begin=_stopped(_move_and_write), fits=_files),
    # The state
    Trouble("state restored older", "state", prepared=_back_up(state=True),
            begin=_stopped(_restore), fits=_existing),
    Trouble("state damaged", "state", begin=_stopped(_damage_state), end=_renew, fits=_files),
    Trouble("state deleted", "state", begin=_stopped(_remove_state), end=_empty, fits=_files),
    # The clock of the Destination
    Trouble("clock a day ahead", "clock", begin=_ahead(86_400), end=_ahead(0)),
    Trouble("clock a day behind", "clock", begin=_ahead(-86_400), end=_ahead(0)),
    # The operator
    Trouble("selection changed", "operator", begin=_exclude, end=_include,
            fits=lambda _, way: not (way.first or way.repairs)),  # repairs keep the selection
)  # fmt: skip


def _of_status(given: Answer, status: int) -> Answer:
    return replace(given, status=status, body=b"x\n", etag=None, modified=None, type="text/plain")
