"""JSON Patch (RFC 6902) and JSON Merge Patch (RFC 7396)."""

from __future__ import annotations

import json
import re
from typing import Any

from jsonpatch import JsonPatch
from jsonpointer import resolve_pointer

from rsnotify.errors import PatchError
from rsnotify_patching.patch_budget import PatchBudget

_INDENT = re.compile(r"[\[{]\n([ \t]*)")


def json_patch(before: bytes, patch: bytes) -> bytes:
    """Apply a JSON Patch, and preserve the formatting of `before` if it is common.

    Raises:
        PatchError: The patch costs too much.
        ValueError: `before` or `patch` is not JSON.
        jsonpatch.JsonPatchException: The patch is invalid, or one of its tests fails.
    """
    value, layout = _load(before), _Layout(before)
    budget = PatchBudget()
    for operation in _load(patch):
        # Charge and apply one operation at a time, because copies of copies can double the size
        # with each operation.
        _charge_operation(budget, value, operation)
        value = JsonPatch([operation]).apply(value, in_place=True)
    return layout.write(value)


def json_merge_patch(before: bytes, patch: bytes) -> bytes:
    """Apply a JSON Merge Patch, and preserve the formatting of `before` if it is common.

    Raises:
        ValueError: `before` or `patch` is not JSON.
    """
    return _Layout(before).write(merge(_load(before), _load(patch)))


def merge(target: Any, patch: Any) -> Any:
    """Merge a patch into a JSON value, and return the result (RFC 7396 §2)."""
    if not isinstance(patch, dict):
        return patch
    result = dict(target) if isinstance(target, dict) else {}
    for name, value in patch.items():
        if value is None:
            result.pop(name, None)
        else:
            result[name] = merge(result.get(name), value)
    return result


def _charge_operation(budget: PatchBudget, value: Any, operation: Any) -> None:
    budget.begin()
    if isinstance(operation, dict) and operation.get("op") in ("copy", "test"):
        place = "from" if operation["op"] == "copy" else "path"
        _charge_value(budget, resolve_pointer(value, str(operation.get(place))))


def _charge_value(budget: PatchBudget, value: Any) -> None:
    waiting = [value]
    while waiting:
        one = waiting.pop()
        budget.spend()
        if isinstance(one, dict):
            waiting.extend(one.values())
        elif isinstance(one, list):
            waiting.extend(one)
        elif isinstance(one, str):
            budget.spend(len(one) // 16)


def _load(text: bytes) -> Any:
    return json.loads(text.decode("utf-8"), parse_constant=_refuse)


def _refuse(constant: str) -> None:
    raise PatchError(f"{constant} is not JSON")


class _Layout:
    """The formatting of a JSON text, to write the patched text with the same bytes as the Source.

    It is guessed. The hash of the result shows whether the guess was right.
    """

    def __init__(self, text: bytes) -> None:
        shown = text.decode("utf-8")
        self._end = shown[len(shown.rstrip()) :]
        found = _INDENT.search(shown)
        compact = re.search(r'":\S', shown) is not None
        self._options: dict[str, Any] = {
            "ensure_ascii": shown.isascii(),
            "indent": found[1] if found else None,
            "separators": ("," if found or compact else ", ", ":" if compact else ": "),
        }
        options = {**self._options, "sort_keys": True}
        if json.dumps(json.loads(shown), **options) == shown.rstrip():
            self._options = options

    def write(self, value: Any) -> bytes:
        return (json.dumps(value, **self._options) + self._end).encode()
