"""Whatever a document holds, reading it takes bounded memory, and ends with one clear error."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator

import pytest

from rsnotify.format.reader import read_document
from tests.core.test_linear_time import OPENING

#: How a document begins, and what then comes without end.
ENDLESS = {
    "a location": ("<url><loc>", "http://e.example/"),
    "a datetime of references": ("<url><loc>a:b</loc><lastmod>", "&#48;"),
    "a type": ('<url><loc>a:b</loc><rs:md type="', "text/"),
    "a link": ('<url><loc>a:b</loc><rs:ln rel="up" href="data:,', "0123456789"),
    "a name": ("<url><loc>a:b</loc><", "name"),
    "attributes": ("<url><loc>a:b</loc><rs:md", ' a%d="b"'),
    "namespaces": ("<url><loc>a:b</loc><rs:md", ' xmlns:a%d="b:%d"'),
    "attributes of a namespace": ("<url><loc>a:b</loc>", "<rs:md xmlns:a%d='urn:x' a%d:b%d='c'/>"),
    "links": ("<url><loc>a:b</loc>", f'<rs:ln rel="a" href="data:,{"b" * 999_000}"/>'),
    "links of the document": ("", f'<rs:ln rel="a%d" href="data:,{"b" * 999_000}"/>'),
    "elements": ("<url><loc>a:b</loc>", "<x/>"),
    "elements outside of entries": ("", "<x/>"),
    "nested elements": ("", "<x>"),
    "a comment": ("<!--", "comment "),
    "an instruction": ("<?pi ", "instruction "),
    "text outside of entries": ("", "text"),
    "text in an unknown element": ("<url><x>", "&#48;"),
    "characters": ("<url><x><![CDATA[", "text"),
    "entries": ("", "<url><loc>http://e.example/%d</loc></url>"),
    "entries for the parser": ("", "<url><loc>http://e.example/?a=%d&amp;b</loc></url>\n"),
    "inline content": (
        "",
        f'<url><loc>a:%d</loc><rs:ln rel="a" href="data:,{"b" * 999_000}"/></url>',
    ),
}
#: Reads up to a hundred megabytes of each named document, in a process of its own; prints the bytes
#: read, the peak of memory in KiB beyond what the imports take, and what came of it.
PROGRAM = """
import json, os, sys
from rsnotify.errors import DocumentError
from rsnotify.format.reader import DocumentLimits, read_document
from rsnotify_validation.validator import Validator

def peak():
    status = open("/proc/self/status").read()
    return next(int(line.split()[1]) for line in status.splitlines() if line.startswith("VmHWM"))

for line in sys.stdin:
    if os.fork() == 0:
        break
    if os.wait()[1] != 0:
        print("failed", flush=True)
else:
    sys.exit()

opening, before, repeated, how = json.loads(line)
size = 0

def chunks():
    global size
    yield (opening + before).encode()
    number = 0
    while size < 10**8:
        wanted = 1_000_000 // len(repeated) + 1
        if "%d" in repeated:
            numbers = range(number, number + wanted)
            data = "".join([repeated.replace("%d", str(each)) for each in numbers]).encode()
            number += wanted
        else:
            data = (repeated * wanted).encode()
        for at in range(0, len(data), 65536):
            size += len(data[at:at + 65536])
            yield data[at:at + 65536]

size_limit = 11_000_000 if how == "read" else 4_000_000
limits = DocumentLimits(document_bytes=size_limit, entries=50_000)
before_peak = peak()
outcome = "no error"
if how == "read":
    try:
        read_document(chunks(), limits=limits)
    except DocumentError as error:
        outcome = str(error)
else:
    validator = Validator(limits=limits)
    for chunk in chunks():
        outcome = next((f.rule for f in validator.feed(chunk) if f.rule == "limit"), outcome)
        if outcome == "limit":
            break
print(size, peak() - before_peak, outcome, flush=True)
os._exit(0)
"""
MIB = 1024


@pytest.fixture(scope="module")
def reading() -> Iterator[subprocess.Popen[str]]:
    with subprocess.Popen(
        [sys.executable, "-c", PROGRAM], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        yield process


@pytest.mark.parametrize("how", ["read", "validated"])
@pytest.mark.parametrize("what", ENDLESS)
def test_what_does_not_end_is_refused_with_little_memory(
    what: str, how: str, reading: subprocess.Popen[str]
) -> None:
    assert reading.stdin is not None
    assert reading.stdout is not None
    before, repeated = ENDLESS[what]
    print(json.dumps([OPENING, before, repeated, how]), file=reading.stdin, flush=True)
    size, peak, outcome = reading.stdout.readline().split(maxsplit=2)
    print(what, how, int(size) // 10**6, "MB read,", int(peak) // MIB, "MiB,", outcome)
    assert outcome.strip() != "no error"
    assert int(size) <= 11_100_000
    # The URIs of a valid document are in memory until its end.
    valid = 40 if "entries" in what and how == "validated" else 20
    assert int(peak) <= (30 if how == "read" else valid) * MIB


@pytest.mark.parametrize(
    ("entries", "content"), [(50_000, 850), (48, 998_000)], ids=["many entries", "inline content"]
)
def test_a_document_as_large_as_the_specification_allows_is_read(
    entries: int, content: int
) -> None:
    link = f'<rs:ln rel="a" href="data:,{"b" * content}"/>'
    entry = f"<url><loc>http://e.example/%d</loc>{link}</url>\n"
    pieces = [OPENING, *(entry % number for number in range(entries)), "</urlset>"]
    data = "".join(pieces).encode()
    assert 45_000_000 < len(data) < 50_000_000
    document = read_document([data])
    assert len(document.resources) == entries
    assert len(document.resources[-1].links[0].href) == len("data:,") + content
