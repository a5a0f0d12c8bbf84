"""Strategies for any document of the model."""

from __future__ import annotations

from datetime import UTC, datetime

from hypothesis import strategies as st

from rsnotify.format.model import Capability, ChangeType, Document, Link, Resource

TEXT = st.text(
    st.characters(exclude_categories=["Cs", "Cc"], exclude_characters="￾￿"),
    min_size=1,
    max_size=20,
)
URIS = TEXT.map(lambda text: "http://example.com/" + text.strip())
INSTANTS = st.datetimes(
    min_value=datetime(1, 1, 1), max_value=datetime(9999, 12, 31), timezones=st.just(UTC)
)
LENGTHS = st.integers(0, 10**18 - 1)
FOREIGN = st.lists(
    st.tuples(
        st.sampled_from(["{http://example.org/ns}", "{urn:x:y}"]),
        st.sampled_from(["a", "b-c", "d.e"]),
    ).map("".join),
    max_size=2,
    unique=True,
).flatmap(lambda names: st.tuples(*(st.tuples(st.just(name), TEXT) for name in names)))


def maybe(strategy: st.SearchStrategy) -> st.SearchStrategy:
    return st.none() | strategy


LINKS = st.builds(
    Link,
    rel=TEXT,
    href=URIS,
    encoding=maybe(TEXT),
    hash=maybe(TEXT),
    length=maybe(LENGTHS),
    modified=maybe(INSTANTS),
    path=maybe(TEXT),
    pri=maybe(st.integers(1, 999_999)),
    type=maybe(TEXT),
    attributes=FOREIGN,
)
RESOURCES = st.builds(
    Resource,
    uri=URIS,
    lastmod=maybe(INSTANTS),
    changefreq=maybe(st.sampled_from(["always", "hourly", "never"])),
    change=maybe(st.sampled_from(ChangeType)),
    datetime=maybe(INSTANTS),
    at=maybe(INSTANTS),
    completed=maybe(INSTANTS),
    from_=maybe(INSTANTS),
    until=maybe(INSTANTS),
    capability=maybe(TEXT),
    encoding=maybe(TEXT),
    hash=maybe(TEXT),
    length=maybe(LENGTHS),
    path=maybe(TEXT),
    type=maybe(TEXT),
    links=st.lists(LINKS, max_size=3).map(tuple),
    attributes=FOREIGN,
)
CAPABILITIES = st.sampled_from(
    [value for name, value in vars(Capability).items() if name.isupper()]
)
DOCUMENTS = st.builds(
    Document,
    capability=maybe(CAPABILITIES),
    resources=st.lists(RESOURCES, max_size=5).map(tuple),
    index=st.booleans(),
    at=maybe(INSTANTS),
    completed=maybe(INSTANTS),
    from_=maybe(INSTANTS),
    until=maybe(INSTANTS),
    links=st.lists(LINKS, max_size=3).map(tuple),
    attributes=FOREIGN,
)
