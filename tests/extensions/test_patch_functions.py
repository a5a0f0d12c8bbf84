"""What a Destination expects of each function that applies patches (`rsnotify.patches`)."""

from __future__ import annotations

import logging
from collections.abc import Callable

import pytest

from rsnotify.runtime import extensions
from rsnotify.runtime.extensions import offered
from rsnotify_subscriber import Patch
from rsnotify_subscriber.content.patches import PatchFunctions

JSON = (b'{"a": 1}', b'[{"op": "replace", "path": "/a", "value": 2}]', b'{"a": 2}')
XML_PATCH = (
    b'<p:patch xmlns:p="urn:ietf:rfc:7351"><p:replace sel="a/text()">2</p:replace></p:patch>'
)
#: The content before, a patch, and the content after.
SAMPLES = {
    "application/json-patch": JSON,
    "application/json-patch+json": JSON,
    "application/merge-patch+json": (b'{"a": 1}', b'{"a": 2}', b'{"a": 2}'),
    "application/xml-patch+xml": (b"<a>1</a>", XML_PATCH, b"<a>2</a>"),
}


@pytest.fixture(params=sorted(offered("patches")))
def media_type(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def function(media_type: str) -> Patch:
    function = PatchFunctions({}).load(media_type)
    assert function is not None
    return function


def test_each_installed_type_has_a_sample(media_type: str) -> None:
    assert media_type in SAMPLES
    assert media_type == media_type.lower(), "types are compared in lower case"


def test_it_returns_the_content_after_and_keeps_no_state(media_type: str, function: Patch) -> None:
    before, patch, after = SAMPLES[media_type]
    assert [function(before, patch) for _ in range(3)] == [after] * 3


@pytest.mark.parametrize("spoil", [lambda _: b"", lambda patch: patch[:-1], lambda _: b"\xff\x00"])
def test_an_invalid_patch_is_an_exception(
    media_type: str, function: Patch, spoil: Callable[[bytes], bytes]
) -> None:
    before, patch, _ = SAMPLES[media_type]
    with pytest.raises(Exception, match=r"."):
        function(before, spoil(patch))


def test_content_of_another_type_is_an_exception(media_type: str, function: Patch) -> None:
    _, patch, _ = SAMPLES[media_type]
    with pytest.raises(Exception, match=r"."):
        function(b"\x89PNG\r\n", patch)


def test_a_missing_function_is_logged_once_with_the_extra(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("rsnotify_subscriber.content.patches.offered", lambda _group: {})
    monkeypatch.setattr(extensions, "offered", lambda _group: {})
    functions = PatchFunctions({})
    with caplog.at_level(logging.WARNING, "rsnotify.subscriber"):
        assert not any(functions.offers("application/json-patch+json") for _ in range(3))
        assert not functions.offers("text/x-diff")
    assert [record.getMessage() for record in caplog.records] == [
        "fetching whole resources instead of patches: a function for application/json-patch+json "
        "is not installed; install it with pip install 'rsnotify[patching]'",
        "fetching whole resources instead of patches: a function for text/x-diff is not installed; "
        "installed: none",
    ]


def test_sources_cannot_fill_the_log_with_types(caplog: pytest.LogCaptureFixture) -> None:
    functions = PatchFunctions({})
    with caplog.at_level(logging.WARNING, "rsnotify.subscriber"):
        assert not any(functions.offers(f"text/x-{number}") for number in range(100))
    assert len(caplog.records) == 20


def test_functions_of_the_user_come_first() -> None:
    def own(before: bytes, patch: bytes, /) -> bytes:
        return before + patch

    functions = PatchFunctions({"application/json-patch+json": own})
    assert functions.load("application/json-patch+json") is own
