"""Checks of settings that types cannot express, such as settings that exclude each other."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

from rsnotify.errors import ConfigurationError
from rsnotify.runtime.config.wrong_setting import WrongSetting
from rsnotify.runtime.mqtt.topics import parse_broker
from rsnotify_subscriber.fleet.configuration import FollowedSource, SourceSettings
from rsnotify_subscriber.mirror import default_state
from rsnotify_subscriber.via import Via

_EXCLUSIVE = (
    ("dest", "handler"),
    ("state", "postgresql"),
    ("mqtt_password", "mqtt_password_file"),
    ("xmpp_password", "xmpp_password_file"),
)


def check_source(number: int, source: FollowedSource, *, reachable: bool) -> None:
    """Raise `WrongSetting` if the settings of a Source do not fit together.

    Args:
        number: The number of the Source in the file.
        source: The settings.
        reachable: Whether hubs can reach this process.
    """
    for key, reason in _faults(source, reachable=reachable):
        raise WrongSetting(("source", number, key), reason)


def check_terms(terms: SourceSettings) -> None:
    """Raise `WrongSetting` if a setting for all Sources is wrong, as far as that shows."""
    for key, reason in _broker_faults(terms):
        raise WrongSetting(("defaults", key), reason)


def _broker_faults(terms: SourceSettings) -> Iterator[tuple[str, str]]:
    if terms.mqtt_url is not None:
        try:
            parse_broker(terms.mqtt_url)
        except ConfigurationError as error:
            yield "mqtt_url", str(error)


def _faults(source: FollowedSource, *, reachable: bool) -> Iterator[tuple[str, str]]:
    for one, other in _EXCLUSIVE:
        if getattr(source, one) is not None and getattr(source, other) is not None:
            yield other, f"there is {one} already; only one of the two can be"
    if source.dest is None and source.handler is None:
        yield "dest", "name the folder of a mirror, or a handler"
    if source.handler is None and source.options:
        yield "options", "these are for a handler, and there is none"
    if source.handler is not None and source.state is None and source.postgresql is None:
        yield "state", "a handler needs a place for its state: state or postgresql"
    if source.dest and source.state and Path(source.state).is_relative_to(source.dest):
        yield "state", "it cannot be kept inside the mirror"
    if source.schema is not None and source.postgresql is None:
        yield "schema", "it is for a state in PostgreSQL; name postgresql, too"
    if source.dest is not None and source.postgresql is not None:
        yield "postgresql", "the state of a mirror is kept in a folder"
    if source.via is Via.WEBSUB and not reachable:
        yield "via", "WebSub needs a url in [websub], at which hubs reach this process"
    yield from _broker_faults(source)


def check_apart(sources: Sequence[FollowedSource]) -> None:
    """Raise `WrongSetting` if two Sources share a name or place, or their folders are nested."""
    titles: set[str] = set()
    owners: dict[object, str] = {}
    around: dict[object, str] = {}  # by each folder around that of a Source
    for number, source in enumerate(sources):
        if source.title in titles:
            reason = f"another Source is called {source.title}, too; give each a name of its own"
            raise WrongSetting(("source", number, "name"), reason)
        titles.add(source.title)
        places = list(_places(source))
        for key, place in places:
            within = (place, *place.parents) if isinstance(place, Path) else (place,)
            other = next((owners[one] for one in within if one in owners), around.get(place))
            if other is not None:
                reason = f"{other} has its own there; choose another for each, as with {{name}}"
                raise WrongSetting(("source", number, key), reason)
        for _, place in places:
            owners[place] = source.title
            if isinstance(place, Path):
                around.update(dict.fromkeys(place.parents, source.title))


def _places(source: FollowedSource) -> Iterator[tuple[str, object]]:
    """Yield the places that only one Source can use, with the key of each."""
    if source.dest is not None:
        yield "dest", Path(source.dest)
    if source.state is not None:
        yield "state", Path(source.state)
    elif source.dest is not None:
        yield "dest", default_state(Path(source.dest))
    if source.postgresql is not None:
        yield "schema", (source.postgresql, source.schema)
    if source.mqtt_session:
        yield "mqtt_session", (source.mqtt_url, source.mqtt_user, source.mqtt_session)
