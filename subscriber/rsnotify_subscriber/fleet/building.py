"""From the settings of a Source to the subscriber that follows it."""

from __future__ import annotations

from pathlib import Path

from msgspec.structs import replace

from rsnotify.errors import ConfigurationError, RsnotifyError
from rsnotify_subscriber.command_how import FollowArguments
from rsnotify_subscriber.fleet.configuration import Configuration, Source, WebSub
from rsnotify_subscriber.fleet.handlers import AnyHandler, find_handler
from rsnotify_subscriber.mirror import FolderMirror, default_state
from rsnotify_subscriber.pool import SubscriberPool
from rsnotify_subscriber.push.websub.callbacks import Callbacks
from rsnotify_subscriber.push.websub.terms import WebSubTerms
from rsnotify_subscriber.storage.database import StateLocation
from rsnotify_subscriber.subscriber import Subscriber

#: The schema of a state in PostgreSQL, where the file names none.
_SCHEMA = "rsnotify"


def build(
    configuration: Configuration,
    source: Source,
    shared: SubscriberPool,
    callbacks: Callbacks | None,
) -> Subscriber:
    """Make the subscriber of one Source, which does not follow it yet.

    Args:
        configuration: The settings.
        source: Those of the Source.
        shared: What it shares with the others.
        callbacks: Where hubs reach this process.

    Raises:
        ConfigurationError: Something cannot work: the handler, a certificate, a pattern, ...
    """
    try:
        return _subscriber(source, Path(configuration.path).absolute().parent, shared, callbacks)
    except RsnotifyError as error:
        place = f"{configuration.path}: [[source]] {source.title}"
        raise ConfigurationError(f"{place}: {error}") from error


def _subscriber(
    source: Source, folder: Path, shared: SubscriberPool, callbacks: Callbacks | None
) -> Subscriber:
    names = (name for name in FollowArguments.__struct_fields__ if hasattr(source, name))
    arguments = FollowArguments(**{name: getattr(source, name) for name in names})
    options = arguments.options(callbacks)
    options = replace(
        options,
        pace=replace(options.pace, in_flight=source.in_flight, hold=source.hold),
        per_host=shared.limits.per_source,
        largest=source.largest,
    )
    return Subscriber(
        source.url,
        _handler(source, folder),
        state=_location(source),
        options=options,
        shared=shared,
    )


def _handler(source: Source, folder: Path) -> AnyHandler:
    if source.handler is not None:
        return find_handler(source.handler, source.options, folder)
    assert source.dest is not None, "it was checked"
    return FolderMirror(Path(source.dest))


def _location(source: Source) -> Path | StateLocation:
    if source.postgresql is not None:
        return _postgresql(source.postgresql, source.schema or _SCHEMA)
    if source.state is not None:
        return Path(source.state)
    assert source.dest is not None, "it was checked"
    return default_state(Path(source.dest))


def _postgresql(conninfo: str, schema: str) -> StateLocation:
    try:
        from rsnotify_subscriber.storage.postgresql import PostgreSQLState
    except ImportError:
        raise ConfigurationError(
            'a state in PostgreSQL needs psycopg: pip install "rsnotify[postgresql]"'
        ) from None
    return PostgreSQLState(conninfo, schema=schema)


def terms_of(websub: WebSub) -> WebSubTerms:
    """Return what is asked of hubs, and what is taken from them."""
    return WebSubTerms(
        lease=websub.lease,
        secret=websub.secret,
        signatures=websub.signature,
        refuse=websub.refuse,
        patience=websub.patience,
        settle=websub.settle,
        quiet=websub.quiet,
    )
