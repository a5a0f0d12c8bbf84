"""The URL of NATS, and logging in to real servers."""

from __future__ import annotations

import pytest

from rsnotify.errors import ConfigurationError
from rsnotify_jetstream import nats_connection
from rsnotify_jetstream.nats_settings import NatsSettings, parse_nats_url
from tests.hub.jetstream.nodes import connected
from tests.ports import free_port

SECRET = "c@nary"


def test_a_url_names_servers_login_prefix_and_replicas():
    settings = parse_nats_url(
        "nats://me:c%40nary@a.example:1,b.example,[::1]:3/?prefix=x&replicas=3"
    )
    assert settings.servers == ("nats://a.example:1", "nats://b.example:4222", "nats://[::1]:3")
    assert (settings.user, settings.password) == ("me", SECRET)
    assert (settings.prefix, settings.replicas) == ("x", 3)
    assert SECRET not in repr(settings) + settings.place
    plain = parse_nats_url("tls://a.example")
    assert (plain.user, plain.prefix, plain.replicas) == (None, "rsnotify", None)
    assert plain.is_tls


@pytest.mark.parametrize(
    ("url", "expected"),
    [
        ("redis://me:c@nary@a", "nats://host:port"),
        ("nats://me:c@nary@", "not a host and port"),
        ("nats://me:c@nary@a:port", "not a host and port"),
        ("nats://me:c@nary@a,,b", "not a host and port"),
        ("nats://me:c@nary@a?prefix=a.b", "up to 64 letters"),
        ("nats://me:c@nary@a?replicas=2", "must be 1, 3 or 5"),
        ("nats://me:c@nary@a?copies=2", "use prefix or replicas"),
    ],
)
def test_a_wrong_url_is_a_clear_error_without_the_password(url: str, expected: str):
    with pytest.raises(ConfigurationError, match=expected) as raised:
        parse_nats_url(url)
    assert "nary" not in str(raised.value)


async def test_a_server_that_is_not_there_is_named(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(nats_connection, "CONNECT_SECONDS", 0.5)
    port = free_port()
    with pytest.raises(ConfigurationError, match=f"127.0.0.1:{port}.*start the servers"):
        async with connected(parse_nats_url(f"nats://127.0.0.1:{port}")):
            pass


async def test_a_server_that_is_too_old_is_refused_with_the_reason(
    settings: NatsSettings, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(nats_connection, "MIN_VERSION", (99, 0))
    with pytest.raises(ConfigurationError, match=r"too old.*wrong leader.*upgrade all servers"):
        async with connected(settings):
            pass
