"""What cannot be said of one setting by its type alone."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from ipaddress import ip_network
from urllib.parse import urlsplit

from rsnotify.errors import ConfigurationError
from rsnotify.runtime.config.line_numbers import SettingPath
from rsnotify.runtime.config.wrong_setting import WrongSetting
from rsnotify.runtime.mqtt.login import BrokerLogin
from rsnotify.runtime.mqtt.topics import parse_broker
from rsnotify_hub.access.json_web_tokens import is_key
from rsnotify_hub.access.prefixes import may_lead_elsewhere
from rsnotify_hub.refusals import Refusal
from rsnotify_hub.settings.tokens import digest
from rsnotify_hub.urls import check_url

#: What stands in the documentation, for everybody to read.
EXAMPLES = frozenset({digest("a long random secret")})

#: RFC 7518 §3.2: a key of an HMAC is at least as long as its output.
_HMAC_BYTES = {"HS256": 32, "HS384": 48, "HS512": 64}


def check_digests(name: str, digests: Iterable[str]) -> None:
    """Check that no token is one that everybody knows.

    Raises:
        WrongSetting: One is.
    """
    for number, each in enumerate(digests):
        if each in EXAMPLES:
            reason = "this is the example of the documentation; make a secret of your own"
            raise WrongSetting((name, number, "token_sha256"), reason)


def check_prefixes(path: SettingPath, prefixes: Sequence[str]) -> None:
    """Check the topics that somebody is granted.

    Raises:
        WrongSetting: One of them is no URL that topics begin with.
    """
    for number, prefix in enumerate(prefixes):
        where = (*path, number)
        try:
            check_url(prefix, "a topic")
        except Refusal as refusal:
            raise WrongSetting(where, refusal.reason) from None
        if may_lead_elsewhere(prefix):
            raise WrongSetting(where, "a topic has a segment of dots; write where it leads")


def check_networks(name: str, networks: Sequence[str]) -> None:
    """Check addresses and networks.

    Raises:
        WrongSetting: One of them is neither.
    """
    for number, network in enumerate(networks):
        try:
            ip_network(network)
        except ValueError as error:
            raise WrongSetting((name, number), f"no address or network: {error}") from None


def check_origins(name: str, origins: Sequence[str]) -> None:
    """Check whose pages are let in.

    Raises:
        WrongSetting: One of them is no origin, which would let nobody in.
    """
    for number, origin in enumerate(origins):
        try:
            usable = urlsplit(check_url(origin, "it")).path in ("", "/")
        except Refusal:
            usable = False
        if not usable:
            reason = "this is no origin, which is written as https://page.example"
            raise WrongSetting((name, number), reason)


def check_public_url(url: str | None) -> None:
    """Check how others reach the hub.

    Raises:
        WrongSetting: It cannot stand in a Link header.
    """
    try:
        check_url(url or "http://localhost/", "it")
    except Refusal as refusal:
        raise WrongSetting(("public_url",), refusal.reason) from None


def check_leases(shortest: int, longest: int) -> None:
    """Check the limits of leases.

    Raises:
        WrongSetting: No lease is within them.
    """
    if shortest > longest:
        raise WrongSetting(("min_lease_seconds",), "it is longer than max_lease_seconds")


def check_jwt(algorithms: Sequence[str], key: str | None, audience: str | None) -> None:
    """Check what JSON Web Tokens are verified with.

    Raises:
        WrongSetting: Something is missing, or does not fit.
    """
    if not algorithms:
        if key is not None:
            raise WrongSetting(("jwt_key",), "name the algorithm that it is for: jwt_algorithms")
        return
    if key is None:
        raise WrongSetting(("jwt_algorithms",), "they need jwt_key_file or jwt_key")
    if audience is None:
        raise WrongSetting(("jwt_algorithms",), "they need jwt_audience, which names this hub")
    shared = {name.startswith("HS") for name in algorithms}
    if len(shared) > 1:
        # One key for both would let a public key be used as a secret.
        raise WrongSetting(("jwt_algorithms",), "HS algorithms cannot be mixed with others")
    if shared == {True}:
        _check_secret(key, max(_HMAC_BYTES[name] for name in algorithms))
    elif "PUBLIC KEY-----" not in key:
        raise WrongSetting(("jwt_key",), "these algorithms need a public key in PEM format")
    for name in algorithms:
        if not is_key(key, name):
            raise WrongSetting(("jwt_key",), f"this is no key for {name}")


def check_mqtt(
    url: str | None, public_url: str | None, login: BrokerLogin, channels: Sequence[str]
) -> None:
    """Check how the broker is reached, and by whom.

    Raises:
        WrongSetting: Something is missing, or cannot be used.
    """
    if url is None:
        given = {"mqtt_channels": channels, "mqtt_user": login.user, "mqtt_public_url": public_url}
        for name, value in given.items():
            if value:
                raise WrongSetting((name,), "this needs mqtt_url, which names the broker")
        return
    for name, broker in (("mqtt_url", url), ("mqtt_public_url", public_url or url)):
        try:
            prefix = parse_broker(broker).topic_or_prefix
        except ConfigurationError as error:
            raise WrongSetting((name,), str(error)) from None
        if not prefix.endswith("/"):
            reason = "a hub has many channels: let the path end in /, or leave it out"
            raise WrongSetting((name,), reason)
    try:
        login.check()
    except ConfigurationError as error:
        files = ("key", "certificate", "ca")
        at_fault = next((name for name in files if getattr(login, name)), "user")
        raise WrongSetting((f"mqtt_{at_fault}",), str(error)) from None


def _check_secret(key: str, size: int) -> None:
    if "PUBLIC KEY-----" in key:
        raise WrongSetting(("jwt_key",), "a public key is no secret for HS algorithms")
    if len(key.encode()) < size:
        raise WrongSetting(("jwt_key",), f"the secret of these algorithms needs {size} bytes")
    if digest(key) in EXAMPLES:
        raise WrongSetting(("jwt_key",), "this is the example of the documentation")
