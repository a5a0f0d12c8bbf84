"""Constructors check their arguments at once, and report a wrong one in one sentence."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from rsnotify.errors import ConfigurationError
from rsnotify.selection import Selection
from rsnotify.sync.pace import Pace
from rsnotify_subscriber import (
    Callbacks,
    FolderMirror,
    FollowOptions,
    Received,
    Subscriber,
    Via,
    WebSubTerms,
    default_state,
)
from rsnotify_subscriber.handlers import as_handler, in_thread
from tests.subscriber.options import gathered

SOURCE = "http://source.example/"


async def ignore(_: Received) -> None: ...


def plain(_: Received) -> None: ...


class Indexer:
    async def apply(self, changes: Sequence[Received]) -> None: ...

    async def one(self, change: Received) -> None: ...

    def one_at_once(self, change: Received) -> None: ...


class PlainApply:
    def apply(self, changes: Sequence[Received]) -> None: ...


class AsyncWithin:
    async def apply_within(self, connection: Any, changes: Sequence[Received]) -> None: ...


def refused(**given: Any) -> str:
    arguments = {"url": SOURCE, "handler": ignore, "state": "state"} | given
    with pytest.raises(ConfigurationError) as caught:
        Subscriber(arguments.pop("url"), arguments.pop("handler"), **gathered(arguments))
    return str(caught.value)


@pytest.mark.parametrize(
    ("handler", "said"),
    [
        (AsyncWithin(), "AsyncWithin.apply_within is called in a thread; define it with"),
        (Indexer, "the handler Indexer is a class; pass an instance"),
        (FolderMirror, "the handler FolderMirror is a class; pass an instance"),
        ("copy", "a handler of type str is not supported; pass a function"),
        (None, "a handler of type NoneType"),
    ],
)
def test_a_handler_that_cannot_work_is_refused(handler: object, said: str) -> None:
    assert said in refused(handler=handler)


@pytest.mark.parametrize(
    ("handler", "is_plain"),
    [
        *((one, False) for one in (ignore, functools.partial(ignore), Indexer(), Indexer().one)),
        (lambda one: ignore(one), False),
        *((one, True) for one in (plain, functools.partial(plain), print, PlainApply())),
        (Indexer().one_at_once, True),
    ],
)
def test_a_plain_function_is_called_in_a_thread_and_any_other_is_awaited(
    handler: Any, is_plain: bool
) -> None:
    Subscriber(SOURCE, handler, state="state")
    assert (in_thread(as_handler(handler)) is not None) is is_plain


def test_a_plain_function_that_returns_a_coroutine_applies_nothing_and_says_so() -> None:
    def forgotten(change: Received) -> Any:
        return ignore(change)

    change: Any = None
    handler: Any = as_handler(forgotten)
    with pytest.raises(TypeError, match="define it with `async def`"):
        handler.apply([change])


async def test_a_callable_that_returns_nothing_to_await_fails_with_a_sentence() -> None:
    change: Any = None
    handler: Any = as_handler(lambda _: None)  # type: ignore[arg-type, return-value]
    with pytest.raises(TypeError, match="define it with `def` or `async def`"):
        await handler.apply([change])


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"url": Path("source")}, "url is of type PosixPath; give the URL"),
        ({"state": 5}, "state is of type int; give the path of a folder"),
        ({"state": "postgresql://user:secret@a/b"}, "state: a URL is not a folder; for a database"),
        ({"state": Path("postgresql://a/b")}, "state: a URL is not a folder; for a database"),
        ({"via": "carrier pigeon"}, "via is 'carrier pigeon'; give one of auto, websocket"),
        ({"pace": {"poll": 5}}, "pace is of type dict; give a Pace"),
        ({"pace": Pace(poll="5")}, "pace: poll: it has to be a number"),  # type: ignore[arg-type]
        ({"selection": "*.ttl"}, "selection is of type str; give a Selection"),
        ({"selection": Selection(only="*.ttl")}, "selection: only: "),  # type: ignore[arg-type]
        ({"selection": Selection(changes=("made",))}, "selection: changes: "),  # type: ignore[arg-type]
        ({"selection": Selection(only=(Path("a"),))}, "selection: "),  # type: ignore[arg-type]
        ({"prefer": 5}, "prefer is of type int"),
        ({"patches": [1]}, "patches is of type list"),
        ({"callbacks": "https://me.example/"}, "callbacks is of type str; give Callbacks"),
        ({"mqtt": "mqtt://broker.example"}, "mqtt is of type str; give a MqttOptions"),
        ({"hubs": "2"}, "hubs is of type str; give a number"),
        ({"on_event": 5}, "on_event is of type int; give a function"),
        ({"on_committed": ignore}, "on_committed is an async function; define it with"),
    ],
)
def test_an_argument_of_a_wrong_type_is_refused(given: dict[str, Any], said: str) -> None:
    assert said in refused(**given)


def test_folders_and_transports_may_be_strings(tmp_path: Path) -> None:
    mirror = FolderMirror(str(tmp_path / "copy"))
    Subscriber(SOURCE, mirror, state=str(tmp_path / "state"), options=FollowOptions(via="poll"))  # type: ignore[arg-type]
    Subscriber(SOURCE, mirror, state=tmp_path / "state", options=FollowOptions(via=Via.POLL))
    assert default_state(str(tmp_path / "copy")) == tmp_path / "copy.rsnotify"


@pytest.mark.parametrize(
    ("made", "given", "said"),
    [
        (Callbacks, ("https://me.example/", {"lease": 60}), "terms is of type dict; give a WebSub"),
        (Callbacks, ("https://me.example/", WebSubTerms(signatures="x")), "terms: signatures: "),  # type: ignore[arg-type]
        (Callbacks, (5,), "url is of type int"),
        (FolderMirror, (5,), "folder is of type int"),
    ],
)
def test_another_argument_of_a_wrong_type_is_refused(
    made: Any, given: tuple[Any, ...], said: str
) -> None:
    with pytest.raises(ConfigurationError, match=said):
        made(*given)
