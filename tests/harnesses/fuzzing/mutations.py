"""Changes to valid input that keep some of its structure, as Hypothesis strategies."""

from __future__ import annotations

import re

from hypothesis import strategies as st

from tests.harnesses.fuzzing.surface import UNITS, Surface

_TOKEN = re.compile(rb"<[^<>]{0,200}>|[\w.+-]+|\s+|.", re.DOTALL)
#: What replaces a part, or stands beside it.
_ODD = (
    *UNITS,
    b"",
    b"-1",
    b"9" * 30,
    b"1e999",
    b"NaN",
    b"0001-01-01T00:00:00Z",
    b"9999-12-31T23:59:59-23:59",
    b"Thu, 01 Jan 1970 00:00:00 +99999999999999999",
    b"2013-01-03T24:00:00.9999999Z",
    b"\xed\xa0\x80",
    b"\\ud800",
    b"&#xD800;",
    b"&#0;",
    b"&lol;",
    b"]]>",
    b"<![CDATA[",
    b"-->",
    b"<?xml version='1.0' encoding='utf-16'?>",
    b"<!DOCTYPE a [<!ENTITY lol 'lol'><!ENTITY b SYSTEM 'file:///etc/passwd'>]>",
    b" xmlns='urn:x'",
    b" xmlns:rs=''",
    b" xmlns:rs='http://www.openarchives.org/rs/terms/'",
    b"http://[",
    b"http://e.example:99999/",
    b"//",
    b"..",
    b"null",
    b"true",
    b"[]",
    b"{}",
    b'"\\u0000"',
)
_ENCODINGS = ("utf-8-sig", "utf-16", "utf-32", "utf-7", "cp037")


@st.composite
def mutated(draw: st.DrawFn, surface: Surface) -> bytes:
    """Return a seed after some changes."""
    data = draw(st.sampled_from(surface.seeds))
    for _ in range(draw(st.integers(0, 4))):
        data = _change(draw, data, surface)
    if draw(st.integers(0, 30)) == 0:
        encoding = draw(st.sampled_from(_ENCODINGS))
        data = data.decode("latin-1").encode(encoding, "replace")
    return data


def _change(draw: st.DrawFn, data: bytes, surface: Surface) -> bytes:
    tokens = _TOKEN.findall(data) or [b""]
    at, other = (draw(st.integers(0, len(tokens) - 1)) for _ in range(2))
    match draw(st.integers(0, 8)):
        case 0:
            tokens[at : at + draw(st.integers(1, 20))] = []
        case 1:
            tokens[other:other] = tokens[at : at + draw(st.integers(1, 20))]
        case 2:
            tokens[at], tokens[other] = tokens[other], tokens[at]
        case 3:
            return data[: draw(st.integers(0, len(data)))]
        case 4:  # nested, or repeated
            tokens[at] *= draw(st.sampled_from((2, 10, 300)))
        case 5:
            tokens[at] = draw(st.sampled_from(_ODD))
        case 6:
            tokens[at] += draw(st.sampled_from(_ODD)) * draw(st.sampled_from((1, 3, 300)))
        case 7:
            found = _TOKEN.findall(draw(st.sampled_from(surface.seeds))) or [b""]
            begin = draw(st.integers(0, len(found) - 1))
            tokens[at:at] = found[begin : begin + draw(st.integers(1, 20))]
        case 8:
            tokens[at] = draw(st.binary(max_size=8))
    return b"".join(tokens)
