"""The values of options, made of the texts that a command line or a file gives."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import TYPE_CHECKING

from rsnotify.format.vocabulary import ChangeType
from rsnotify.selection.selection import Selection
from rsnotify_subscriber.fetching.credentials import Credentials, parse_header_lines

if TYPE_CHECKING:
    from rsnotify_subscriber.push.mqtt import MqttOptions


def credentials_of(
    login: str | None, bearer: str | None, header: Sequence[str] | None
) -> Credentials:
    """Return what these options say is sent to a Source.

    Raises:
        ConfigurationError: A header field is not written as one.
    """
    lines = os.environ.get("RSNOTIFY_HEADER", "").splitlines() if header is None else header
    headers = parse_header_lines(filter(str.strip, lines))
    return Credentials(login=login, bearer=bearer, headers=headers)


def make_selection(
    only: Sequence[str] | None,
    excluded: Sequence[str] | None,
    types: Sequence[str] | None,
    changes: Sequence[ChangeType] | None,
    collections: Sequence[str] | None,
) -> Selection:
    """Make of these options what is followed; their order does not matter."""
    return Selection(
        only=_distinct(only),
        excluded=_distinct(excluded),
        types=_distinct(types),
        changes=tuple(sorted(set(changes or ()))),
        collections=_distinct(collections),
    )


def mqtt_options(
    url: str | None,
    user: str | None,
    password: str | None,
    ca: str | None,
    certificate: str | None,
    key: str | None,
    session: str,
    version: str,
) -> MqttOptions:
    """Return the settings of MQTT brokers that these options describe."""
    from rsnotify.runtime.mqtt.login import BrokerLogin
    from rsnotify_subscriber.push.mqtt import MqttOptions

    login = BrokerLogin(user=user, password=password, ca=ca, certificate=certificate, key=key)
    return MqttOptions(url=url, login=login, session=session, version=version)


def _distinct(values: Sequence[str] | None) -> tuple[str, ...]:
    return tuple(sorted(set(values or ())))
