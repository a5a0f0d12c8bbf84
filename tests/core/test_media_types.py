"""Whether the media type of a response contradicts the announced one."""

from __future__ import annotations

import pytest

from rsnotify.format.media_types import contradicts

EQUAL = [
    ("text/plain", None),
    (None, "text/html"),
    ("text/plain", "not a media type"),
    ("text/plain", "text/plain; charset=utf-8"),
    ("Text/Plain;charset=latin-1", "text/plain"),
    ("text/turtle", "application/octet-stream"),
    ("application/octet-stream", "text/html"),
    ("text/xml", "application/xml"),
    ("application/rdf+xml", "text/xml"),
    ("application/xml", "image/svg+xml"),
    ("application/ld+json", "application/json; charset=utf-8"),
    ("text/html", "application/xhtml+xml"),
    ("application/xml", "application/xhtml+xml"),
    ("text/javascript", "application/x-javascript"),
    ("image/jpeg", "image/jpg"),
    ("application/gzip", "application/x-gzip"),
    ("application/epub+zip", "application/zip"),
    ("image/x-icon", "image/vnd.microsoft.icon"),
    ("audio/mpeg", "audio/mp3"),
    ("text/csv", "application/csv"),
    ("text/turtle", "text/plain"),
    ("application/n-triples", "text/plain; charset=utf-8"),
    ("application/rdf+xml", "text/plain"),
    ("text/plain", "text/markdown"),
    ("application/x-ndjson", "application/jsonl"),
]
OTHERS = [
    ("text/plain", "text/html"),
    ("text/plain", "text/html; charset=utf-8"),
    ("text/html", "text/plain"),
    ("application/xhtml+xml", "text/plain"),
    ("text/turtle", "text/html"),
    ("application/rdf+xml", "text/html"),
    ("application/rdf+xml", "application/atom+xml"),
    ("application/pdf", "text/plain"),
    ("application/pdf", "application/json"),
    ("image/png", "text/html"),
    ("image/png", "image/jpeg"),
    ("application/json", "text/xml"),
    ("application/ld+json", "application/geo+json"),
]


@pytest.mark.parametrize(("announced", "served"), EQUAL)
def test_names_of_one_type_do_not_contradict_each_other(
    announced: str | None, served: str | None
) -> None:
    assert not contradicts(announced, served)


@pytest.mark.parametrize(("announced", "served"), OTHERS)
def test_another_type_contradicts_the_announced_one(announced: str, served: str) -> None:
    assert contradicts(announced, served)
