"""Documents that never end, that are made to take time and memory, or that are merely laid out.

A Source may be broken or hostile, and an honest one may write XML in any layout, with comments and
elements of other vocabularies (the Sitemap protocol allows extensions). Commands read what can be
read, refuse the rest in a sentence, stop the download where they refuse, and end by SIGINT at any
time.
"""

from __future__ import annotations

import asyncio
import gzip
import signal
import time
import zlib
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack
from pathlib import Path

import pytest
from yarl import URL

from rsnotify.format.model import RS_NS, SITEMAP_NS
from rsnotify_subscriber.fetching import fetcher as downloading
from rsnotify_subscriber.fetching.fetcher import Fetcher
from rsnotify_subscriber.fetching.sessions import Connections, Sessions
from tests.examples_count import part
from tests.fork_server import own_interpreter
from tests.subscriber.destination import PATIENCE, files_of
from tests.subscriber.processes import SECONDS, ended, outcome, rsnotify, run
from tests.wild.documents import md, seconds, urlset
from tests.wild.running import audited, command_audit, run_right
from tests.wild.source import Answer, Source

OPENING = (
    f'<?xml version="1.0" encoding="UTF-8"?>\n<urlset xmlns="{SITEMAP_NS}" xmlns:rs="{RS_NS}">'
)

HEAD = OPENING + '<rs:md capability="resourcelist" at="2013-01-03T09:00:00Z"/>'
ENTRY = "<url><loc>http://e.example/</loc>"
DATA = "data:," + "x" * 999_000
#: How an entry begins, what is in it without end, and how it is refused.
ENDLESS = {
    "entries": (f"{HEAD}\n", f"{ENTRY}</url>\n" * 2_000, "more than 200000 entries"),
    "a location": (f"{HEAD}<url><loc>", "x" * 65_536, "its loc is longer than"),
    "links": (HEAD + ENTRY, f'<rs:ln rel="a" href="{DATA}"/>', "more than 4000000 characters"),
    "attributes": (
        HEAD + ENTRY,
        "<rs:md xmlns:x='urn:x' x:y='z'/>" * 2_000,
        "more than 10000 elements",
    ),
    "references": (f"{HEAD}{ENTRY}<lastmod>", "&#48;" * 20_000, "its lastmod is longer than"),
    "blanks": (f"{HEAD}<url>", " " * 65_536, "larger than 100000000 bytes"),
}


class Counted:
    """Pieces of a document that is sent as long as somebody reads it.

    Args:
        begin: The first piece.
        repeated: Every other one.
        packed: Whether they are compressed.
    """

    def __init__(self, begin: str, repeated: str, *, packed: bool = False) -> None:
        self._begin = begin.encode()
        self._repeated = repeated.encode()
        self._packed = packed
        self.sent = 0

    def __call__(self) -> Iterator[bytes]:
        self.sent = 0
        packer = zlib.compressobj(wbits=31)
        piece = self._begin
        while True:
            if self._packed:
                piece = packer.compress(piece) + packer.flush(zlib.Z_SYNC_FLUSH)
            self.sent += len(piece)
            yield piece
            piece = self._repeated

    def answer(self) -> Answer:
        return Answer(self, headers={"Content-Encoding": "gzip"} if self._packed else {})


#: What each command exits with. Each meets one document; `make slow` tries them all.
CODES = {"audit": 2, "follow": 1, "inspect": 0}


@pytest.mark.parametrize(
    ("what", "packed", "commands"),
    [
        ("entries", False, part(CODES, 0, 3)),
        ("links", False, part(CODES, 1, 3)),
        ("blanks", True, part(CODES, 2, 3)),
        *(
            pytest.param(what, packed, list(CODES), marks=pytest.mark.slow)
            for what, packed in [
                *((what, False) for what in ("a location", "attributes", "references", "blanks")),
                ("entries", True),
            ]
        ),
    ],
)
async def test_what_does_not_end_is_refused_in_a_sentence(
    what: str, packed: bool, commands: list[str], source: Source, folder: Path
):
    begin, repeated, reason = ENDLESS[what]
    source.offer(changelist=None)
    copy = source.file("a", b"content")
    folder.mkdir()
    (folder / "a").write_bytes(copy)
    document = Counted(begin, repeated, packed=packed)
    source.put("resourcelist.xml", document.answer())
    arguments = {
        "audit": [folder],
        "follow": [folder.with_name("other"), "--once", "--poll", "0.1"],
    }
    for command in commands:
        code, output, errors = await run(command, source.url, *arguments.get(command, ()))
        assert (code, document.sent < 150_000_000) == (CODES[command], True)
        assert reason in output + errors
    assert (folder / "a").read_bytes() == copy


INDENTED = """{head}
        <url>
                <loc>{uri}</loc>
                <!-- a comment -->
                <image:image xmlns:image="http://www.google.com/schemas/sitemap-image/1.1">
                        <image:loc>http://e.example/image.png</image:loc>
                </image:image>
                <rs:md length="7"/>
        </url>
</urlset>
"""


async def until_read(source: Source) -> None:
    """Wait until a client in another process has read all that was sent to it."""
    port = f":{URL(source.url).port:04X}"
    async with asyncio.timeout(SECONDS):
        while any(  # noqa: ASYNC110 - another process does it
            fields[2].endswith(port) and not fields[4].endswith(":00000000")
            for fields in map(str.split, Path("/proc/net/tcp").read_text().splitlines())
        ):
            await asyncio.sleep(0.001)


@pytest.mark.parametrize("cut", [r"<url>\n    ", "</image:image>\n    ", "<!-- a", "7", "</url"])
async def test_an_honest_layout_is_read_however_it_is_cut(cut: str, source: Source, folder: Path):
    source.offer(changelist=None)
    source.file("a", b"content")
    opening = OPENING + md(capability="resourcelist", at=seconds(source.t(1)))
    text = INDENTED.format(head=opening, uri=source.uri("a"))
    at = text.index(cut.replace(r"\n", "\n")) + len(cut.replace(r"\n", "\n"))

    async def pieces() -> AsyncIterator[bytes]:
        yield text[:at].encode()
        await until_read(source)
        yield text[at:].encode()

    source.put("resourcelist.xml", Answer(pieces))
    await run_right(source, folder)
    assert (await audited(source, folder)).code == 0


BEGINNINGS = {
    "blanks": f"{HEAD}<url>{' ' * 64}",
    "layout": f"{HEAD}\n        <url>\n                <loc>a:b</loc>\n{' ' * 64}<x/>{' ' * 64}",
    "a tag": f"{HEAD}<url><loc>a:b</loc><rs:md",
}


@pytest.mark.parametrize(
    ("command", "what"),
    [
        ("follow", "blanks"),
        ("audit", "layout"),
        ("inspect", "a tag"),
        ("relay", "blanks"),
        ("validate", "layout"),
    ],
)
async def test_a_command_ends_by_a_signal_while_a_document_comes(
    command: str, what: str, source: Source, folder: Path
):
    source.offer(changelist=None)
    folder.mkdir()
    more, read = asyncio.Event(), asyncio.Event()

    async def pieces() -> AsyncIterator[bytes]:
        yield BEGINNINGS[what].encode()
        yield b" " * 1_000
        read.set()
        await more.wait()

    source.put("resourcelist.xml", Answer(pieces))
    arguments: dict[str, list[object]] = {
        "follow": [folder],
        "audit": [folder],
        "relay": [folder, "--base-url", "http://127.0.0.1/", "--port", 0],
    }
    url = source.uri("resourcelist.xml") if command == "validate" else source.url
    process = await rsnotify(command, url, *arguments.get(command, ()))
    try:
        async with asyncio.timeout(SECONDS):
            await read.wait()
        process.send_signal(signal.SIGINT)
        code, _, errors = await outcome(process)
    finally:
        more.set()
        await ended(process)
    assert code >= 0, errors
    assert "Traceback" not in errors


async def test_gzip_within_gzip_is_read_within_the_same_limits(source: Source, folder: Path):
    source.offer(changelist=None)
    folder.mkdir()
    body = f"{HEAD}<url>".encode() + b" " * 200_000_000
    packed = gzip.compress(gzip.compress(body))
    source.put("resourcelist.xml", Answer(packed, headers={"Content-Encoding": "gzip"}))
    refused = await command_audit(source, folder)
    assert refused.code == 2
    assert "larger than 100000000 bytes" in refused.output


# One of many Sources sends a document without end: the others are followed as before.
#
# What does not end is read up to a limit, by few at a time, in small steps between which others
# have their turn, and again only after a while that grows.


OTHERS = 5


@pytest.fixture
async def others() -> AsyncIterator[list[Source]]:
    async with AsyncExitStack() as stack:
        others = [Source() for _ in range(OTHERS)]
        for one in others:
            await one.server.start()
            stack.push_async_callback(one.server.stop)
            one.offer(changelist=None)
            one.file("a", b"first")
            one.list_resources(0)
        yield others


def _peak(pid: int) -> int:
    """Return the most memory that a process has taken, in MiB."""
    status = Path(f"/proc/{pid}/status").read_text()
    line = next(line for line in status.splitlines() if line.startswith("VmHWM"))
    return int(line.split()[1]) // 1024


SLOW = pytest.mark.slow


@pytest.mark.parametrize(
    "what", ["entries", *(pytest.param(what, marks=SLOW) for what in ("blanks", "links"))]
)
async def test_the_others_are_followed_as_before(
    what: str, source: Source, others: list[Source], tmp_path: Path
):
    begin, repeated, _ = ENDLESS[what]
    document = Counted(begin, repeated)
    source.offer(changelist=None)
    source.put("resourcelist.xml", document.answer())
    settings = ['[defaults]\ndest = "{name}"']
    for name, one in [("broken", source), *((f"s{n}", one) for n, one in enumerate(others))]:
        settings.append(f'[[source]]\nname = "{name}"\nurl = "{one.url}"')
    (tmp_path / "fleet.toml").write_text("\n".join(settings))
    arguments = ("follow", "--config", tmp_path / "fleet.toml", "--poll", "0.5", "--json")
    with own_interpreter():  # whose memory is all its own
        process = await rsnotify(*arguments)
    assert process.stdout is not None
    draining = asyncio.create_task(process.stderr.read())
    try:
        for step in range(10):
            for one in others:
                one.file("a", b"step %d" % step, step + 1)
                one.list_resources(step + 1)
            async with asyncio.timeout(PATIENCE):
                while not all(
                    files_of(tmp_path / f"s{number}") == one.resources
                    for number, one in enumerate(others)
                ):
                    assert await process.stdout.readline(), "it ended before"
        # It was asked again, but less often than the others, and never read on beyond the limit.
        assert document.sent < 150_000_000
        asked = len(source.requests("resourcelist.xml"))
        assert asked <= 2 + min(len(one.requests("resourcelist.xml")) for one in others) // 2
        assert _peak(process.pid) < 500
        process.send_signal(signal.SIGINT)
        async with asyncio.timeout(PATIENCE):
            while await process.stdout.readline():
                pass
            assert await process.wait() == 0
    finally:
        await ended(process)
        await draining


async def test_only_some_large_documents_are_read_at_a_time(
    source: Source, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(downloading, "LARGE_BYTES", 100_000)
    reading = asyncio.Semaphore(0)
    release = asyncio.Event()
    body = HEAD.encode() + b" " * 20_000_000

    def document(number: int) -> Answer:
        async def pieces() -> AsyncIterator[bytes]:
            yield body  # more than the system keeps for a reader
            reading.release()
            await release.wait()
            yield b"</urlset>"

        return Answer(pieces)

    for number in range(6):
        source.put(f"{number}.xml", document(number))
    source.put("small.xml", urlset())
    async with Connections() as shared, AsyncExitStack() as stack:
        fetchers = []
        for _ in range(7):
            sessions = await stack.enter_async_context(Sessions(source.url, shared=shared))
            fetchers.append(Fetcher(sessions, tmp_path))
        large = [
            asyncio.create_task(fetcher.document(source.uri(f"{number}.xml")))
            for number, fetcher in enumerate(fetchers[:6])
        ]
        async with asyncio.timeout(PATIENCE):
            for _ in range(3):
                await reading.acquire()
            # A small one does not wait for them, however many they are.
            await fetchers[6].document(source.uri("small.xml"))
            assert reading.locked()
            release.set()
            await asyncio.gather(*large)


async def test_the_event_loop_has_its_turns_while_a_bomb_is_read(source: Source, tmp_path: Path):
    begin, repeated, _ = ENDLESS["blanks"]
    source.put("bomb.xml", Counted(begin, repeated, packed=True).answer())
    longest = 0.0

    async def watch() -> None:
        nonlocal longest
        while True:
            begun = time.thread_time()
            await asyncio.sleep(0)
            longest = max(longest, time.thread_time() - begun)

    async with Sessions(source.url) as sessions:
        watching = asyncio.create_task(watch())
        with pytest.raises(Exception, match="larger than"):
            await Fetcher(sessions, tmp_path).document(source.uri("bomb.xml"))
        watching.cancel()
    assert longest < 1.0
