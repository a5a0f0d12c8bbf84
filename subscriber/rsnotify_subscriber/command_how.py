"""The options of every command that follows a Source."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, get_type_hints

from msgspec import Struct
from msgspec.structs import fields

from rsnotify.format.vocabulary import ChangeType
from rsnotify.selection.selection import Selection
from rsnotify.sync.pace import Pace
from rsnotify_subscriber.command_options import (
    Bearer,
    CallbackHost,
    CallbackLease,
    CallbackPatience,
    CallbackPort,
    CallbackQuiet,
    CallbackRefuse,
    CallbackSecret,
    CallbackSettle,
    CallbackSignature,
    CallbackUrl,
    Change,
    Collection,
    Compare,
    Exact,
    Except,
    Header,
    Hearing,
    Hubs,
    Login,
    MqttCa,
    MqttCertificate,
    MqttKey,
    MqttPassword,
    MqttSession,
    MqttUrl,
    MqttUser,
    MqttVersion,
    Only,
    Poll,
    Prefer,
    Private,
    Rate,
    Spread,
    Type,
    ViaOption,
    credentials_of,
)
from rsnotify_subscriber.push.websub.terms import DEFAULT_TERMS, WebSubTerms
from rsnotify_subscriber.via import Via

if TYPE_CHECKING:
    from rsnotify_subscriber.options import FollowOptions
    from rsnotify_subscriber.push.mqtt import Brokered
    from rsnotify_subscriber.push.websub.callbacks import Callbacks


class FollowArguments(Struct, frozen=True, kw_only=True):
    """The command-line options that become `FollowOptions`; each field is one."""

    via: ViaOption = Via.AUTO
    hubs: Hubs = 1
    poll: Poll = 10
    compare: Compare = Pace().compare
    spread: Spread = None
    rate: Rate = None
    only: Only = None
    excluded: Except = None
    type: Type = None
    change: Change = None
    collection: Collection = None
    prefer: Prefer = None
    exact: Exact = False
    allow_private_addresses: Private = False
    login: Login = None
    bearer: Bearer = None
    header: Header = None
    callback_url: CallbackUrl = None
    callback_host: CallbackHost = "127.0.0.1"
    callback_port: CallbackPort = None
    callback_lease: CallbackLease = DEFAULT_TERMS.lease
    callback_secret: CallbackSecret = DEFAULT_TERMS.secret
    callback_signature: CallbackSignature = None
    callback_refuse: CallbackRefuse = DEFAULT_TERMS.refuse
    callback_patience: CallbackPatience = DEFAULT_TERMS.patience
    callback_settle: CallbackSettle = DEFAULT_TERMS.settle
    callback_quiet: CallbackQuiet = DEFAULT_TERMS.quiet
    mqtt_url: MqttUrl = None
    mqtt_user: MqttUser = None
    mqtt_password: MqttPassword = None
    mqtt_ca: MqttCa = None
    mqtt_certificate: MqttCertificate = None
    mqtt_key: MqttKey = None
    mqtt_session: MqttSession = ""
    mqtt_version: MqttVersion = "5"

    def options(self, callbacks: Callbacks | None) -> FollowOptions:
        """Return them as the options of a `Subscriber` or a `Relay`.

        Args:
            callbacks: Where hubs reach this process.

        Raises:
            ConfigurationError: A value can never work.
        """
        from rsnotify_subscriber.options import FollowOptions

        return FollowOptions(
            via=self.via,
            hubs=self.hubs,
            pace=Pace(poll=self.poll, compare=self.compare, spread=self.spread, rate=self.rate),
            selection=selection(self.only, self.excluded, self.type, self.change, self.collection),
            prefer=self.prefer or (),
            exact=self.exact,
            allow_private_addresses=self.allow_private_addresses,
            credentials=credentials_of(self.login, self.bearer, self.header),
            callbacks=callbacks,
            terms=self.terms(),
            mqtt=self._brokered(),
        )

    def terms(self) -> WebSubTerms:
        """Return what is asked of hubs, and what is taken from them."""
        return WebSubTerms(
            lease=self.callback_lease,
            secret=self.callback_secret,
            signatures=tuple(self.callback_signature or DEFAULT_TERMS.signatures),
            refuse=self.callback_refuse,
            patience=self.callback_patience,
            settle=self.callback_settle,
            quiet=self.callback_quiet,
        )

    def hearing(self) -> Hearing:
        """Take the port at which hubs reach this process, if there is to be one."""
        return Hearing(self.callback_url, self.callback_host, self.callback_port, self.terms())

    def _brokered(self) -> Brokered:
        return brokered(
            self.mqtt_url,
            self.mqtt_user,
            self.mqtt_password,
            self.mqtt_ca,
            self.mqtt_certificate,
            self.mqtt_key,
            self.mqtt_session,
            self.mqtt_version,
        )


def with_how(command: Callable[..., None]) -> Callable[..., None]:
    """Let a command with a parameter `how` take each option of it as a parameter instead."""
    hints = get_type_hints(command, include_extras=True)
    options = get_type_hints(FollowArguments, include_extras=True)
    keyword = inspect.Parameter.KEYWORD_ONLY
    own = [one for one in inspect.signature(command).parameters.values() if one.name != "how"]
    parameters = [one.replace(annotation=hints[one.name]) for one in own]
    parameters += [
        inspect.Parameter(one.name, keyword, default=one.default, annotation=options[one.name])
        for one in fields(FollowArguments)
    ]
    signature = inspect.Signature(parameters)

    @functools.wraps(command)
    def called(*arguments: Any, **named: Any) -> None:
        bound = signature.bind(*arguments, **named)
        given = bound.arguments
        how = FollowArguments(**{name: given.pop(name) for name in options if name in given})
        command(*bound.args, **bound.kwargs, how=how)

    called.__signature__ = signature  # type: ignore[attr-defined]
    called.__annotations__ = {one.name: one.annotation for one in parameters}
    del called.__wrapped__  # or the options would be looked for there
    return called


def selection(
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


def brokered(
    url: str | None,
    user: str | None,
    password: str | None,
    ca: str | None,
    certificate: str | None,
    key: str | None,
    session: str,
    version: str,
) -> Brokered:
    """Return the settings of MQTT brokers that these options describe."""
    from rsnotify.runtime.mqtt.login import BrokerLogin
    from rsnotify_subscriber.push.mqtt import Brokered

    login = BrokerLogin(user=user, password=password, ca=ca, certificate=certificate, key=key)
    return Brokered(url=url, login=login, session=session, version=version)


def _distinct(values: Sequence[str] | None) -> tuple[str, ...]:
    return tuple(sorted(set(values or ())))
