"""JSON Patch (RFC 6902) and JSON Merge Patch (RFC 7396)."""

from __future__ import annotations

import json
import time
from functools import partial
from typing import Any

import jsonpatch
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rsnotify.errors import PatchError
from rsnotify_patching import json_patch as json_patches
from rsnotify_patching.json_patch import json_merge_patch as merge_patch
from rsnotify_patching.json_patch import json_patch as apply_patch
from rsnotify_patching.patch_budget import PatchBudget
from tests.examples_count import examples

scalars = st.none() | st.booleans() | st.integers() | st.text(max_size=5)
values: Any = st.recursive(
    scalars,
    lambda inner: (
        st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=3), inner, max_size=4)
    ),
    max_leaves=12,
)


def encoded(value: Any, **options: Any) -> bytes:
    return json.dumps(value, **options).encode()


#: Appendix A of RFC 7396.
MERGES = [
    ('{"a":"b"}', '{"a":"c"}', '{"a":"c"}'),
    ('{"a":"b"}', '{"b":"c"}', '{"a":"b","b":"c"}'),
    ('{"a":"b"}', '{"a":null}', "{}"),
    ('{"a":"b","b":"c"}', '{"a":null}', '{"b":"c"}'),
    ('{"a":["b"]}', '{"a":"c"}', '{"a":"c"}'),
    ('{"a":"c"}', '{"a":["b"]}', '{"a":["b"]}'),
    ('{"a":{"b":"c"}}', '{"a":{"b":"d","c":null}}', '{"a":{"b":"d"}}'),
    ('{"a":[{"b":"c"}]}', '{"a":[1]}', '{"a":[1]}'),
    ('["a","b"]', '["c","d"]', '["c","d"]'),
    ('{"a":"b"}', '["c"]', '["c"]'),
    ('{"a":"foo"}', "null", "null"),
    ('{"a":"foo"}', '"bar"', '"bar"'),
    ('{"e":null}', '{"a":1}', '{"e":null,"a":1}'),
    ("[1,2]", '{"a":"b","c":null}', '{"a":"b"}'),
    ("{}", '{"a":{"bb":{"ccc":null}}}', '{"a":{"bb":{}}}'),
]


@pytest.mark.parametrize(("before", "patch", "after"), MERGES)
def test_the_merges_of_rfc_7396(before: str, patch: str, after: str) -> None:
    assert json.loads(merge_patch(before.encode(), patch.encode())) == json.loads(after)


def merge_between(before: Any, after: Any) -> Any:
    """Return the merge patch that leads from one value to another, without nulls."""
    if not isinstance(before, dict) or not isinstance(after, dict):
        return after
    patch: dict[str, Any] = dict.fromkeys(before.keys() - after.keys())
    for name, value in after.items():
        if name not in before or before[name] != value or type(before[name]) is not type(value):
            patch[name] = merge_between(before.get(name), value)
    return patch


def without_null(value: Any) -> Any:
    if isinstance(value, dict):
        return {k: without_null(one) for k, one in value.items() if one is not None}
    return value


@settings(max_examples=examples(50))
@given(values, values)
def test_a_merge_patch_leads_to_the_other_value(before: Any, after: Any) -> None:
    before, after = without_null(before), without_null(after)
    patch = encoded(merge_between(before, after))
    assert json.loads(merge_patch(encoded(before), patch)) == after


@settings(max_examples=examples(50))
@given(values, values)
def test_a_json_patch_leads_to_the_other_value(before: Any, after: Any) -> None:
    patch = jsonpatch.make_patch(before, after).to_string().encode()
    assert json.loads(apply_patch(encoded(before), patch)) == after


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"separators": (",", ":")},
        {"indent": 2},
        {"indent": "\t"},
        {"ensure_ascii": False},
        {"indent": 4, "sort_keys": True},
        {"separators": (",", ":"), "sort_keys": True},
    ],
)
@pytest.mark.parametrize("end", [b"", b"\n"])
def test_the_result_is_laid_out_as_what_was_before(options: dict[str, Any], end: bytes) -> None:
    before = {"name": "Zoë", "list": [1, {"x": None}], "text": "a: b"}
    before = dict(sorted(before.items())) if options.get("sort_keys") else before
    after = {**before, "added": [True]}
    for function, patch in (
        (apply_patch, [{"op": "add", "path": "/added", "value": [True]}]),
        (merge_patch, {"added": [True]}),
    ):
        result = function(encoded(before, **options) + end, encoded(patch))
        assert result == encoded(after, **options) + end


def test_a_test_that_fails_refuses_the_patch() -> None:
    patch = [{"op": "test", "path": "/a", "value": 2}, {"op": "add", "path": "/b", "value": 1}]
    with pytest.raises(jsonpatch.JsonPatchTestFailed):
        apply_patch(b'{"a": 1}', encoded(patch))


def test_copies_of_copies_do_not_fill_the_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(json_patches, "PatchBudget", partial(PatchBudget, 20_000))
    double = [{"op": "copy", "from": "/a", "path": "/a/-"}]
    with pytest.raises(PatchError, match="takes longer"):
        apply_patch(b'{"a": ["xxxxxxxxxxxxxxxx"]}', encoded(double * 60))


def test_a_patch_of_many_operations_ends_in_seconds() -> None:
    patch = encoded([{"op": "add", "path": "/a/-", "value": 1}] * 400_000)
    begun = time.thread_time()
    with pytest.raises(PatchError, match="takes longer"):
        apply_patch(b'{"a": []}', patch)
    assert time.thread_time() - begun < 10


@pytest.mark.parametrize("text", [b"[NaN]", b"{", b"\xff"])
def test_what_is_no_json_is_not_patched(text: bytes) -> None:
    with pytest.raises((ValueError, PatchError)):
        merge_patch(text, b"{}")
