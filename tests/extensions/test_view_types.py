"""What a Source expects of each view (`rsnotify.views`)."""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta
from itertools import combinations
from pathlib import Path

import pytest
from msgspec.structs import replace

from rsnotify.errors import ConfigurationError
from rsnotify.format.datetimes import to_microseconds
from rsnotify.format.model import ChangeType, Resource
from rsnotify.runtime.extensions import offered
from rsnotify_publisher import FinishedDocument, Options, Publisher, View
from rsnotify_publisher.view import load_views
from tests.publisher.helpers import BASE, eventually
from tests.publisher.published import QUIET, Published

INSTALLED = sorted(offered("views"))
START = datetime(2026, 1, 1, tzinfo=UTC)
CHANGES = [
    Resource(f"{BASE}{number}", change=change, datetime=START + timedelta(seconds=number))
    for number, change in enumerate((ChangeType.CREATED, ChangeType.UPDATED, ChangeType.DELETED))
]


def closed(number: int) -> FinishedDocument:
    name = f"resourcesync/changelist-2026010{number}T000000000000Z.xml.gz"
    begin = int(START.timestamp() * 1e6) + number * 1_000_000
    return FinishedDocument("changelist", begin, begin + 1_000_000, 3, 100, (name,))


@pytest.fixture(params=INSTALLED)
def kind(request: pytest.FixtureRequest) -> type[View]:
    return load_views([request.param])[request.param]


@pytest.fixture
def view(kind: type[View]) -> View:
    return new(kind)


def test_its_names_are_below_those_of_the_parts(kind: type[View]) -> None:
    assert kind.root in kind.live
    for name in kind.live:
        assert re.fullmatch(r"resourcesync/[\w-]+" + re.escape(kind.suffix), name)
        assert not re.search(r"\d{8}T\d{12}Z", name), "these are names of what never changes"


def test_no_two_share_a_name_or_an_extension() -> None:
    for one, other in combinations(load_views(INSTALLED).values(), 2):
        assert one.suffix != other.suffix
        assert not {*one.live} & {*other.live}


def test_its_media_type_is_one(kind: type[View]) -> None:
    assert re.match(r"\w+/[\w.+-]+", kind.media_type)


def test_each_closed_list_has_a_page_of_its_own(view: View) -> None:
    names = {view.name(closed(number)) for number in range(1, 4)}
    assert len(names) == 3
    assert all(name.startswith("resourcesync/changelist-2026010") for name in names)
    assert all(name.endswith(view.suffix) for name in names)


def new(kind: type[View]) -> View:
    return kind(lambda name: BASE + name, None)


def test_an_entry_names_its_resource_and_is_the_same_after_a_restart(kind: type[View]) -> None:
    again = [replace(CHANGES[1], datetime=START + timedelta(microseconds=n)) for n in (1, 2)]
    changes = [CHANGES[0], *again, *CHANGES[1:]]
    view = new(kind)
    first = [view.entry(change) for change in changes]
    assert len({*first}) == 5
    for change, entry in zip(changes, first, strict=True):
        assert change.uri.encode() in entry
    for count in range(1, 5):
        last = changes[count - 1].datetime
        assert last is not None
        end, resumed = to_microseconds(last), new(kind)
        head = resumed.head(resumed.name(closed(1)), None, None)
        page = [*resumed.page(head, first[:count]), resumed.remark(b"", first[:count], end)]
        resumed.resume(b"".join(page), end)
        assert [resumed.entry(change) for change in changes[count:]] == first[count:]


def test_a_head_is_one_line(view: View) -> None:
    name = view.name(closed(1))
    for before, after in ((None, None), ("resourcesync/a", None), ("resourcesync/a", "b")):
        head = view.head(name, before, after)
        assert head.endswith(b"\n")
        assert head.count(b"\n") == 1, "it is replaced without reading the entries"


def test_only_where_it_says_so_does_a_head_change(view: View) -> None:
    name = view.name(closed(1))
    heads = {view.head(name, None, after) for after in (None, "resourcesync/b")}
    assert (len(heads) > 1) == view.heads_change


def test_a_page_has_the_head_and_then_all_entries_in_their_order(view: View) -> None:
    head = view.head(view.name(closed(1)), None, None)
    entries = [view.entry(change) for change in CHANGES]
    page = b"".join(view.page(head, entries))
    assert page.startswith(head)
    places = [page.index(entry) for entry in entries]
    assert places == sorted(places)
    assert page.endswith(b"\n")


def test_its_documents_show_what_is_open(view: View) -> None:
    entries = [view.entry(change) for change in CHANGES]
    begin = closed(2).end
    documents = view.documents([closed(1), closed(2)], begin, entries)
    assert view.root in documents
    assert documents.keys() <= {*view.live}
    shown = b"".join(chunk for chunks in documents.values() for chunk in chunks)
    assert all(entry in shown for entry in entries)
    again = view.documents([closed(1), closed(2)], begin, entries)
    assert again == documents, "equal documents are not written again"


def test_its_documents_lead_to_the_last_closed_list(view: View) -> None:
    documents = view.documents([closed(1), closed(2)], closed(2).end, [])
    shown = b"".join(chunk for chunks in documents.values() for chunk in chunks)
    assert view.name(closed(2)).rpartition("/")[2].encode() in shown


def test_a_view_that_is_not_installed_is_one_sentence(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError) as caught:
        Publisher(tmp_path, BASE, options=Options(views=("atom",)))
    assert str(caught.value) == (
        "the options are wrong: views: the view 'atom' is not installed; installed: iiif, ldes"
    )


def test_files_of_a_view_whose_package_was_removed_are_removed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "documents/resourcesync"
    options = replace(QUIET, views=("iiif", "ldes"), rotate="4 changes", linger=0)
    with Published(tmp_path, options) as source:
        source.update(*range(20))
        source.wait_written()
    assert list(folder.glob("*.json"))
    monkeypatch.setattr("rsnotify_publisher.documents.view_documents.offered", lambda _group: {})
    monkeypatch.setattr("rsnotify_publisher.view.offered", lambda _group: {})
    with Published(tmp_path, replace(options, views=())):
        eventually(lambda: not [*folder.glob("*.json"), *folder.glob("*.ttl")])
