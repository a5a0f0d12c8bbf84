"""The subscriber of a Source, made from its settings."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import TypeVar

from msgspec.structs import replace

from rsnotify.errors import ConfigurationError, RsnotifyError
from rsnotify.runtime.mqtt.login import login_of
from rsnotify.runtime.xmpp.login import xmpp_login_of
from rsnotify.selection.selection import Selection
from rsnotify.sync.pace import Pace
from rsnotify_subscriber.fetching.credentials import Credentials, parse_header_lines
from rsnotify_subscriber.fleet.configuration import (
    FleetConfiguration,
    FollowedSource,
    SourceSettings,
)
from rsnotify_subscriber.fleet.handlers import AnyHandler, find_handler
from rsnotify_subscriber.mirror import FolderMirror, default_state
from rsnotify_subscriber.options import FollowOptions
from rsnotify_subscriber.pool import SubscriberPool
from rsnotify_subscriber.push.mqtt import MqttOptions
from rsnotify_subscriber.push.websub.callbacks import Callbacks
from rsnotify_subscriber.push.websub.terms import DEFAULT_TERMS, WebSubTerms
from rsnotify_subscriber.storage.database import StateLocation
from rsnotify_subscriber.subscriber import Subscriber

T = TypeVar("T", bound=str)

#: The schema of a state in PostgreSQL, where the file names none.
_SCHEMA = "rsnotify"


def build(
    configuration: FleetConfiguration,
    source: FollowedSource,
    shared: SubscriberPool,
    callbacks: Callbacks | None,
) -> Subscriber:
    """Return the subscriber of one Source, which does not follow it yet."""
    folder = Path(configuration.path).absolute().parent
    try:
        credentials = Credentials(
            login=source.login, bearer=source.bearer, headers=parse_header_lines(source.header)
        )
        options = follow_options(source, credentials, callbacks)
        return Subscriber(
            source.url,
            _handler(source, folder),
            state=_location(source),
            options=replace(options, per_host=shared.limits.per_source),
            shared=shared,
        )
    except RsnotifyError as error:
        place = f"{configuration.path}: [[source]] {source.title}"
        raise ConfigurationError(f"{place}: {error}") from error


def follow_options(
    settings: SourceSettings,
    credentials: Credentials,
    callbacks: Callbacks | None,
    terms: WebSubTerms = DEFAULT_TERMS,
) -> FollowOptions:
    """Return the options that settings of a file or a command line describe."""
    return FollowOptions(
        via=settings.via,
        hubs=settings.hubs,
        pace=Pace(
            poll=settings.poll,
            compare=settings.compare,
            patience=settings.patience,
            spread=settings.spread,
            rate=settings.rate,
            in_flight=settings.in_flight,
            hold=settings.hold,
        ),
        selection=Selection(
            only=_distinct(settings.only),
            excluded=_distinct(settings.excluded),
            types=_distinct(settings.type),
            changes=_distinct(settings.change),
            collections=_distinct(settings.collection),
        ),
        prefer=settings.prefer,
        exact=settings.exact,
        check_files=settings.check_files,
        verify=settings.verify,
        largest=settings.largest,
        allow_private_addresses=settings.allow_private_addresses,
        credentials=credentials,
        callbacks=callbacks,
        terms=terms,
        mqtt=MqttOptions(
            url=settings.mqtt_url,
            login=login_of(settings),
            session=settings.mqtt_session,
            version=settings.mqtt_version,
        ),
        xmpp=xmpp_login_of(settings),
    )


def _distinct(values: Iterable[T]) -> tuple[T, ...]:
    """Return values in a fixed order, each once, so that equal selections compare equal."""
    return tuple(sorted(set(values)))


def _handler(source: FollowedSource, folder: Path) -> AnyHandler:
    if source.handler is not None:
        return find_handler(source.handler, source.options, folder)
    assert source.dest is not None, "it was checked"
    return FolderMirror(Path(source.dest))


def _location(source: FollowedSource) -> Path | StateLocation:
    if source.postgresql is not None:
        try:
            from rsnotify_subscriber.storage.postgresql import PostgreSQLState
        except ImportError:
            raise ConfigurationError(
                'a state in PostgreSQL needs psycopg: pip install "rsnotify[postgresql]"'
            ) from None
        return PostgreSQLState(source.postgresql, schema=source.schema or _SCHEMA)
    if source.state is not None:
        return Path(source.state)
    assert source.dest is not None, "it was checked"
    return default_state(Path(source.dest))
