"""The parsers for untrusted XML."""

from __future__ import annotations

import pytest

from rsnotify.format.xml_parser import expat_parser, is_well_formed


@pytest.mark.parametrize(
    ("data", "expected"),
    [
        (b"<a/>", True),
        (b'<x:a xmlns:x="urn:x">&amp;</x:a>', True),
        (b"<x:a/>", False),
        (b"<x:a><y:b/></x:a>", False),
        (b"<a>", False),
    ],
)
def test_a_document_is_well_formed_only_if_its_namespaces_are_declared(
    data: bytes, expected: bool
) -> None:
    assert is_well_formed(data) is expected


def test_expat_parses_a_token_as_soon_as_it_ends_and_names_its_namespace() -> None:
    names: list[str] = []
    parser = expat_parser(" ")
    parser.StartElementHandler = lambda name, attributes: names.append(name)
    parser.Parse(b'<a xmlns="urn:x"')
    parser.Parse(b">")
    assert names == ["urn:x a"]
