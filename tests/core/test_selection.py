"""What is selected, what is done about a change, and that T does not depend on it."""

from __future__ import annotations

import re
from datetime import UTC, datetime
from hashlib import sha256
from random import Random

import pytest
from hypothesis import HealthCheck, assume, example, given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from rsnotify.errors import ConfigurationError
from rsnotify.format.coverage import Change, CheckMethod
from rsnotify.format.media_types import guess_media_type
from rsnotify.format.model import ChangeType, Document, Link, Resource
from rsnotify.format.uris import normalize, normalize_beginning
from rsnotify.selection import (
    EVERYTHING,
    MAX_JSON_BYTES,
    MAX_PREFIXES,
    PushSelection,
    Selection,
    push_selection_for,
)
from rsnotify.sync.actions import Action, Compare
from tests.core.histories import play
from tests.core.test_follower_properties import STEPS
from tests.core.world import BASE, EPOCH, OFFER, Destination, Source
from tests.examples_count import examples
from tests.growth import check_growth

AT = datetime(2026, 1, 1, tzinfo=UTC)
CREATED, UPDATED, DELETED = ChangeType.CREATED, ChangeType.UPDATED, ChangeType.DELETED
MAP = "https://source.example/data/maps/a.ttl"


@pytest.mark.parametrize(
    ("pattern", "uri", "matches"),
    [
        (MAP, MAP, True),
        ("https://source.example/data/*", MAP, True),
        ("https://source.example/data/", MAP, True),
        ("https://source.example/data", MAP, False),
        ("https://source.example/*/maps/", MAP, True),
        ("*.ttl", MAP, True),
        ("*.tt", MAP, False),
        ("a.ttl", MAP, True),
        (".ttl", MAP, False),
        ("maps/", MAP, True),
        ("aps/", MAP, False),
        ("maps/*.ttl", MAP, True),
        ("*.ttl", "https://source.example/attl", False),
        ("b?v=1", "https://source.example/b?v=1", True),
        ("b?v=1", "https://source.example/bxv=1", False),
        # The spelling of a URI does not matter.
        ("~a/", "https://source.example/%7Ea/b", True),
        ("%7ea/", "https://source.example/~a/b", True),
        ("\u00fc b*", "https://source.example/%c3%BC%20b.ttl", True),
        ("HTTPS://Source.example:443/data/*.ttl", MAP, True),
        ("https://source.example/data/", "https://source.example:443/x/../data/a", True),
        ("https://source.example/data/", "https://source.example/data/../a", False),
        ("https://source.example/data/.*", "https://source.example/data/.a", True),
        ("https://source.example/data/.*", "https://source.example/data/a", False),
        ("a%2Fb", "https://source.example/a/b", False),
    ],
)
def test_a_pattern_matches_the_whole_uri_or_its_part_after_a_slash(
    pattern: str, uri: str, matches: bool
) -> None:
    assert Selection(only=(pattern,)).wants(Resource(uri)) is matches
    assert Selection(excluded=(pattern,)).wants(Resource(uri)) is not matches
    if matches:
        assert push_selection_for(Selection(only=(pattern,))).admits(Resource(uri))


@given(st.text("ab*/:", min_size=1, max_size=8), st.text("ab/:", max_size=12))
@example("a*a", "a")
@example("://*a*a", "://aa")
def test_a_star_matches_any_characters(pattern: str, uri: str) -> None:
    whole = pattern + "*" if pattern.endswith("/") else pattern
    # `://:/` has an empty port, and matches what has none.
    assume(normalize(uri) == uri and normalize_beginning(whole) == whole)
    form = ".*".join(map(re.escape, whole.split("*")))
    form = form if "://" in whole else f"(?:.*/)?{form}"
    matches = re.fullmatch(form, uri) is not None
    assert Selection(only=(pattern,)).wants(Resource(uri)) is matches


def test_matching_a_long_uri_is_fast_for_a_pattern_with_many_stars() -> None:
    selection = Selection(only=("*/a*a*a*a*a*a*b",))
    check_growth(lambda length: selection.wants(Resource("/a" * length)), 10_000)


@pytest.mark.parametrize(
    "slip",
    [
        Selection(only=("*.ttl", "")),
        Selection(excluded=(" ",)),
        Selection(types=("turtle",)),
        Selection(types=("text/",)),
        Selection(types=("text/*", "/html")),
        Selection(collections=("maps",)),
        Selection(collections=("/collections/maps",)),
        Selection(collections=("",)),
    ],
    ids=str,
)
def test_a_part_that_can_never_match_is_refused_with_a_sentence(slip: Selection) -> None:
    with pytest.raises(ConfigurationError, match=r"must not be empty|is no"):
        slip.check()


def test_a_part_that_may_match_is_accepted() -> None:
    types = ("text/*", "*/*", "application/ld+json", 'text/html; charset="utf-8"')
    collections = ("http://c.example/1", "urn:nbn:de:101:1-2")
    Selection(("maps/", "*"), ("b?v=1",), types, collections=collections).check()


def test_one_matching_pattern_suffices_and_excluded_uris_are_not_selected() -> None:
    selection = Selection(only=("*.ttl", "*.nt"), excluded=("maps/", "drafts/"))
    assert selection.wants(Resource(BASE + "a.ttl"))
    assert selection.wants(Resource(BASE + "a.nt"))
    assert not selection.wants(Resource(BASE + "a.html"))
    assert not selection.wants(Resource(BASE + "maps/a.ttl"))
    assert not selection.wants(Resource(BASE + "drafts/a.nt"))


@pytest.mark.parametrize(
    ("uri", "expected"),
    [
        ("http://a.example/x.ttl", "text/turtle"),
        ("http://a.example/x.ttl?version=1.html#y.png", "text/turtle"),
        ("http://a.example/x.html", "text/html"),
        ("http://a.example/x.tar.gz", "application/gzip"),
        ("http://a.example/x", None),
        ("http://a.example/x.ttl/", None),
        ("http://example.com", None),
        ("http://[half/x.nt", "application/n-triples"),
    ],
)
def test_a_name_with_a_known_suffix_suggests_a_media_type(uri: str, expected: str | None) -> None:
    assert guess_media_type(uri) == expected


def test_without_a_type_the_name_decides_and_an_unknown_one_is_selected() -> None:
    selection = Selection(types=("text/turtle",))
    assert selection.wants(Resource(BASE + "a.ttl"))
    assert not selection.wants(Resource(BASE + "a.png"))
    assert selection.wants(Resource(BASE + "a"))


def test_an_entry_is_selected_by_the_collection_it_names() -> None:
    selection = Selection(collections=("http://c.example/1", "http://c.example/2"))

    def member(rel: str, href: str) -> Resource:
        return Resource(BASE + "a", links=(Link("alternate", BASE), Link(rel, href)))

    assert selection.wants(member("collection", "http://c.example/2"))
    assert not selection.wants(member("collection", "http://c.example/3"))
    assert not selection.wants(member("via", "http://c.example/1"))


def change(kind: ChangeType, entry: ChangeType | None = None, **fields: str) -> Change:
    return Change(BASE + "a", kind, AT, Resource(BASE + "a", change=entry, **fields))


PNG = {"type": "image/png"}
TURTLE = Selection(types=("text/turtle",))


def test_a_resource_that_is_deleted_or_selected_no_longer_leaves_the_copy_that_has_it() -> None:
    left, gone = change(UPDATED, UPDATED, **PNG), change(DELETED, DELETED, **PNG)
    decided = TURTLE.decide(left, held=True)
    assert decided is not None
    assert decided.change is DELETED
    assert TURTLE.decide(gone, held=True) == gone
    assert TURTLE.decide(left, held=False) is TURTLE.decide(gone, held=False) is None


@pytest.mark.parametrize(
    ("wanted", "change", "held", "counts"),
    [
        ({CREATED}, change(CREATED, CREATED), False, True),
        ({CREATED}, change(UPDATED, UPDATED), True, False),
        # A creation and an update have become one change.
        ({CREATED}, change(UPDATED, UPDATED), False, True),
        ({UPDATED}, change(UPDATED, UPDATED), False, True),
        ({UPDATED}, change(CREATED, CREATED), False, False),
        # Entries of a Resource List.
        ({CREATED}, change(UPDATED), False, True),
        ({CREATED}, change(UPDATED), True, False),
        ({UPDATED}, change(UPDATED), True, True),
        ({CREATED, UPDATED}, change(DELETED, DELETED), True, False),
        ({DELETED}, change(DELETED, DELETED), True, True),
        ({DELETED}, change(DELETED, DELETED), False, True),
        ({DELETED}, change(UPDATED, UPDATED), True, False),
    ],
)
def test_the_type_of_a_change_depends_on_the_copy(
    wanted: set[ChangeType], change: Change, held: bool, counts: bool
) -> None:
    decided = Selection(changes=tuple(wanted)).decide(change, held=held)
    assert decided == (change if counts else None)


def test_a_copy_without_deletions_keeps_resources_that_are_no_longer_selected() -> None:
    keeping = replace(TURTLE, changes=(CREATED, UPDATED))
    assert keeping.decide(change(UPDATED, UPDATED, **PNG), held=True) is None


class TypedSource(Source):
    """A Source whose resources change their type, as the number of the version has it."""

    TYPES = ("text/turtle", "image/png", "text/html")

    def type_of(self, digest: str | None) -> str | None:
        return digest and self.TYPES[int(digest[-1], 16) % 3]

    def change(self, name: str, deleted: bool = False, same_instant: bool = False) -> None:
        super().change(name, deleted, same_instant)
        last = self.history[-1]
        entry = replace(last.resource, type=self.type_of(last.resource.hash))
        self.history[-1] = replace(last, resource=entry)

    def document(self, uri: str) -> Document:
        document = super().document(uri)
        if uri != OFFER.resource_list:
            return document
        typed = (replace(one, type=self.type_of(one.hash)) for one in document.resources)
        return replace(document, resources=tuple(typed))


class Selective(Destination):
    """A Destination that applies what is selected, and may have asked a hub for no more."""

    def __init__(
        self, source: TypedSource, random: Random, selection: Selection, *, asks: bool = False
    ) -> None:
        self.selection = selection
        self.asked = push_selection_for(selection) if asks else EVERYTHING
        super().__init__(source, random)

    def push(self, document: Document) -> None:
        left = tuple(filter(self.asked.admits, document.resources))
        super().push(replace(document, resources=left))

    def wants(self, uri: str, digest: str) -> bool:
        assert isinstance(self.source, TypedSource)
        return self.selection.wants(Resource(uri, type=self.source.type_of(digest)))

    def _do(self, action: Action) -> None:
        if isinstance(action, Compare):
            selected = filter(self.selection.wants, action.resources)
            action = replace(action, resources=tuple(selected))
        super()._do(action)

    def _apply(self, change: Change) -> None:
        decided = self.selection.decide(change, held=change.uri in self.content)
        current = self.source.state.get(change.uri)
        if change.check is CheckMethod.FETCH and current and not self.wants(change.uri, current):
            self._remove(change)  # the response has the media type
        elif decided is None:
            self._commit(change, None)
        elif decided.change is change.change:
            super()._apply(change)
        else:
            self._remove(change)

    def _remove(self, change: Change) -> None:
        if change.uri not in self.records or self.records[change.uri][0] <= change.at:
            self.content.pop(change.uri, None)
        self._commit(change, change)

    def check_t(self) -> None:
        """What T has passed is applied where it is selected, and gone where it is not.

        What a hub left out, as its type is another now, goes when the lists tell of it.
        """
        assert self.progress is not None
        passed_by = self.progress.confirmed if self.asked.types else self.progress.through
        for uri in {change.uri for change in self.source.history}:
            since = [one for one in self.source.history if one.uri == uri]
            passed = [one for one in since if one.at < passed_by]
            if passed:
                versions = {one.resource.hash for one in since if one.at >= passed[-1].at}
                held = self.content.get(uri)
                assert held is None or held in versions, f"T passed {passed[-1]}"


#: More often level in between, as a copy from which something has to go must have held it.
LEVEL = st.tuples(st.just("level"))
CHANGE = st.tuples(st.just("change"), st.sampled_from("ab"), st.just(False), st.just(False))


@settings(max_examples=examples(100), suppress_health_check=[HealthCheck.too_slow])
@given(
    steps=st.lists(st.one_of(CHANGE, LEVEL, STEPS), min_size=10, max_size=50),
    per_list=st.integers(1, 5),
    kept=st.sampled_from([0, 2, 100]),
    selection=st.builds(
        Selection,
        only=st.sampled_from([(), ("a", "b"), (BASE + "a", BASE + "b*")]),
        excluded=st.sampled_from([(), ("b", "c")]),
        types=st.sampled_from([(), ("text/*",), ("image/png",), ("audio/ogg",)]),
    ),
    asks=st.booleans(),
    seed=st.integers(0, 2**16),
)
@example(
    steps=[
        ("level",),
        ("change", "b", False, False),
        *[("level",)] * 3,
        ("poll",),
        ("change", "b", False, False),
        ("emit", 1),
        ("change", "a", True, False),
        ("emit", 2),
    ],
    per_list=1,
    kept=0,
    selection=Selection(types=("image/png",)),
    asks=True,
    seed=0,
)
def test_whatever_is_selected_the_copy_ends_as_that_part_of_the_source_and_t_as_without(
    steps: list[tuple], per_list: int, kept: int, selection: Selection, asks: bool, seed: int
) -> None:
    source = TypedSource(per_list=per_list, kept=kept)
    selective = Selective(source, Random(seed), selection, asks=asks)
    whole = Destination(source, Random(seed))
    wire: list[Document] = []
    for step in steps:
        if step == ("level",):
            source.list_resources()
            selective.settle()
            whole.settle()
        elif step[0] in ("work", "wait", "poll", "crash"):
            play(step, source, whole, [])
        elif step[0] in ("deliver", "double"):
            play(step, source, whole, list(wire))
        play(step, source, selective, wire)
    source.list_resources()
    for destination in (selective, whole):
        for fragment in wire:
            destination.push(fragment)
        destination.settle()
        destination.poll()
    assert whole.content == source.state
    selected = {uri: digest for uri, digest in source.state.items() if selective.wants(uri, digest)}
    assert selective.content == selected
    ended = [destination.follower.progress for destination in (selective, whole)]
    # What they have seen of the last instant goes by where: in a Change List or a Resource List.
    assert len({(one.through, one.confirmed) for one in ended if one is not None}) == 1
    last = max((change.at for change in source.history), default=EPOCH)
    assert all(one is not None and one.confirmed >= last for one in ended)


# What a Destination asks of a hub: no less than it wants, and the same by the same name.


SITE = "https://source.example/data/"
TOPIC = SITE + "channel.xml"

URIS = st.lists(st.sampled_from(["maps", "a", "b.ttl", "c.html", "d"]), min_size=1, max_size=3).map(
    lambda parts: SITE + "/".join(parts)
)
PATTERNS = st.one_of(
    URIS,
    URIS.map(lambda uri: uri + "*"),
    URIS.map(lambda uri: uri.replace("a", "*")),
    st.sampled_from([SITE, "*.ttl", "maps/", "*", "*://source.example/*", SITE + "maps/*.ttl"]),
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
        (Selection(only=(SITE + "maps/",)), PushSelection(prefixes=(SITE + "maps/",))),
        (Selection(only=(SITE + "maps/*.ttl",)), PushSelection(prefixes=(SITE + "maps/",))),
        (Selection(only=(SITE + "maps/", "*.ttl")), EVERYTHING),
        (Selection(only=("maps/",), types=("text/turtle",)), PushSelection(types=("text/turtle",))),
        (Selection(excluded=(SITE,)), EVERYTHING),
        (Selection(only=tuple(f"{SITE}{n}" for n in range(MAX_PREFIXES + 1))), EVERYTHING),
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
    assert turtle.admits(Resource(SITE + name, change=change, type=type)) is is_sent


def test_the_same_wish_has_the_same_text_however_it_is_written() -> None:
    one = PushSelection(
        (SITE + "b", SITE + "a/x", SITE + "a/"), ("Text/Turtle; q=1", "text/*"), (UPDATED,)
    )
    other = PushSelection((SITE + "a/", SITE + "b"), ("text/*", "text/turtle"), (UPDATED, UPDATED))
    assert one.canonical() == other.canonical()
    assert one.canonical().canonical_json == (
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
        PushSelection(prefixes=tuple(f"{SITE}{n}" for n in range(MAX_PREFIXES + 1))),
        PushSelection(prefixes=(SITE + "x" * MAX_JSON_BYTES,)),
        PushSelection(types=("turtle",)),
    ],
)
def test_what_is_no_wish_is_refused(select: PushSelection) -> None:
    with pytest.raises(ConfigurationError):
        select.canonical()
