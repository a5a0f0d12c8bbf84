"""Checks on settings that the type of a setting cannot express.

Each raises `WrongSetting` if a check fails.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from ipaddress import ip_network
from urllib.parse import urlsplit

import jwt
from cryptography.exceptions import UnsupportedAlgorithm

from rsnotify.errors import ConfigurationError
from rsnotify.runtime.config.line_numbers import SettingPath
from rsnotify.runtime.config.wrong_setting import WrongSetting
from rsnotify.runtime.mqtt.topics import parse_broker
from rsnotify.runtime.xmpp.addresses import parse_service
from rsnotify_hub.config.brokers import MqttConfig, XmppConfig
from rsnotify_hub.config.configuration import FollowConfig, StoreConfig
from rsnotify_hub.config.tokens import digest
from rsnotify_hub.refusals import Refusal
from rsnotify_hub.urls import check_url, has_dot_segments

#: Digests of the secrets that the documentation shows.
EXAMPLES = frozenset({digest("a long random secret")})

#: RFC 7518 §3.2: the key of an HMAC is at least as long as its output.
_HMAC_BYTES = {"HS256": 32, "HS384": 48, "HS512": 64}


def check_digests(name: str, digests: Iterable[str]) -> None:
    """Check that no token is an example of the documentation."""
    for number, each in enumerate(digests):
        if each in EXAMPLES:
            reason = "this is the example of the documentation; make a secret of your own"
            raise WrongSetting((name, number, "token_sha256"), reason)


def check_prefixes(path: SettingPath, prefixes: Sequence[str]) -> None:
    """Check that granted prefixes are URLs that a topic can begin with."""
    for number, prefix in enumerate(prefixes):
        where = (*path, number)
        try:
            check_url(prefix, "a topic")
        except Refusal as refusal:
            raise WrongSetting(where, refusal.reason) from None
        if has_dot_segments(prefix):
            raise WrongSetting(where, "a topic must not have dot segments; write the resolved path")


def check_networks(name: str, networks: Sequence[str]) -> None:
    for number, network in enumerate(networks):
        try:
            ip_network(network)
        except ValueError as error:
            raise WrongSetting((name, number), f"no address or network: {error}") from None


def check_origins(name: str, origins: Sequence[str]) -> None:
    for number, origin in enumerate(origins):
        try:
            usable = urlsplit(check_url(origin, "it")).path in ("", "/")
        except Refusal:
            usable = False
        if not usable:
            reason = "this is no origin, which is written as https://page.example"
            raise WrongSetting((name, number), reason)


def check_public_url(url: str | None) -> None:
    try:
        check_url(url or "http://localhost/", "it")
    except Refusal as refusal:
        raise WrongSetting(("public_url",), refusal.reason) from None


def check_leases(shortest: int, longest: int) -> None:
    if shortest > longest:
        raise WrongSetting(("min_lease_seconds",), "it is longer than max_lease_seconds")


def check_jwt(algorithms: Sequence[str], key: str | None, audience: str | None) -> None:
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
        # One key for both would allow a public key to be used as a secret.
        raise WrongSetting(("jwt_algorithms",), "HS algorithms cannot be mixed with others")
    if shared == {True}:
        _check_secret(key, max(_HMAC_BYTES[name] for name in algorithms))
    elif "PUBLIC KEY-----" not in key:
        raise WrongSetting(("jwt_key",), "these algorithms need a public key in PEM format")
    for name in algorithms:
        if not _is_key(key, name):
            raise WrongSetting(("jwt_key",), f"this is no key for {name}")


def _check_secret(key: str, size: int) -> None:
    if "PUBLIC KEY-----" in key:
        raise WrongSetting(("jwt_key",), "a public key is no secret for HS algorithms")
    if len(key.encode()) < size:
        raise WrongSetting(("jwt_key",), f"the secret of these algorithms needs {size} bytes")
    if digest(key) in EXAMPLES:
        raise WrongSetting(("jwt_key",), "this is the example of the documentation")


def _is_key(text: str, algorithm: str) -> bool:
    try:
        jwt.get_algorithm_by_name(algorithm).prepare_key(text)
    except (jwt.PyJWTError, ValueError, TypeError, UnsupportedAlgorithm):
        return False
    return True


def check_store(store: StoreConfig) -> None:
    if store.url is None:
        for name in ("password_file", "credentials", "nkey", "ca", "certificate", "key"):
            if getattr(store, name):
                raise WrongSetting((f"store_{name}",), "this needs store, which names the servers")
        return
    try:
        store.nats()
    except ConfigurationError as error:
        raise WrongSetting(("store",), str(error)) from None


def check_mqtt(mqtt: MqttConfig) -> None:
    if mqtt.url is None:
        given = {"channels": mqtt.channels, "user": mqtt.user, "public_url": mqtt.public_url}
        for name, value in given.items():
            if value:
                raise WrongSetting((f"mqtt_{name}",), "this needs mqtt_url, which names the broker")
        return
    for name, broker in (("mqtt_url", mqtt.url), ("mqtt_public_url", mqtt.public_url or mqtt.url)):
        try:
            has_prefix = parse_broker(broker).has_prefix
        except ConfigurationError as error:
            raise WrongSetting((name,), str(error)) from None
        if not has_prefix:
            reason = "a hub has many channels: end the path with /, or leave it out"
            raise WrongSetting((name,), reason)
    try:
        mqtt.login.check()
    except ConfigurationError as error:
        files = ("key", "certificate", "ca")
        at_fault = next((name for name in files if getattr(mqtt, name)), "user")
        raise WrongSetting((f"mqtt_{at_fault}",), str(error)) from None


def check_xmpp(xmpp: XmppConfig) -> None:
    if xmpp.url is None:
        if xmpp.jid is not None:
            raise WrongSetting(("xmpp_jid",), "this needs xmpp_url, which names the PubSub service")
        return
    try:
        if not parse_service(xmpp.url).has_prefix:
            raise ConfigurationError(
                "a hub has many channels: end the node with /, or leave it out"
            )
    except ConfigurationError as error:
        raise WrongSetting(("xmpp_url",), str(error)) from None
    if xmpp.jid is None:
        raise WrongSetting(("xmpp_url",), "this needs xmpp_jid, the account of the hub")
    try:
        xmpp.login.check()
    except ConfigurationError as error:
        raise WrongSetting(("xmpp_jid",), str(error)) from None


def check_follow(follow: FollowConfig, store: StoreConfig) -> None:
    if not follow.tables:
        return
    if store.url is not None:
        reason = "the nodes of a cluster cannot share it; run `rsnotify gateway` with their URLs"
        raise WrongSetting(("follow",), reason)
    if follow.contact is None:
        raise WrongSetting(("follow",), "it needs follow_contact, a URL or mail address of yours")
    from rsnotify_hub.config.followed import origins_of

    origins_of(follow)
