"""The options of every command that follows a Source."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, TypeVar, get_type_hints

from msgspec import Struct
from msgspec.structs import fields

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
    from rsnotify_subscriber.push.websub.callbacks import Callbacks

T = TypeVar("T", bound=str)


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
        from rsnotify.runtime.mqtt.login import BrokerLogin
        from rsnotify_subscriber.options import FollowOptions
        from rsnotify_subscriber.push.mqtt import Brokered

        login = BrokerLogin(
            user=self.mqtt_user,
            password=self.mqtt_password,
            ca=self.mqtt_ca,
            certificate=self.mqtt_certificate,
            key=self.mqtt_key,
        )
        return FollowOptions(
            via=self.via,
            hubs=self.hubs,
            pace=Pace(poll=self.poll, compare=self.compare, spread=self.spread, rate=self.rate),
            selection=Selection(
                only=_distinct(self.only),
                excluded=_distinct(self.excluded),
                types=_distinct(self.type),
                changes=_distinct(self.change),
                collections=_distinct(self.collection),
            ),
            prefer=self.prefer or (),
            exact=self.exact,
            allow_private_addresses=self.allow_private_addresses,
            credentials=credentials_of(self.login, self.bearer, self.header),
            callbacks=callbacks,
            terms=self.terms(),
            mqtt=Brokered(
                url=self.mqtt_url,
                login=login,
                session=self.mqtt_session,
                version=self.mqtt_version,
            ),
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


def with_follow_arguments(command: Callable[..., None]) -> Callable[..., None]:
    """Replace the parameter `arguments` of a command by one parameter for each of its fields."""
    hints = get_type_hints(command, include_extras=True)
    options = get_type_hints(FollowArguments, include_extras=True)
    keyword = inspect.Parameter.KEYWORD_ONLY
    own = [one for one in inspect.signature(command).parameters.values() if one.name != "arguments"]
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
        follow = FollowArguments(**{name: given.pop(name) for name in options if name in given})
        command(*bound.args, **bound.kwargs, arguments=follow)

    called.__signature__ = signature  # type: ignore[attr-defined]
    called.__annotations__ = {one.name: one.annotation for one in parameters}
    del called.__wrapped__  # or typer would read the options from there
    return called


def _distinct(values: Sequence[T] | None) -> tuple[T, ...]:
    """Return values without their order, in which selections that are the same may differ."""
    return tuple(sorted(set(values or ())))
