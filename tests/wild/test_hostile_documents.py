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
import zlib
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest
from yarl import URL

from rsnotify.format.model import RS_NS, SITEMAP_NS
from tests.subscriber.processes import SECONDS, ended, outcome, rsnotify
from tests.wild.documents import md, seconds
from tests.wild.running import command_audit, command_follow_once
from tests.wild.source import Answer, WildSource

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


@pytest.mark.parametrize(
    ("what", "packed"),
    [
        ("entries", False),
        ("links", False),
        ("blanks", True),
        *(
            pytest.param(what, packed, marks=pytest.mark.slow)
            for what, packed in [
                *((what, False) for what in ("a location", "attributes", "references", "blanks")),
                ("entries", True),
            ]
        ),
    ],
)
async def test_what_does_not_end_is_refused_in_a_sentence(
    what: str, packed: bool, source: WildSource, folder: Path
) -> None:
    begin, repeated, reason = ENDLESS[what]
    source.offer(changelist=None)
    copy = source.file("a", b"content")
    folder.mkdir()
    (folder / "a").write_bytes(copy)
    document = Counted(begin, repeated, packed=packed)
    source.put("resourcelist.xml", document.answer())

    audited = await command_audit(source, folder)
    assert (audited.code, document.sent < 150_000_000) == (2, True)
    assert reason in audited.output
    other = folder.with_name("other")
    followed = await command_follow_once(source, other, "--poll", "0.1")
    assert (followed.code, document.sent < 150_000_000) == (1, True)
    assert reason in followed.output
    code, output, _ = await outcome(await rsnotify("inspect", source.url))
    assert (code, document.sent < 150_000_000) == (0, True)
    assert reason in output
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


async def until_read(source: WildSource) -> None:
    """Wait until a client in another process has read all that was sent to it."""
    port = f":{URL(source.url).port:04X}"
    async with asyncio.timeout(SECONDS):
        while any(  # noqa: ASYNC110 - another process does it
            fields[2].endswith(port) and not fields[4].endswith(":00000000")
            for fields in map(str.split, Path("/proc/net/tcp").read_text().splitlines())
        ):
            await asyncio.sleep(0.001)


@pytest.mark.parametrize("cut", [r"<url>\n    ", "</image:image>\n    ", "<!-- a", "7", "</url"])
async def test_an_honest_layout_is_read_however_it_is_cut(
    cut: str, source: WildSource, folder: Path
) -> None:
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
    followed = await command_follow_once(source, folder)
    assert (followed.code, (folder / "a").read_bytes()) == (0, b"content")
    assert (await command_audit(source, folder)).code == 0


@pytest.mark.parametrize("command", ["follow", "audit", "inspect", "relay", "validate"])
@pytest.mark.parametrize(
    "begin",
    [
        f"{HEAD}<url>{' ' * 64}",
        f"{HEAD}\n        <url>\n                <loc>a:b</loc>\n{' ' * 64}<x/>{' ' * 64}",
        f"{HEAD}<url><loc>a:b</loc><rs:md",
    ],
    ids=["blanks", "layout", "a tag"],
)
async def test_a_command_ends_by_a_signal_while_a_document_comes(
    command: str, begin: str, source: WildSource, folder: Path
) -> None:
    source.offer(changelist=None)
    folder.mkdir()
    more, read = asyncio.Event(), asyncio.Event()

    async def pieces() -> AsyncIterator[bytes]:
        yield begin.encode()
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


async def test_gzip_within_gzip_is_read_within_the_same_limits(
    source: WildSource, folder: Path
) -> None:
    source.offer(changelist=None)
    folder.mkdir()
    body = f"{HEAD}<url>".encode() + b" " * 200_000_000
    packed = gzip.compress(gzip.compress(body))
    source.put("resourcelist.xml", Answer(packed, headers={"Content-Encoding": "gzip"}))
    audited = await command_audit(source, folder)
    assert audited.code == 2
    assert "larger than 100000000 bytes" in audited.output
