"""Every example of the specifications is read, and written again to an equal document.

The examples are taken from the text of the specifications where that is at hand; our own
documents of each kind (`valid.py`) stand beside them, so that this says something anywhere.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from lxml import etree

from rsnotify.format.datetimes import parse_datetime
from rsnotify.format.model import SITEMAP_NS
from rsnotify.format.reader import read_document
from rsnotify.format.writer import write_document
from tests.core.validation.examples import examples
from tests.core.validation.valid import VALID

_PRIORITY = f"{{{SITEMAP_NS}}}priority"
_DATETIMES = {"at", "completed", "datetime", "from", "until", "modified"}
DOCUMENTS = [
    *((name, text.encode()) for name, text in VALID.items()),
    *((name, data) for name, data in examples() if b"<?xml" in data),
]


def facts(data: bytes) -> Iterator[tuple[object, ...]]:
    """Give all that a document says: each element's path, attributes and text, in order.

    How it says it is left out: white space, prefixes, and the form of a datetime. So is
    where links and metadata stand before each other, which says nothing (core §7), and a
    Sitemap's `priority`, to which ResourceSync gives no meaning.
    """
    root = etree.fromstring(data)
    yield (root.tag, *_element_facts(root))
    for level in [root, *root]:
        said = [
            (child.tag, *_element_facts(child))
            for child in level
            if len(child) == 0 and child.tag != _PRIORITY
        ]
        yield level.tag, sorted(said, key=repr)


def _element_facts(element: etree._Element) -> tuple[object, ...]:
    attributes = sorted((name, _meaning(name, value)) for name, value in element.attrib.items())
    text = (element.text or "").strip()
    is_datetime = etree.QName(element).localname == "lastmod"
    return attributes, parse_datetime(text) if is_datetime else text


def _meaning(name: str, value: str) -> object:
    return parse_datetime(value) if name in _DATETIMES else " ".join(value.split())


@pytest.mark.parametrize(("name", "data"), DOCUMENTS, ids=[name for name, _ in DOCUMENTS])
def test_an_example_is_written_again_to_an_equal_document(name: str, data: bytes) -> None:
    document = read_document(data, source=name)
    written = write_document(document)
    assert read_document(written) == document
    assert list(facts(written)) == list(facts(data))
