"""What a Destination asks of a hub: no less than it wants, and the same by the same name."""

from __future__ import annotations

from hashlib import sha256

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rsnotify.errors import ConfigurationError
from rsnotify.format.model import ChangeType, Resource
from rsnotify.selection import (
    EVERYTHING,
    LONGEST,
    MOST,
    PushSelection,
    Selection,
    push_selection_for,
)

CREATED, UPDATED, DELETED = ChangeType.CREATED, ChangeType.UPDATED, ChangeType.DELETED
BASE = "https://source.example/data/"
TOPIC = BASE + "channel.xml"

URIS = st.lists(st.sampled_from(["maps", "a", "b.ttl", "c.html", "d"]), min_size=1, max_size=3).map(
    lambda parts: BASE + "/".join(parts)
)
PATTERNS = st.one_of(
    URIS,
    URIS.map(lambda uri: uri + "*"),
    URIS.map(lambda uri: uri.replace("a", "*")),
    st.sampled_from([BASE, "*.ttl", "maps/", "*", "*://source.example/*", BASE + "maps/*.ttl"]),
)
TYPES = st.sampled_from(["text/turtle", "text/*", "*/*", "Text/HTML; charset=utf-8", "image/png"])
CHANGES = st.sampled_from(list(ChangeType))
SELECTIONS = st.builds(
    Selection,
    only=st.lists(PATTERNS, max_size=3).map(tuple),
    excluded=st.lists(PATTERNS, max_size=1).map(tuple),
    types=st.lists(TYPES, max_size=2).map(tuple),
    changes=st.lists(CHANGES, max_size=2).map(tuple),
)
ENTRIES = st.builds(
    Resource, URIS, change=CHANGES, type=st.none() | st.sampled_from(["text/turtle", "image/png"])
)


@given(SELECTIONS, ENTRIES)
def test_no_less_is_asked_for_than_is_wanted(selection: Selection, entry: Resource) -> None:
    if selection.wants(entry) and (not selection.changes or entry.change in selection.changes):
        assert push_selection_for(selection).admits(entry)


@pytest.mark.parametrize(
    ("selection", "asked"),
    [
        (Selection(), EVERYTHING),
        (Selection(only=(BASE + "maps/",)), PushSelection(prefixes=(BASE + "maps/",))),
        (Selection(only=(BASE + "maps/*.ttl",)), PushSelection(prefixes=(BASE + "maps/",))),
        (Selection(only=(BASE + "maps/", "*.ttl")), EVERYTHING),
        (Selection(only=("maps/",), types=("text/turtle",)), PushSelection(types=("text/turtle",))),
        (Selection(excluded=(BASE,)), EVERYTHING),
        (Selection(only=tuple(f"{BASE}{n}" for n in range(MOST + 1))), EVERYTHING),
    ],
)
def test_what_a_hub_cannot_tell_is_left_to_the_destination(
    selection: Selection, asked: PushSelection
) -> None:
    assert push_selection_for(selection) == asked


@pytest.mark.parametrize(
    ("name", "change", "type", "is_sent"),
    [
        ("a.html", DELETED, None, True),  # a deletion, whatever its type
        ("a.html", UPDATED, None, False),
        ("a", UPDATED, None, True),
        ("a.ttl", UPDATED, "text/html", True),  # its name tells the old type
        ("a.ttl", CREATED, "text/html", False),
        ("a", UPDATED, "text/html", False),
    ],
)
def test_a_change_is_sent_if_it_has_or_may_have_had_a_type(
    name: str, change: ChangeType, type: str | None, is_sent: bool
) -> None:
    turtle = PushSelection(types=("text/turtle",))
    assert turtle.admits(Resource(BASE + name, change=change, type=type)) is is_sent


def test_the_same_wish_has_the_same_text_however_it_is_written() -> None:
    one = PushSelection(
        (BASE + "b", BASE + "a/x", BASE + "a/"), ("Text/Turtle; q=1", "text/*"), (UPDATED,)
    )
    other = PushSelection((BASE + "a/", BASE + "b"), ("text/*", "text/turtle"), (UPDATED, UPDATED))
    assert one.canonical() == other.canonical()
    assert one.canonical().text == (
        b'{"prefixes":["https://source.example/data/a/","https://source.example/data/b"],'
        b'"types":["text/*","text/turtle"],"changes":["updated"]}'
    )


def test_all_types_and_all_changes_are_no_restriction() -> None:
    assert not PushSelection(types=("*/*", "text/html"), changes=tuple(ChangeType)).canonical()


def test_a_name_is_made_of_the_topic_and_the_text() -> None:
    text = '{"changes":["deleted"]}'
    expected = sha256(f"{TOPIC}\n{text}".encode()).hexdigest()[:32]
    assert PushSelection(changes=(DELETED,)).canonical().digest(TOPIC) == expected


@pytest.mark.parametrize(
    "select",
    [
        PushSelection(prefixes=("maps/",)),
        PushSelection(prefixes=('https://source.example/"',)),
        PushSelection(prefixes=("https://source.example/ ",)),
        PushSelection(prefixes=("",)),
        PushSelection(prefixes=tuple(f"{BASE}{n}" for n in range(MOST + 1))),
        PushSelection(prefixes=(BASE + "x" * LONGEST,)),
        PushSelection(types=("turtle",)),
    ],
)
def test_what_is_no_wish_is_refused(select: PushSelection) -> None:
    with pytest.raises(ConfigurationError):
        select.canonical()
