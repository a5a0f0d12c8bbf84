"""The options of every command that follows a Source."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, get_type_hints

from msgspec import Struct
from msgspec.structs import fields

from rsnotify.errors import ConfigurationError, WrongOption
from rsnotify.sync.pace import Pace
from rsnotify_subscriber.commands.callback_server import CallbackServer
from rsnotify_subscriber.commands.options import (
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
from rsnotify_subscriber.push.websub.terms import DEFAULT_TERMS
from rsnotify_subscriber.via import Via

if TYPE_CHECKING:
    from rsnotify_subscriber.fleet.configuration import WebSubSettings
    from rsnotify_subscriber.options import FollowOptions
    from rsnotify_subscriber.push.websub.callbacks import Callbacks

#: The prefix of the options that are settings of `[websub]` in a file.
CALLBACK = "callback_"


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
        from rsnotify_subscriber.fleet.building import follow_options
        from rsnotify_subscriber.fleet.configuration import SourceSettings

        self._check_mqtt()
        given: dict[str, Any] = {
            name: tuple(value) if isinstance(value, list) else value
            for name in self.__struct_fields__
            if name in SourceSettings.__struct_fields__
            and (value := getattr(self, name)) is not None
        }
        pace = Pace()  # one Source may use more memory than each of many
        return follow_options(
            SourceSettings(**given, in_flight=pace.in_flight, hold=pace.hold),
            credentials_of(self.login, self.bearer, self.header),
            callbacks,
            terms=self._websub().terms,
        )

    def callback_server(self) -> CallbackServer:
        """Return the listener for hubs, which listens if there is a callback URL."""
        websub = self._websub()
        return CallbackServer(websub.url, websub.host, websub.port, websub.terms)

    def _websub(self) -> WebSubSettings:
        from rsnotify_subscriber.fleet.configuration import WebSubSettings

        given = {
            name.removeprefix(CALLBACK): getattr(self, name)
            for name in self.__struct_fields__
            if name.startswith(CALLBACK)
        }
        given["signature"] = tuple(given["signature"] or DEFAULT_TERMS.signatures)
        return WebSubSettings(**given)

    def _check_mqtt(self) -> None:
        from rsnotify.runtime.mqtt.topics import parse_broker

        if self.mqtt_version not in ("5", "3.1.1"):
            raise WrongOption("mqtt_version", "it has to be 5 or 3.1.1")
        if self.mqtt_url is not None:
            try:
                parse_broker(self.mqtt_url)
            except ConfigurationError as error:
                raise WrongOption("mqtt_url", str(error)) from None


def with_follow_arguments(command: Callable[..., None]) -> Callable[..., None]:
    """Replace the parameter `arguments` of a command by a parameter for each option."""
    hints = get_type_hints(command, include_extras=True)
    options = get_type_hints(FollowArguments, include_extras=True)
    parameters = [
        parameter.replace(annotation=hints[name])
        for name, parameter in inspect.signature(command).parameters.items()
        if name != "arguments"
    ] + [
        inspect.Parameter(
            field.name,
            inspect.Parameter.KEYWORD_ONLY,
            default=field.default,
            annotation=options[field.name],
        )
        for field in fields(FollowArguments)
    ]
    signature = inspect.Signature(parameters)

    @functools.wraps(command)
    def wrapper(*positional: Any, **named: Any) -> None:
        bound = signature.bind(*positional, **named)
        given = {name: bound.arguments.pop(name) for name in options if name in bound.arguments}
        command(*bound.args, **bound.kwargs, arguments=FollowArguments(**given))

    wrapper.__signature__ = signature  # type: ignore[attr-defined]
    wrapper.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
    del wrapper.__wrapped__  # or typer would read the options there
    return wrapper
