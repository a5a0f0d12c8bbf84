"""Builds the subscriber of a Source from its settings in the configuration file."""

from __future__ import annotations

import importlib
import inspect
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, TypeVar

from msgspec.structs import replace

from rsnotify.errors import ConfigurationError, RsnotifyError
from rsnotify.runtime.mqtt_broker import login_of
from rsnotify.runtime.transport_extensions import logins_of_settings
from rsnotify.selection import Selection
from rsnotify.sync.pace import Pace
from rsnotify_subscriber.fetching.credentials import Credentials, parse_header_lines
from rsnotify_subscriber.fleet.configuration import (
    FleetConfiguration,
    FollowedSource,
    SourceSettings,
    shared_fields,
)
from rsnotify_subscriber.handlers import AnyHandler, Handler, TransactionalHandler
from rsnotify_subscriber.mirror import FolderMirror, default_state
from rsnotify_subscriber.options import FollowOptions
from rsnotify_subscriber.pool import SubscriberPool
from rsnotify_subscriber.push.mqtt_transport import MqttOptions
from rsnotify_subscriber.push.websub_callbacks import Callbacks
from rsnotify_subscriber.push_options import DEFAULT_TERMS, WebSubTerms
from rsnotify_subscriber.storage.state_database import StateLocation
from rsnotify_subscriber.subscriber import Subscriber


def find_handler(name: str, options: Mapping[str, Any], folder: Path) -> AnyHandler:
    """Import a handler by its name, `package.module:name`.

    If the name is a class, or a function that is not async, it is called with the options to create
    the handler, so each Source has its own. Modules may be in `folder`, too.
    """
    found = _imported(name, folder)
    if _is_handler(found):
        if options:
            raise ConfigurationError(f"{name} is a handler already, so it takes no options")
        return found  # type: ignore[no-any-return]
    if not callable(found):
        raise ConfigurationError(f"{name} is neither a handler nor a function that creates one")
    try:
        handler = found(**options)
    except Exception as error:
        # The user's code may raise anything.
        raise ConfigurationError(f"{name} could not create a handler: {_message(error)}") from error
    if not _is_handler(handler):
        kind = type(handler).__name__
        raise ConfigurationError(f"{name} returned an object of type {kind}, not a handler")
    return handler  # type: ignore[no-any-return]


def _is_handler(found: Any) -> bool:
    if isinstance(found, type):
        return False
    return isinstance(found, Handler | TransactionalHandler) or any(
        inspect.iscoroutinefunction(one) for one in (found, type(found).__call__)
    )


def _imported(name: str, folder: Path) -> Any:
    module, _, path = name.partition(":")
    if not module or not path:
        raise ConfigurationError(
            f"{name!r} is not the name of a handler; write package.module:name"
        )
    if str(folder) not in sys.path:
        sys.path.append(str(folder))  # last, so that its modules hide no others
    try:
        found: Any = importlib.import_module(module)
        for step in path.split("."):
            found = getattr(found, step)
    except (Exception, SystemExit) as error:
        # A module may raise anything on import.
        raise ConfigurationError(f"cannot import {name}: {_message(error)}") from error
    return found


def _message(error: BaseException) -> str:
    return f"{type(error).__name__}: {error}"


T = TypeVar("T", bound=str)


def build(
    configuration: FleetConfiguration,
    source: FollowedSource,
    shared: SubscriberPool,
    callbacks: Callbacks | None,
    location: StateLocation | None = None,
) -> Subscriber:
    """Return the subscriber of a Source. Without `location`, its state is in a folder."""
    folder = Path(configuration.path).absolute().parent
    try:
        credentials = Credentials(
            login=source.login, bearer=source.bearer, headers=parse_header_lines(source.header)
        )
        options = follow_options(source, credentials, callbacks)
        return Subscriber(
            source.url,
            _handler(source, folder),
            state=location or _folder(source),
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
    """Return the options for settings from a file or a command line."""
    return FollowOptions(
        **shared_fields(FollowOptions, settings),
        pace=Pace(**shared_fields(Pace, settings)),
        selection=Selection(
            only=_distinct(settings.only),
            excluded=_distinct(settings.excluded),
            types=_distinct(settings.type),
            changes=_distinct(settings.change),
            collections=_distinct(settings.collection),
        ),
        credentials=credentials,
        callbacks=callbacks,
        terms=terms,
        mqtt=MqttOptions(
            url=settings.mqtt_url,
            login=login_of(settings),
            session=settings.mqtt_session,
            version=settings.mqtt_version,
        ),
        logins=logins_of_settings("xmpp", settings),
    )


def _distinct(values: Iterable[T]) -> tuple[T, ...]:
    """Return sorted values without duplicates, so that equivalent selections are equal."""
    return tuple(sorted(set(values)))


def _handler(source: FollowedSource, folder: Path) -> AnyHandler:
    if source.handler is not None:
        return find_handler(source.handler, source.options, folder)
    assert source.dest is not None, "the configuration was checked"
    return FolderMirror(Path(source.dest))


def _folder(source: FollowedSource) -> Path:
    if source.state is not None:
        return Path(source.state)
    assert source.dest is not None, "the configuration was checked"
    return default_state(Path(source.dest))
