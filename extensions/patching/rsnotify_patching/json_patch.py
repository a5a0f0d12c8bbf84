"""JSON Patch (RFC 6902) and JSON Merge Patch (RFC 7396).

The error of patches, and the limit of their cost.
"""

from __future__ import annotations

import json
import re
from time import thread_time
from typing import Any

from jsonpatch import JsonPatch
from jsonpointer import resolve_pointer

from rsnotify.errors import InvalidDocument

#: The most nodes that all operations of one patch together may visit or copy, which bounds memory,
#: and the most seconds of CPU time. A patch is to save time: one that takes longer than a GET would
#: is not worth it.
WORK = 2_000_000
SECONDS = 2.0
#: The nodes between two checks of the time.
_STRETCH = 1_000


class PatchError(InvalidDocument):
    """A patch is invalid, or does not fit the content.

    Args:
        reason: What is wrong.
        condition: The name of the error in RFC 5261 §5, for a patch of XML.
    """

    def __init__(self, reason: str, condition: str = "invalid-patch-directive") -> None:
        super().__init__(reason)
        self.condition = condition


class PatchBudget:
    """The cost that a patch may have: visited nodes, and CPU seconds of the thread.

    Its methods raise PatchError when it is exceeded.
    """

    def __init__(self, work: int = WORK, seconds: float = SECONDS) -> None:
        self._left = work
        self._end = thread_time() + seconds
        self._checked = work

    def begin(self) -> None:
        """Account for an operation, however few nodes it visits."""
        self.spend()
        self._check_time()

    def spend(self, nodes: int = 1) -> None:
        self._left -= nodes
        if self._left < self._checked - _STRETCH:
            self._check_time()

    def _check_time(self) -> None:
        self._checked = self._left
        if self._left < 0 or thread_time() > self._end:
            raise PatchError("it takes more work than fetching the resource would")


_INDENT = re.compile(r"[\[{]\n([ \t]*)")


def json_patch(before: bytes, patch: bytes) -> bytes:
    """Apply a JSON Patch, and keep a usual format of `before`.

    Raises:
        PatchError: It costs too much.
        ValueError: One of the two is no JSON.
        jsonpatch.JsonPatchException: The patch is invalid, or one of its tests fails.
    """
    value, layout = _load(before), _Layout(before)
    budget = PatchBudget()
    for operation in _load(patch):
        # One operation at a time, since copies of copies double with each operation.
        _charge(budget, value, operation)
        value = JsonPatch([operation]).apply(value, in_place=True)
    return layout.write(value)


def json_merge_patch(before: bytes, patch: bytes) -> bytes:
    """Apply a JSON Merge Patch, and keep a usual format; ValueError if one of them is no JSON."""
    return _Layout(before).write(merged(_load(before), _load(patch)))


def merged(target: Any, patch: Any) -> Any:
    """Return a JSON value after merging a patch into it (RFC 7396 §2)."""
    if not isinstance(patch, dict):
        return patch
    result = dict(target) if isinstance(target, dict) else {}
    for name, value in patch.items():
        if value is None:
            result.pop(name, None)
        else:
            result[name] = merged(result.get(name), value)
    return result


def _charge(budget: PatchBudget, value: Any, operation: Any) -> None:
    budget.begin()
    if isinstance(operation, dict) and operation.get("op") in ("copy", "test"):
        place = "from" if operation["op"] == "copy" else "path"
        _weigh(budget, resolve_pointer(value, str(operation.get(place))))


def _weigh(budget: PatchBudget, value: Any) -> None:
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
    """The formatting of a JSON text, so that the patched one has the same bytes as the Source's.

    It is a guess: the hash of the result shows whether it was right.
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
